"""Whether a commit was made whose writer died before it could say so."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from mvc import MvcError, Repo
from mvc_hooks.writer.messages import Answer

if TYPE_CHECKING:
    from mvc_hooks.writer.messages import Commit

_MOST_IN_FLIGHT = 64


def recall_commit(worktree: str, request: Commit, tip: str | None) -> Answer | None:
    """Look for a requested commit on its branch.

    It is known by everything that the request says of it, down to the duration of the stall, and
    by the commit that it follows.

    Args:
        worktree: folder of the repository.
        request: the commit that was wanted.
        tip: where the branch was before it ("" for no commit); unknown where None.

    Returns:
        The answer that its writer did not give, or None: it was not made, or nobody can tell.
    """
    # A commit that was begun may be finished by whoever comes next, which is here.
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
    """Tell whether a trailer says a text; lines of a trailer may be broken anew."""
    return stored is not None and stored.split() == text.split()
