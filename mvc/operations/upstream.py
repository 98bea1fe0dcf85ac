"""What is known here of remotes: which there are, and what branches follow. Nothing is asked of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mvc.remotes import tracking

if TYPE_CHECKING:
    from mvc.remotes.settings import RemoteSettings
    from mvc.remotes.tracking import Upstream
    from mvc.workspace.context import Context


def list_remotes(context: Context) -> dict[str, RemoteSettings]:
    """Return name → settings of all remotes.

    Raises:
        UsageError: the config says what cannot be used.
    """
    from mvc.remotes import settings  # noqa: PLC0415  what a branch follows needs none

    return settings.list_remotes(context)


def upstream(context: Context, branch: str | None = None) -> Upstream | None:
    """Return what a branch (by default the current one) follows, as last heard of, or None.

    Raises:
        UsageError: the config says what cannot be used.
    """
    return tracking.find_upstream(context, branch or context.history.head().branch)


def set_upstream(
    context: Context, branch: str, remote: str | None, target: str | None = None
) -> None:
    """Let a branch follow one of a remote, of the same name unless ``target`` says another.

    Args:
        branch: a branch here.
        remote: name of a remote, or a branch of one as it is known here, such as
            ``origin/main``; None to follow none.
        target: the branch there.

    Raises:
        NotFoundError: there is no such branch or remote.
    """
    if branch != context.history.head().branch:
        context.history.get_branch(branch)
    if remote is None:
        tracking.unset_upstream(context, branch)
    elif target is not None or not tracking.follow(context, branch, remote):
        from mvc.remotes.remote import open_remote  # noqa: PLC0415  whoever only asks needs none

        open_remote(context, remote)
        tracking.set_upstream(context, branch, remote, target or branch)
