"""What the installed ``mvc`` can do: a section that needs more says so and goes on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.children import CommandError

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.children import Runner

NOT_YET = "not there yet"
_PROBES = {
    "delta": ("add", "--delta"),
    "repack": ("repack",),
    "gc": ("gc", "--grace", "0"),
    "prune": ("prune", "--keep-last", "1"),
    "du": ("du",),
}


def find_abilities(runner: Runner, folder: Path, mvc: Path) -> frozenset[str]:
    """Return which verbs (and ``delta``, an option of ``add``) the command line knows.

    An option that does not exist is refused before ``--help`` is looked at, so nothing runs.
    """
    return frozenset(
        name for name, words in _PROBES.items() if _is_known(runner, folder, mvc, words)
    )


def _is_known(runner: Runner, folder: Path, mvc: Path, words: tuple[str, ...]) -> bool:
    try:
        runner.output(folder, [mvc, *words, "--help"])
    except CommandError:
        return False
    return True
