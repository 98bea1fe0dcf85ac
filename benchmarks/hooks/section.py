"""The section ``hooks``: every part of it in a process of its own, one after the other."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import donor
from benchmarks.sweep import fresh_folder

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.children import Runner

_ROOT = Path(__file__).parent.parent.parent
_PEAKS = ("mvc", "torch.save", "dcp.async_save, thread", "dcp.async_save, process")


@dataclass(frozen=True, slots=True)
class Extent:
    """How much is measured.

    Attributes:
        large: size of the run whose stall, memory and return are measured.
        middle: of the one whose speed is.
        small: of the one that commits very often.
        rounds: of stalls and returns.
        steps: of a block of the training whose speed is measured.
        blocks: of each way.
        commits: after which memory must not have grown.
        peaks: ways whose memory is measured.
    """

    large: str
    middle: str
    small: str
    rounds: int
    steps: int
    blocks: int
    commits: int
    peaks: tuple[str, ...]


_FULL = Extent("large", "middle", "small", 5, 50, 6, 200, _PEAKS)
_QUICK = Extent("quick", "quick", "quick", 1, 4, 1, 8, _PEAKS[:1])


def measure_hooks(
    runner: Runner, folder: Path, *, is_quick: bool, say: Callable[[str], None]
) -> dict[str, Any]:
    """Return stall, throughput, memory, rollback and resume.

    Args:
        runner: starts commands.
        folder: where to work; the trained donor is kept there.
        is_quick: a tiny run, once.
        say: told what is going on.
    """
    extent = _QUICK if is_quick else _FULL
    donor.load_donor(folder, donor.QUICK if is_quick else donor.DonorSettings())
    ask = _Child(runner, folder / "hooks", say)
    patience = str(runner.patience_s)
    rounds = str(extent.rounds)
    results = {"stall": ask("stall", extent.large, "cpu", rounds, patience)}
    if results["stall"]["has_cuda"]:
        results["stall_cuda"] = ask("stall", extent.large, "cuda", rounds, patience)
    results["loop"] = ask("loop", extent.middle, str(extent.steps), str(extent.blocks))
    results["peak"] = {
        name: ask("memory", extent.large, name, verb="peak") for name in extent.peaks
    }
    results["growth"] = ask("memory", extent.small, str(extent.commits), verb="growth")
    results["recovery"] = ask("recovery", extent.large, rounds, patience)
    return results


class _Child:
    """Runs a module in a fresh folder and returns what it says."""

    def __init__(self, runner: Runner, folder: Path, say: Callable[[str], None]) -> None:
        self._runner, self._folder, self._say = runner, folder, say

    def __call__(self, module: str, size: str, *words: str, verb: str | None = None) -> Any:
        self._say(f"hooks, {module} {' '.join((verb or '', *words)).strip()}")
        place = fresh_folder(self._folder)
        named = [sys.executable, "-m", f"benchmarks.hooks.{module}", *([verb] if verb else [])]
        printed = self._runner.output(_ROOT, [*named, place, size, *words])
        fresh_folder(place).rmdir()
        return json.loads(printed.splitlines()[-1])  # frameworks print, too
