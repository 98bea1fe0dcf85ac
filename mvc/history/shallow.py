"""Where a shallow history ends: ``.mvc/shallow``, as Git keeps it.

The commits that it lists count as having no parents, for every walk; what is behind them need not be here.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING

from mvc import fs
from mvc.errors import FormatError
from mvc.history.object_formats import parse_commit
from mvc.ids import GitId, is_git_id

if TYPE_CHECKING:
    from pathlib import Path

FILE_NAME = "shallow"
_MAX_BYTES = 2**26


def read_shallow(git_dir: Path) -> frozenset[GitId]:
    """Return the commits at which the history ends; none if it is whole."""
    try:
        with fs.open_file(git_dir / FILE_NAME) as file:
            lines = file.read(_MAX_BYTES + 1).decode("ascii", "replace").split()
    except FileNotFoundError:
        return frozenset()
    if not all(map(is_git_id, lines)):
        raise FormatError(f"{git_dir / FILE_NAME} lists something other than commits")
    return frozenset(map(GitId, lines))


def write_shallow(git_dir: Path, ends: Collection[GitId]) -> None:
    """Let the history end at some commits, durably; at none: it is whole."""
    if ends:
        fs.write_durable(git_dir / FILE_NAME, [f"{commit}\n".encode() for commit in sorted(ends)])
    else:
        fs.remove_file(git_dir / FILE_NAME)


def find_ends(
    read: Callable[[GitId], bytes], tips: Iterable[GitId], depth: int, visible: Iterable[GitId]
) -> frozenset[GitId]:
    """Return where a history ends that keeps ``tips``, ``depth`` commits deep, and all that is ``visible`` now.

    A tip is one deep; ``read`` returns the content of a commit.
    """
    parents: dict[GitId, tuple[GitId, ...]] = {}

    def see(commit: GitId) -> tuple[GitId, ...]:
        if commit not in parents:
            parents[commit] = parse_commit(commit, read(commit)).parents
        return parents[commit]

    for commit in visible:
        see(commit)
    level, reached = set(tips), set[GitId]()
    for _ in range(depth):
        reached |= level
        level = {parent for commit in level for parent in see(commit)} - reached
        if not level:
            break
    return frozenset(
        commit for commit, above in parents.items() if not parents.keys() >= set(above)
    )
