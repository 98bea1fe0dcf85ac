"""A branch goes on to where it is on the store that has the content: another machine has committed to it.

Nothing that is only here is left: if both have moved on, that is a conflict, unless the store has what is
here under another name, as after a rollback elsewhere. Files of a training state are not written to the
worktree, unless they are there already.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from mvc.errors import ConflictError
from mvc.history.names import HEADS, REMOTES
from mvc.history.notes import read_notes
from mvc.operations.commit_state import find_place
from mvc.operations.fetch import fetch
from mvc.operations.send_share import bring_commit, follow_store, open_common
from mvc.remotes.history import bring_history
from mvc.remotes.root import Root
from mvc.scaling.results import RESULTS
from mvc.workspace.checkout_plan import execute, plan_checkout
from mvc.workspace.context import STORE, Context, holds_sweep_lock
from mvc.workspace.journal import EntryChange
from mvc.workspace.recovery import recover
from mvc.workspace.state_files import find_state_files
from mvc.workspace.transition import plan_head_move
from mvc.workspace.verdicts import HEALTH_MARKS

if TYPE_CHECKING:
    from typing import Any

    from mvc.history.values import Head
    from mvc.ids import GitId
    from mvc.workspace.notebook import NoteKind


@holds_sweep_lock
def catch_up(context: Context, branch: str) -> str | None:
    """Move a branch to where it is on the store that has the content (``mvc.store``), if that is further.

    Its content comes when it is read. Of a branch that has moved elsewhere, as a rollback moves it,
    nothing is lost either: the store has what it left.

    Returns:
        The commit that the branch is at now, or None: it was there already, or there is no store.

    Raises:
        ConflictError: the branch has commits here that the store lacks, and others there; or files of
            the worktree are in the way.
        StorageError: the store cannot be reached.
    """
    history = context.history
    store = history.config.get(STORE)
    if store is None:
        return None
    recover(context)
    new, place = follow_store(context, branch), find_place(context, branch)
    for kind in (HEALTH_MARKS, RESULTS):
        _take_notes(context, kind)
    old = place.tip
    if new is None or new == old or (old is not None and history.is_ancestor(new, old)):
        return None
    if old is not None and not history.is_ancestor(old, new):
        _check_kept(context, store, branch, old, new)
    bring_commit(context, new)
    text = f"catch up: {branch} of {store}"
    if place.is_current:
        _move_head(context, place.head, new, text)
    else:
        ref = f"{HEADS}{branch}"
        history.update_ref(ref, new, expected=old, message=text, stamp=context.stamp())
    return new


def _take_notes(context: Context, kind: NoteKind[Any]) -> None:
    """Take over the notes of a kind that are on the store, under those that are only here."""
    there, history = open_common(context), context.history
    root = there.roots.read() or Root()
    theirs, ours = root.refs.get(kind.ref), history.find_ref(kind.ref)
    has_theirs = theirs is not None and history.has_object(theirs)
    if theirs is None or (ours is not None and has_theirs and history.is_ancestor(theirs, ours)):
        return
    here = [] if ours is None else [ours]
    bring_history(context, there, there.roots.read_listing(root).history, [theirs], here)
    notes = context.notebook(kind)
    with history.lock():
        mine = {commit: notes.find_paragraphs(commit) for commit in read_notes(history, kind.ref)}
        stamp = context.stamp()
        history.update_ref(kind.ref, theirs, expected=ours, message="catch up", stamp=stamp)
        more: dict[GitId, list[str]] = {}
        for commit, paragraphs in mine.items():
            known = notes.find_paragraphs(commit)
            if not set(paragraphs) <= set(known):
                more[commit] = [*known, *(text for text in paragraphs if text not in known)]
        if more:
            notes.write(more, message="marks of this machine", stamp=stamp)


def _check_kept(context: Context, store: str, branch: str, old: GitId, new: GitId) -> None:
    """Check that the store has what the branch was at here."""
    history = context.history
    fetch(context, store, content=False)
    theirs = history.list_refs(f"{REMOTES}{store}/").values()
    if not any(history.is_ancestor(old, tip) for tip in theirs):
        raise ConflictError(
            f"branch {branch!r} is at {old[:10]} here, which the store {store!r} does not have, and at "
            f"{new[:10]} there",
            hint='"mvc log --graph --all" shows both; go on with "mvc merge", or on another branch',
        )


def _move_head(context: Context, head: Head, new: GitId, text: str) -> None:
    """Take the current branch, index and worktree to a commit."""
    index = context.history.read_index()
    base = {} if head.commit is None else context.history.read_tree(head.commit)
    target = context.history.read_tree(new)
    state = find_state_files(context, base) | find_state_files(context, target)
    quiet = {path for path in state if path not in index.entries or path in index.asleep}
    plan = plan_checkout(
        context,
        index,
        {path: entry for path, entry in base.items() if path not in quiet},
        {path: entry for path, entry in target.items() if path not in quiet},
        materialise=False,
    )
    plan.check('commit them, or "mvc stash" them away')
    changes = [
        EntryChange(path, target[path].mode, target[path].blob, skip_worktree=True)
        if path in target
        else EntryChange(path)
        for path in sorted(quiet)
    ]
    plan = replace(plan, entries=(*plan.entries, *changes))
    move = plan_head_move("move", new, head, text, context.stamp())
    execute(context, plan, index, move, source=new)
