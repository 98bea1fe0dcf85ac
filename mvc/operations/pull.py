"""pull: fetch, and merge what the current branch follows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from mvc.errors import UsageError
from mvc.operations.fetch import FetchResult, fetch
from mvc.operations.merge import merge, name_target
from mvc.remotes.tracking import find_upstream

if TYPE_CHECKING:
    from mvc.operations.merge import FastForward, MergeResult
    from mvc.workspace.context import Context


@dataclass(frozen=True, slots=True)
class PullResult:
    """What a pull did: what came, and what became of the current branch."""

    fetched: FetchResult
    merged: MergeResult


def pull(
    context: Context,
    remote: str | None = None,
    branch: str | None = None,
    *,
    fast_forward: FastForward = "allowed",
    limit_bytes_s: int | None = None,
) -> PullResult:
    """Fetch, and merge what the current branch follows (or ``branch`` of ``remote``).

    Raises:
        UsageError: the current branch follows nothing.
        ConflictError: as of ``merge``.
    """
    head = context.history.head()
    current = head.branch
    upstream = find_upstream(context, current)
    if branch is None and upstream is None:
        raise UsageError(
            "the current branch follows none of a remote" if current else "HEAD is on no branch",
            hint='name both, as in "origin main", or push with `set_upstream` first',
        )
    is_upstream = branch is None and upstream is not None and remote in (None, upstream.remote)
    if branch is None and not is_upstream:
        branch = current
    if is_upstream and upstream is not None:
        fetched = fetch(context, upstream.remote, limit_bytes_s=limit_bytes_s)
        revision, source = upstream.ref, upstream.branch
    else:
        fetched = fetch(context, remote, [branch or ""], limit_bytes_s=limit_bytes_s)
        revision, source = str(fetched.refs[0].new), branch or ""
    message = f"Merge branch '{source}' of {fetched.url}{name_target(head)}"
    merged = merge(context, revision, message=message, fast_forward=fast_forward)
    return PullResult(fetched, merged)
