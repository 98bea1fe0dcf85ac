"""Whether a writer that died before its answer had made the commit."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from mvc import MvcError, Repo
from mvc_hooks.writer.messages import Answer

if TYPE_CHECKING:
    from mvc_hooks.writer.messages import Commit

_MOST_IN_FLIGHT = 64


def recall_commit(worktree: str, request: Commit, tip: str | None) -> Answer | None:
    """Look for a requested commit on its branch; return the answer that its writer owes, or None.

    The commit is recognised by everything in the request, down to the duration of the stall, and by
    its parent.

    Args:
        worktree: folder of the repository.
        request: the commit that was wanted.
        tip: where the branch was before it: "" for no commit, None if that is not known.
    """
    # As after any crash, the first command on the repository finishes a commit that was begun.
    with contextlib.suppress(MvcError, OSError):
        repo = Repo.open(worktree)
        repo.status(untracked=False)
        ref = f"refs/heads/{request.branch}"
        for entry in repo.log(ref, first_parent=True, limit=_MOST_IN_FLIGHT):
            if entry.info.id == tip:
                return None
            facts = entry.annotations
            meta, parent = dict(facts.meta or {}), "".join(entry.info.parents[:1])
            if (
                facts.step == request.step
                and entry.info.message.split("\n", 1)[0] == request.message.split("\n", 1)[0]
                and all(_is_same(meta.get(name), text) for name, text in request.meta.items())
                and tip in (None, parent)
            ):
                return Answer(
                    request.number,
                    entry.info.id,
                    write_s=float(meta.get("write_s", "0")),
                    written_bytes=int(meta.get("written_bytes", "0")),
                    plain_bytes=sum(size for _, size in request.places.values()),
                )
    return None


def _is_same(stored: str | None, text: str) -> bool:
    """Return whether a trailer has a text; Git may have broken its lines elsewhere."""
    return stored is not None and stored.split() == text.split()
