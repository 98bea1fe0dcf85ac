"""A commit whose writer ended before it could say so is found on its branch."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from mvc import MvcError, Repo
from mvc_hooks.writer.messages import Answer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mvc_hooks.writer.messages import Commit

_MOST_IN_FLIGHT = 64


def recall_commit(
    worktree: str,
    request: Commit,
    tip: str | None,
    facts: Mapping[str, str],
    *,
    on_store: bool = False,
) -> Answer | None:
    """Look for the commit of a lost writer on its branch; return the answer that is owed, or None.

    A writer may die after the commit and before its answer. The commit is recognised by step and
    subject, by ``facts`` that it records (down to the duration of the stall, if they are known), and
    by the tip that it follows: "" for no commit, None if that is not known. A rank that has only a store in
    common with rank 0 looks ``on_store``.
    """
    # As after any crash, the first command on the repository finishes a commit that was begun.
    with contextlib.suppress(MvcError, OSError):
        repo = Repo.open(worktree)
        repo.status(untracked=False)
        store = repo.config().get("mvc.store") if on_store else None
        if store is not None:
            repo.fetch(store, content=False)
        ref = f"refs/{'heads' if store is None else f'remotes/{store}'}/{request.branch}"
        for entry in repo.log(ref, first_parent=True, limit=_MOST_IN_FLIGHT):
            if entry.info.id == tip:
                return None
            meta, parent = dict(entry.annotations.meta or {}), "".join(entry.info.parents[:1])
            if (
                entry.annotations.step == request.step
                and entry.info.message.split("\n", 1)[0] == request.message.split("\n", 1)[0]
                # Git may have broken the lines of a trailer elsewhere.
                and all(
                    name in meta and meta[name].split() == text.split()
                    for name, text in facts.items()
                )
                and tip in (None, parent)
            ):
                return Answer(
                    request.number,
                    entry.info.id,
                    write_s=float(meta.get("write_s", "0")),
                    written_bytes=int(meta.get("written_bytes", "0")),
                    plain_bytes=sum(size for _, size in request.places.values()),
                    failed_gates=entry.failed_gates,
                    agreement=entry.agreement,
                )
    return None
