"""gc, repack, du and prune on histories of growing length: time, peak memory, bytes left.

The commands run one after the other on one repository, as a user would clean up: the garbage of
deleted branches, then a repack, then all but the newest commits released. Each is what it costs
from a fresh process, its plan included. At the end everything is checked, and what had to stay is
loaded and compared.
"""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.abilities import NOT_YET
from benchmarks.history_child import KEPT_LAST
from benchmarks.sweep import folder_bytes, fresh_folder

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from benchmarks.children import Runner

_ROOT = Path(__file__).parent.parent
_KEPT = ("--keep-last", str(KEPT_LAST))
COMMANDS: dict[str, tuple[str, ...]] = {
    "gc --dry-run": ("gc", "--grace", "0", "--dry-run"),
    "gc": ("gc", "--grace", "0"),
    "gc, nothing to do": ("gc", "--grace", "0"),
    "repack": ("repack",),
    "repack, nothing to do": ("repack",),
    "du": ("du",),
    "prune --dry-run": ("prune", *_KEPT, "--dry-run"),
    "prune": ("prune", *_KEPT),
}


def measure_upkeep(
    runner: Runner,
    folder: Path,
    mvc: Path,
    abilities: Collection[str],
    *,
    lengths: Sequence[int],
    values: int,
    say: Callable[[str], None],
) -> dict[str, object]:
    """Return, for every length of history, what each command cost and what it left.

    Args:
        runner: starts commands.
        folder: where to work.
        mvc: the program.
        abilities: what it knows; commands that it does not are left out.
        lengths: how many commits the histories have.
        values: weights of the model; a state is three arrays of so many fp32 numbers.
        say: told what is going on.
    """
    result: dict[str, object] = {"state_bytes": 3 * 4 * values, "commands": list(COMMANDS)}
    if not {"gc", "repack", "prune"} & set(abilities):
        return result | {"histories": {}, "note": NOT_YET}
    histories: dict[str, object] = {}
    for commits in lengths:
        say(f"making a history of {commits} commits")
        place = fresh_folder(folder / "upkeep")
        child: list[str | Path] = [sys.executable, "-m", "benchmarks.history_child"]
        sizes: list[str | Path] = [place, str(commits), str(values)]
        runner.run(_ROOT, [*child, "make", *sizes])
        made_bytes = folder_bytes(place / ".mvc")
        costs, left = {}, {}
        for name, words in COMMANDS.items():
            if words[0] in abilities:
                costs[name] = asdict(runner.measure(place, [mvc, *words]))
                left[name] = folder_bytes(place / ".mvc")
        costs["fsck --data"] = asdict(runner.measure(place, [mvc, "fsck", "--data"]))
        runner.run(_ROOT, [*child, "check", *sizes])
        histories[str(commits)] = {"made_bytes": made_bytes, "left_bytes": left, "costs": costs}
    fresh_folder(folder / "upkeep")
    return result | {"histories": histories}
