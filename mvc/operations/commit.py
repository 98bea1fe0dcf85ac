"""commit: index → tree → commit → ref, by compare-and-swap; no tensor byte moves."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from mvc.errors import ConflictError, UsageError
from mvc.history.messages import format_message, parse_trailers
from mvc.history.revisions import STEP_TRAILER
from mvc.history.values import CommitInfo, Head, Identity, Index, Stamp, TreeEntry
from mvc.operations.aftercare import keeps_up, stores_deltas
from mvc.workspace.commits import CommitResult, new_message, record, summarise
from mvc.workspace.context import Context, holds_sweep_lock
from mvc.workspace.pending import Pending, check_decided, find_pending
from mvc.workspace.recovery import recover
from mvc.workspace.trailers import FACT_TRAILERS, Annotations

if TYPE_CHECKING:
    from mvc.ids import GitId
    from mvc.operations.add import AddResult
    from mvc.workspace.worktree import Paths


@keeps_up
@stores_deltas
@holds_sweep_lock
def commit(
    context: Context,
    message: str | None = None,
    *,
    paths: Paths = (),
    everything: bool = False,
    amend: bool = False,
    allow_empty: bool = False,
    step: int | None = None,
    metrics: Mapping[str, float] | None = None,
    meta: Mapping[str, str] | None = None,
    author: Identity | None = None,
    time_s: int | None = None,
    delta: bool | None = None,
    no_gate: bool = False,
) -> CommitResult:
    """Record what is staged as a new commit and move the branch to it.

    Args:
        message: subject, and body after an empty line; optional with ``amend``.
        paths: add these first.
        everything: first add every tracked file that changed.
        amend: replace the last commit. Its author stays, as do step, metrics and meta unless
            given again.
        allow_empty: commit even if nothing changed.
        step: training step; ``main@STEP`` finds the commit by it.
        metrics: name → number, shown by the log.
        meta: name → one line of text.
        author: defaults to ``identity``.
        time_s: when, in seconds since 1970; defaults to now.
        delta: as for ``add``; True also re-encodes what an earlier ``add`` stored whole.
        no_gate: commit even what fails a gate (``gate.nan`` and the like of the settings).

    Raises:
        UsageError: no message, or a step or metric that is not a number.
        GateError: a gate refuses what is staged.
        ConflictError: nothing to commit, or the branch moved meanwhile.
        ReleasedError: the index holds released content that is gone, as after a reset.
    """
    started_s = time.perf_counter()
    recover(context)
    history = context.history
    head = history.head()
    facts = Annotations(step, metrics, meta)
    pending, last, text = _word(context, head, message, facts, amend=amend)
    added = _add(context, paths, everything=everything, delta=delta)
    index = history.read_index()
    staged = index.entries if added is None else added.merge_into(index)
    tree_entries = {path: entry.version for path, entry in staged.items()}
    parents = last.parents if last is not None else () if head.commit is None else (head.commit,)
    base = history.read_tree(parents[0]) if parents else {}
    _check_decided(index, added)
    if pending is not None and pending.kind == "merge":
        parents += pending.heads
    elif tree_entries == base and not allow_empty:
        _check_may_be_empty(context, last, base)
    if context.has_releases:  # few histories have any
        from mvc.workspace.released import check_kept  # noqa: PLC0415

        check_kept(context, tree_entries)
    committer = context.stamp(author, time_s)
    written = _author_stamp(context, last, pending, committer, author, time_s)
    new = record(
        context,
        tree_entries,
        parents,
        text,
        committer=committer,
        author=written,
        replaced=None if last is None else last.id,
        no_gate=no_gate,
    )
    if added is not None:
        added.stage(context)  # only now: a refused commit stages nothing
    verb = "commit (amend)" if amend else "commit" if parents else "commit (initial)"
    _move(context, head, new, verb, text, context.stamp(author), pending)
    warnings = added.warnings if added is not None else ()
    twin = None
    if context.has_releases:
        from mvc.workspace.released import take_back  # noqa: PLC0415  as above

        twin = take_back(context, new, tree_entries)
    return summarise(
        context, new, base, tree_entries, started_s, warnings, branch=head.branch, twin=twin
    )


def _add(
    context: Context, paths: Paths, *, everything: bool, delta: bool | None
) -> AddResult | None:
    if not (paths or everything):
        return None
    # What reads files; a commit of what is staged needs none of it.
    from mvc.operations.add import plan_add, store_planned  # noqa: PLC0415

    plan = plan_add(context, paths or [""], tracked_only=everything and not paths)
    return store_planned(context, plan, delta=delta)


def _move(
    context: Context,
    head: Head,
    new: GitId,
    verb: str,
    text: str,
    stamp: Stamp,
    pending: Pending | None,
) -> None:
    """Move the branch to a new commit; what was under way has ended with that."""
    # Git's own words, so that undo and stock Git read the reflog alike.
    subject = text.lstrip("\n").split("\n", 1)[0]
    if pending is not None:
        from mvc.workspace.journal import Transition, mark_done  # noqa: PLC0415  rarely needed
        from mvc.workspace.transition import plan_head_move, run  # noqa: PLC0415

        words = f"commit ({pending.kind}): {subject}"
        step = Transition(
            head=plan_head_move("move", new, head, words, stamp), marks=mark_done(pending)
        )
        run(context, step, context.history.read_index())
        return
    # Objects are written outside the lock, which may be contended; only the branch moves in it.
    with context.history.lock():
        if context.history.head() != head:
            raise ConflictError("HEAD moved while the commit was made", hint="commit again")
        context.history.update_head(
            new, expected=head.commit, message=f"{verb}: {subject}", stamp=stamp
        )


def _word(
    context: Context, head: Head, message: str | None, facts: Annotations, *, amend: bool
) -> tuple[Pending | None, CommitInfo | None, str]:
    """Return what is under way, the commit to replace, and the text of the new one."""
    pending = find_pending(context)
    if not amend:
        message = pending.message if message is None and pending is not None else message
        return pending, None, new_message(message, facts)
    if head.commit is None:
        raise UsageError("there is no commit to amend")
    if pending is not None:
        raise ConflictError(
            f"a {pending.kind} is under way, and the last commit is not part of it",
            hint=f'"mvc {pending.kind} --continue" finishes it',
        )
    last = context.history.read_commit(head.commit)
    return None, last, _amended_message(last, message, facts)


def _check_decided(index: Index, added: AddResult | None) -> None:
    """Check that nothing is undecided, once what was added is."""
    decided = set() if added is None else {*added.entries(), *added.removed}
    left = {path: versions for path, versions in index.unmerged.items() if path not in decided}
    check_decided(replace(index, unmerged=left))


def _author_stamp(
    context: Context,
    last: CommitInfo | None,
    pending: Pending | None,
    committer: Stamp,
    author: Identity | None,
    time_s: int | None,
) -> Stamp:
    """Return the author's stamp: an amended or picked commit keeps its own unless one is given."""
    original = last
    if original is None and pending is not None and pending.kind == "cherry-pick" and pending.heads:
        original = context.history.read_commit(pending.heads[0])
    if original is None:
        return committer
    kept = Stamp(original.author, original.author_time_s, original.author_timezone_s)
    return replace(kept if time_s is None else committer, identity=author or original.author)


def _check_may_be_empty(
    context: Context, last: CommitInfo | None, base: Mapping[str, TreeEntry]
) -> None:
    """Check that a commit may equal its parent: a merge may, or one that did before the amend."""
    if last is not None:
        if len(last.parents) > 1 or context.history.read_tree(last.tree) == base:
            return
        raise ConflictError(
            "with this amendment the last commit would change nothing",
            hint="take it back with a soft reset to HEAD~1, or keep it with `allow_empty`",
        )
    if not context.history.read_index().entries:
        raise ConflictError("nothing to commit", hint='stage files with "mvc add" first')
    raise ConflictError(
        "nothing to commit: the index equals the last commit",
        hint='stage changes with "mvc add", or commit all tracked files',
    )


def _amended_message(last: CommitInfo, message: str | None, annotations: Annotations) -> str:
    """Return the text of a commit that replaces ``last``.

    To the user, step, metrics and meta are not part of the message: they stay unless given again.
    Without a new message all of the old text stays, other trailers too.
    """
    given = annotations.trailers()
    if message is None and not given:
        return last.message
    names = {_fact_name(pair) for pair in given}
    kept = [pair for pair in parse_trailers(last.message) if _fact_name(pair) not in names]
    if message is not None:
        facts = [pair for pair in kept if pair[0] in FACT_TRAILERS]
        return new_message(message, annotations, facts)
    body = last.subject + ("\n\n" + last.body if last.body else "")
    return format_message(body, [*kept, *given])


def _fact_name(trailer: tuple[str, str]) -> tuple[str, str]:
    key, value = trailer
    return key, "" if key == STEP_TRAILER else value.partition("=")[0]
