"""check-ignore: which rule of ``.mvcignore`` keeps a path from being added."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from mvc.history.ignore import IgnoreRule, IgnoreRules
from mvc.workspace.worktree import find_file_stat, relative_paths

if TYPE_CHECKING:
    from mvc.workspace.context import Context
    from mvc.workspace.worktree import StrPath


def check_ignore(context: Context, paths: Sequence[StrPath]) -> list[IgnoreRule | None]:
    """Return for each path the rule of ``.mvcignore`` that keeps it from being added, or None.

    Args:
        paths: files, and folders, whose names end with ``/`` if they do not exist.

    Raises:
        FormatError: a ``.mvcignore`` is too long or has a pattern that would take too long.
    """
    tracked = context.history.read_index().entries
    rules = IgnoreRules(context.worktree)
    found = []
    for path, given in zip(relative_paths(context, paths), paths, strict=True):
        stat = find_file_stat(context.worktree, path)
        is_dir = os.fspath(given).endswith("/") or (stat is not None and stat.is_directory)
        found.append(None if path in tracked else rules.find_rule(path, is_dir))
    return found
