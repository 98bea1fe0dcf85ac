"""One rank of trainings over several processes, for ``test_sharded``: a program of its own.

sharded_training.py RANK SIZE STORE FOLDER JSON

JSON is a list of names of ``support.scenarios.sharded``; what was found goes to FOLDER/said-RANK.json. Each
is trained without mvc; then with it, left after five steps and gone on with, rolled back to a commit; then
once more, rolled back to a snapshot of the ring. Every step must be the same bit by bit.
"""

from __future__ import annotations

import json
import sys
import warnings
from datetime import timedelta
from pathlib import Path

import torch
from torch import distributed, nn

import mvc_hooks
from mvc import Identity, Repo
from mvc_hooks.parts.module import ModulePart
from mvc_hooks.parts.tree import list_items, map_tensors
from support.scenarios.sharded import BUILDERS
from support.training_runs import (
    Trace,
    _draw_endlessly,
    digest,
    find_deviation,
    read_trace,
    seed_all,
)

TOTAL, EVERY, LEFT_AT, BAD_STEP = 11, 3, 5, 8
ME = Identity("A Tester", "tester@example.org")


def build(name, rank, size, seed):
    seed_all(seed)
    run = BUILDERS[name].build(rank, size)
    # Ranks of tensor parallelism draw the same numbers, as they see the same data.
    seed_all(100 * seed + (0 if name.startswith("tp-") else rank))
    return run


def train_plain(name, rank, size, trace):
    run = build(name, rank, size, 0)
    batches = None if run.loader is None else _draw_endlessly(run.loader)
    for index in range(TOTAL):
        batch = run.data(index) if batches is None else next(batches)
        trace.add(index + 1, batch, run.step(batch, lambda: None), run)


def train_kept(name, rank, size, folder, trace, *, seed=0, total=TOTAL, bad_step=0, ring=None):
    """Train with a checkpointer; return the run, the first step, and where it went back to."""
    run = build(name, rank, size, seed)
    back = mvc_hooks.rollback(to="last", min_steps_back=1, skip_batches=0)
    bad = {bad_step}
    with mvc_hooks.Checkpointer(
        folder, parts=run.parts, every=EVERY, ladder=[back, mvc_hooks.stop(after=3)], ring=ring,
        signals=False, identity=ME,
    ) as ckpt:  # fmt: skip
        first = ckpt.step_count
        for index in ckpt.steps(total):
            batch = run.data(ckpt.batch_index) if run.loader is None else ckpt.next_batch()
            loss = run.step(batch, lambda: None)
            trace.add(index + 1, batch, loss, run)
            ckpt.step(loss=float("nan") if index + 1 in bad else loss)
            bad.discard(index + 1)
    return run, first, [one.to_step for one in ckpt.rollbacks]


def find_other_blobs(run, folder, rank):
    """Return the files of the tip that are not those of one process with that state, on rank 0."""
    whole = {
        name: map_tensors(_capture(one), _gather)
        for name, one in run.parts.items()
        if name.startswith(("model", "optimizer", "average"))
    }
    if rank:
        return []
    repo, alone = Repo.open(folder), Repo.init(folder / "alone")
    alone.identity = ME
    alone.commit_state(whole, message="alone")
    ours, theirs = (
        {path: entry.blob for path, entry in one._context.history.read_tree(tip).items()}
        for one in (repo, alone)
        for tip in [one.resolve("HEAD")]
    )
    loaded = repo.load_state("main")
    found = [
        path
        for path, blob in theirs.items()
        if path.endswith(".safetensors") and ours.get(path) != blob
    ]
    found += [name for name in whole if digest(loaded[name]) != digest(whole[name])]
    return [*found, *map(str, repo.fsck(data=True).problems)]


def _capture(live):
    if isinstance(live, (dict, list)):
        items = {key: _capture(one) for key, one in (list_items(live) or ())}
        return items if isinstance(live, dict) else list(items.values())
    if isinstance(live, torch.Tensor):
        return live.detach()
    return ModulePart("", live).capture() if isinstance(live, nn.Module) else live.state_dict()


def _gather(tensor):
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor.detach()


def prove(name, rank, size, folder):
    """Return what is not as it has to be, by what was tried."""
    folder.mkdir(exist_ok=True)
    paths = {one: folder / f"{one}-{rank}" for one in ("plain", "left", "on", "ring")}
    traces = {one: Trace(path) for one, path in paths.items()}
    train_plain(name, rank, size, traces["plain"])
    train_kept(name, rank, size, folder / "in-two", traces["left"], total=LEFT_AT)
    _, first, back = train_kept(
        name, rank, size, folder / "in-two", traces["on"], seed=9, bad_step=BAD_STEP
    )
    found = {} if (first, back) == (LEFT_AT, [6]) else {"resumed": [first, back]}
    run, _, back = train_kept(
        name, rank, size, folder / "ring", traces["ring"], bad_step=BAD_STEP,
        ring=mvc_hooks.Ring(every=1, keep=3),
    )  # fmt: skip
    found |= {} if back == [BAD_STEP - 1] else {"back from the ring": back}
    plain = read_trace(paths["plain"])
    for one in ("left", "on", "ring"):
        deviation = find_deviation(read_trace(paths[one]), plain)
        found |= {} if deviation is None else {one: deviation}
    others = find_other_blobs(run, folder / "ring", rank)
    return found | ({"not as one process": others} if others else {})


def main():
    rank, size, store, folder, names = sys.argv[1:]
    rank, size = int(rank), int(size)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    distributed.init_process_group(
        "gloo", store=distributed.FileStore(store, size), rank=rank, world_size=size,
        timeout=timedelta(seconds=120),
    )  # fmt: skip
    said = {name: prove(name, rank, size, Path(folder, name)) for name in json.loads(names)}
    distributed.barrier()
    distributed.destroy_process_group()
    Path(folder, f"said-{rank}.json").write_text(json.dumps(said))


if __name__ == "__main__":
    main()
