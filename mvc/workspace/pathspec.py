"""Which of many paths a user's patterns name: a file, a folder and all below it, or by wildcard.

A pattern is first of all a name: ``a[1].bin`` is the file of that name, and stands for ``a1.bin``
only if there is none. ``""``, the worktree itself, names every path.
"""

from __future__ import annotations

import fnmatch
import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from itertools import takewhile

from mvc.errors import NotFoundError

_WILDCARD = re.compile(r"[*?\[]")


def is_wildcard(pattern: str) -> bool:
    """Return whether a pattern holds wildcard characters."""
    return _WILDCARD.search(pattern) is not None


class PathTable:
    """Sorted paths, so that a pattern costs what it finds and not a look at every path."""

    def __init__(self, paths: Iterable[str]) -> None:
        self._paths = sorted(paths)

    def find_named(self, name: str) -> list[str]:
        """Return the path of that name and all paths in the folder of that name."""
        if not name:
            return list(self._paths)
        return [*self._starting(name, exactly=True), *self._starting(name + "/")]

    def find_fitting(self, pattern: str) -> list[str]:
        """Return the paths that a wildcard fits; ``*`` also stands for ``/``."""
        first = _WILDCARD.search(pattern)
        if first is None:
            return []
        fits = re.compile(fnmatch.translate(pattern)).match
        return [path for path in self._starting(pattern[: first.start()]) if fits(path)]

    def find(self, pattern: str) -> list[str]:
        """Return the paths that a pattern means: by name, or else by wildcard."""
        return self.find_named(pattern) or self.find_fitting(pattern)

    def _starting(self, prefix: str, *, exactly: bool = False) -> Iterator[str]:
        found = bisect_left(self._paths, prefix)
        following = (self._paths[index] for index in range(found, len(self._paths)))
        if exactly:
            return takewhile(prefix.__eq__, following)
        return takewhile(lambda path: path.startswith(prefix), following)


def select_paths(patterns: Sequence[str], paths: Iterable[str]) -> list[str]:
    """Return the paths that patterns name, in the order given; all of them without a pattern."""
    paths = list(paths)
    if not patterns:
        return paths
    table, wanted = PathTable(paths), set[str]()
    for pattern in dict.fromkeys(patterns):
        matches = table.find(pattern)
        if not matches and pattern:
            raise NotFoundError(
                f"path {pattern!r} matches no file", hint='"mvc ls" lists what is tracked'
            )
        wanted.update(matches)
    return [path for path in paths if path in wanted]


def filter_paths(patterns: Sequence[str], paths: Iterable[str]) -> list[str]:
    """Return the sorted paths that patterns may mean, by name or wildcard; all without a pattern.

    Other than ``select_paths`` it accepts patterns that name nothing: in a comparison of two
    commits a path need not be in either.
    """
    if not patterns:
        return sorted(paths)
    table = PathTable(paths)
    return sorted(
        {
            path
            for pattern in dict.fromkeys(patterns)
            for path in (*table.find_named(pattern), *table.find_fitting(pattern))
        }
    )


def list_paths(paths: Sequence[str], limit: int) -> str:
    """Return the first of some paths as messages name them, and how many more there are."""
    shown, more = ", ".join(map(repr, paths[:limit])), len(paths) - limit
    return shown if more <= 0 else f"{shown} and {more:,} more"
