"""The section ``sharded``: 1, 2, 4 and 8 processes, each way in processes of its own."""

from __future__ import annotations

import json
import sys
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.children import CommandError
from benchmarks.sweep import fresh_folder

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.children import Runner

_ROOT = Path(__file__).parent.parent.parent
_WAYS = ("mvc", "dcp.save", "dcp.async_save, thread", "dcp.async_save, process")


def measure_sharded(
    runner: Runner, folder: Path, *, is_quick: bool, say: Callable[[str], None]
) -> dict[str, Any]:
    """Return for every number of processes what each way took to save, and to load on another number.

    Args:
        runner: starts commands.
        folder: where to work.
        is_quick: a tiny state, two processes, once.
        say: told what is going on.
    """
    sizes, state_mb, rounds = ((2,), 4, 1) if is_quick else ((1, 2, 4, 8), 512, 3)
    ways = _WAYS[:2] if is_quick else _WAYS
    place = folder / "sharded"
    results: dict[str, Any] = {"state_mb": state_mb, "saves": {}, "loads": {}}
    for size in sizes:
        for way in ways:
            say(f"sharded, {way}, {size} processes")
            fresh_folder(place)
            other = 1 if size == sizes[-1] else 2 * size
            try:
                saved = _ask(runner, size, "save", way, place / "saved", state_mb, rounds)
                loaded = _ask(runner, other, "load", way, place / "saved", state_mb, rounds)
            except CommandError:
                if way == "mvc":
                    raise
                say(f"{way} failed on {size} processes: it has no row")  # torch aborts now and then
                continue
            results["saves"].setdefault(way, {})[size] = saved
            results["loads"].setdefault(way, {})[size] = {"on": other, **loaded}
    sizes, state_mb = ((2,), 4) if is_quick else ((2, 4), 1000)
    results["recovery"] = {"state_mb": state_mb, "rounds": {}}
    for size in sizes:
        for way in ("mvc",) if is_quick else ("mvc", "dcp.save"):
            say(f"sharded, a rank of {size} killed, {way}")
            found = [_recover(runner, size, way, place, state_mb) for _ in range(rounds)]
            results["recovery"]["rounds"].setdefault(way, {})[size] = found
    fresh_folder(place).rmdir()
    return results


def _recover(runner: Runner, size: int, way: str, place: Path, state_mb: int) -> dict[str, float]:
    """Return the seconds of each part of the way from the kill of a rank to the first new step."""
    fresh_folder(place)
    # torch keeps one store for all attempts, in which gloo may find the address of the killed rank.
    words = ["env", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1", sys.executable]
    words += ["-m", "torch.distributed.run", "--standalone", "--max-restarts", "1"]
    words += ["--nproc-per-node", str(size), "-m", "benchmarks.sharded.recovery"]
    runner.output(_ROOT, [*words, way, place, str(state_mb)])
    times: dict[str, float] = {}
    for path in place.glob("times-*.json"):
        is_first = path.stem.endswith("-0")
        for name, at_s in json.loads(path.read_text()).items():
            if (name == "killed") == is_first:
                times[name] = max(at_s, times.get(name, 0.0))
    ends = ("killed", "process", "imports", "group", "model", "load", "step")
    return {name: times[name] - times[before] for before, name in pairwise(ends)}


def _ask(
    runner: Runner, size: int, verb: str, way: str, folder: Path, state_mb: int, rounds: int
) -> Any:
    words = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(size)]
    words += ["--standalone", "-m", "benchmarks.sharded.child"]
    printed = runner.output(_ROOT, [*words, verb, way, folder, str(state_mb), str(rounds)])
    lines = [line for line in printed.splitlines() if line.startswith("{")]
    return json.loads(lines[-1])
