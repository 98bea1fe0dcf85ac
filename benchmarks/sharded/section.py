"""The section ``sharded``: 1, 2, 4 and 8 processes, each way in processes of its own."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
            saved = _ask(runner, size, "save", way, place / "saved", state_mb, rounds)
            results["saves"].setdefault(way, {})[size] = saved
            other = 1 if size == sizes[-1] else 2 * size
            loaded = _ask(runner, other, "load", way, place / "saved", state_mb, rounds)
            results["loads"].setdefault(way, {})[size] = {"on": other, **loaded}
    fresh_folder(place).rmdir()
    return results


def _ask(
    runner: Runner, size: int, verb: str, way: str, folder: Path, state_mb: int, rounds: int
) -> Any:
    words = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(size)]
    words += ["--standalone", "-m", "benchmarks.sharded.child"]
    printed = runner.output(_ROOT, [*words, verb, way, folder, str(state_mb), str(rounds)])
    lines = [line for line in printed.splitlines() if line.startswith("{")]
    return json.loads(lines[-1])
