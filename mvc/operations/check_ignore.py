"""check-ignore: which rule of ``.mvcignore`` keeps a path from being added."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mvc.history.ignore import IgnoreRules
from mvc.workspace.worktree import find_file_stat

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mvc.history.ignore import IgnoreRule
    from mvc.workspace.context import Context


def check_ignore(context: Context, paths: Sequence[str]) -> list[IgnoreRule | None]:
    """Return for each path the rule that ignores it; None also where it is tracked already.

    Paths need not exist; one that ends with ``/`` is a folder.
    """
    tracked = context.history.read_index().entries
    rules = IgnoreRules(context.worktree)
    found = []
    for path in paths:
        stat = find_file_stat(context.worktree, path.rstrip("/"))
        is_dir = path.endswith("/") or (stat is not None and stat.is_directory)
        found.append(None if path in tracked else rules.find_rule(path, is_dir))
    return found
