"""Saving and reading from a running process: ``python -m benchmarks.inprocess FILE FOLDER ROUNDS PATIENCE``.

A separate process, so that torch's memory and threads do not affect other measurements. The state dict lies
in memory; every way of saving starts from it and ends with the bytes on the disk, except
``add`` + ``commit``, which start from the file as a user's script would (its bytes in the page
cache). Ways are interleaved, the order turns around every round, and each save goes to a fresh
folder: writing over an old file would measure the truncation. One round more than asked for is
run first and thrown away: it pays for imports and first allocations.

Then single tensors of a saved file are read many times over, the middle one and the largest, by mvc
and by safetensors, which opens the file each time as mvc looks up its revision each time.

Prints one JSON object: ``save`` is way → [seconds, share of the cores that went elsewhere] of every
round, ``read`` is tensor → bytes and the median seconds of both.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import sys
import time
import warnings
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import torch
import torch.distributed.checkpoint as dcp
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import mvc
from benchmarks.stopwatch import take_time
from benchmarks.sweep import fresh_folder

if TYPE_CHECKING:
    from collections.abc import Callable

    State = dict[str, torch.Tensor]

MODEL = "model.safetensors"
READS = 30


def save_safetensors(state: State, folder: Path, _model: Path) -> None:
    path = folder / MODEL
    save_file(state, path)
    _sync(path)


def save_torch(state: State, folder: Path, _model: Path) -> None:
    with (folder / "model.pt").open("wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())


def save_dcp(state: State, folder: Path, _model: Path) -> None:
    dcp.save(state, checkpoint_id=folder / "dcp", no_dist=True)


def commit_file(_state: State, folder: Path, _model: Path) -> None:
    repo = mvc.Repo.open(folder)
    repo.add(MODEL)
    repo.commit("version")


def commit_memory(state: State, folder: Path, _model: Path) -> None:
    mvc.Repo.open(folder).commit_state({"model": state}, message="version")


WAYS: dict[str, Callable[[State, Path, Path], None]] = {
    "mvc add + commit": commit_file,
    "mvc commit_state": commit_memory,
    "safetensors save_file + fsync": save_safetensors,
    "torch.save + fsync": save_torch,
    "DCP save": save_dcp,
}


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


def measure(
    model: Path, folder: Path, rounds: int, patience_s: float
) -> dict[str, list[tuple[float, float]]]:
    """Return, of every way and round, the seconds and the share of the cores that went elsewhere."""
    state = {name: tensor.clone() for name, tensor in load_file(model).items()}
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in WAYS}
    for number in range(rounds + 1):
        order = list(WAYS) if number % 2 else list(reversed(WAYS))
        for name in order:
            place = fresh_folder(folder / "inprocess")
            if WAYS[name] is commit_file:
                shutil.copyfile(model, place / MODEL)
            if name.startswith("mvc"):
                mvc.Repo.init(place)
            figure = take_time(partial(WAYS[name], state, place, model), patience_s=patience_s)
            if number:
                taken[name].append(figure)
            shutil.rmtree(place)
    return taken


def measure_reads(model: Path, folder: Path) -> dict[str, dict[str, float]]:
    """Return size and median seconds of reading one tensor, warm, for tensors of several sizes."""
    place = fresh_folder(folder / "inprocess")
    shutil.copyfile(model, place / MODEL)
    sizes = {name: tensor.nbytes for name, tensor in load_file(model).items()}
    ordered = sorted(sizes, key=sizes.__getitem__)
    found: dict[str, dict[str, float]] = {}
    with mvc.Repo.init(place) as repo:
        repo.commit("model", paths=MODEL)
        for name in dict.fromkeys((ordered[0], ordered[len(ordered) // 2], ordered[-1])):
            found[name] = {"size_bytes": sizes[name]} | _compare_reads(repo, place / MODEL, name)
    shutil.rmtree(place)
    return found


def _compare_reads(repo: mvc.Repo, path: Path, name: str) -> dict[str, float]:
    def read_mvc() -> None:
        repo.tensor("HEAD", MODEL, name, framework="pt")

    def read_safetensors() -> None:
        with safe_open(path, "pt") as file:  # type: ignore[no-untyped-call]
            file.get_tensor(name).clone()  # which only maps the file until its bytes are wanted

    ways = {"mvc": read_mvc, "safetensors": read_safetensors}
    taken: dict[str, list[float]] = {way: [] for way in ways}
    for number in range(READS + 1):
        for way, read in ways.items():
            start = time.perf_counter()
            read()
            if number:
                taken[way].append(time.perf_counter() - start)
    return {way: median(seconds) for way, seconds in taken.items()}


def main() -> None:
    warnings.simplefilter("ignore")  # DCP announces that it is not distributed, which is meant
    logging.disable(logging.WARNING)
    model, folder, rounds = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    saved = measure(model, folder, rounds, float(sys.argv[4]))
    json.dump({"save": saved, "read": measure_reads(model, folder)}, sys.stdout)


if __name__ == "__main__":
    main()
