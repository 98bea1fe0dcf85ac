"""Before a verb looks at the worktree: is there a checkout to finish?"""

from __future__ import annotations

from mvc.errors import ConflictError
from mvc.fs import find_stat
from mvc.workspace.context import JOURNAL_NAME, Context


def recover(context: Context, *, dry_run: bool = False) -> bool:
    """Finish a checkout that a crash interrupted; return whether there was one.

    A dry run, which may not, raises ConflictError.
    """
    if not is_interrupted(context):
        return False
    if dry_run:
        raise ConflictError(
            "a checkout was interrupted, and what would be done depends on its end",
            hint='"mvc status" finishes it',
        )
    from mvc.workspace.transition import finish  # noqa: PLC0415  heavy, and rarely needed

    return finish(context)


def is_interrupted(context: Context) -> bool:
    """Tell whether a checkout waits to be finished."""
    return find_stat(context.git_dir / JOURNAL_NAME) is not None
