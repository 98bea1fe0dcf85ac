"""Before a verb looks at the worktree: is there a checkout to finish?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mvc.fs import find_stat
from mvc.workspace.context import JOURNAL_NAME

if TYPE_CHECKING:
    from mvc.workspace.context import Context


def recover(context: Context) -> bool:
    """Finish a checkout that a crash interrupted; return whether there was one."""
    if find_stat(context.git_dir / JOURNAL_NAME) is None:
        return False
    from mvc.workspace.transition import finish  # noqa: PLC0415  heavy, and rarely needed

    return finish(context)
