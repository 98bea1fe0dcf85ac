"""Notes on commits that say how the training went: health marks and divergence notes.

A health mark is a note below ``refs/notes/healthy``: the training went on well for a while after it.

    Healthy: 2026-11-20T16:00:00Z
    Note: 200 steps without alarm

Any note there makes its commit healthy, whatever it says. Divergence notes are below
``refs/notes/diverged`` on the tip that a rollback abandoned: why it did, and where the branch went.
A note has one paragraph per rollback:

    Diverged: loss is NaN
    Branch: main
    At-step: 12345
    Rolled-back-to: 9b1f6c0e8f0f2f0a9f5d6f7b1c0d2e3f4a5b6c7d (step 12000)
    Time: 2026-11-20T16:00:00Z

This module is part of ``log`` and loads nothing heavy.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mvc.errors import ConflictError, FormatError
from mvc.ids import GitId
from mvc.workspace.context import Context, holds_sweep_lock
from mvc.workspace.notebook import NoteKind, find_time, one_line, split_paragraphs, time_text
from mvc.workspace.trailers import read_agreement

if TYPE_CHECKING:
    from mvc.history.values import CommitInfo, Stamp

HEALTHY_REF = "refs/notes/healthy"
DIVERGED_REF = "refs/notes/diverged"
_DIVERGED = "Diverged:"
_TARGET = re.compile(r"([0-9a-f]{40})(?: \(step ([0-9]{1,18})\))?", re.ASCII)
_STEP = re.compile(r"[0-9]{1,18}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Divergence:
    """One rollback, as recorded on the commit that it abandoned.

    Attributes:
        reason: the cause, on one line; empty if none was given.
        branch: the branch that was rolled back; empty if the note does not say.
        target: the commit it was rolled back to, or None if the note does not say.
        target_step: the training step of that commit, or None.
        at_step: the step at which the trouble was seen, or None.
        time_s: when, in seconds since 1970, or None if the note does not say.
    """

    reason: str
    branch: str = ""
    target: GitId | None = None
    target_step: int | None = None
    at_step: int | None = None
    time_s: int | None = None


def encode_divergence(divergence: Divergence) -> str:
    """Return the paragraph of one rollback."""
    lines = [f"{_DIVERGED} {one_line(divergence.reason)}".rstrip()]
    if divergence.branch:
        lines.append(f"Branch: {divergence.branch}")
    if divergence.at_step is not None:
        lines.append(f"At-step: {divergence.at_step}")
    if divergence.target is not None:
        step = divergence.target_step
        lines.append(
            f"Rolled-back-to: {divergence.target}{'' if step is None else f' (step {step})'}"
        )
    if divergence.time_s is not None:
        lines.append(f"Time: {time_text(divergence.time_s)}")
    return "\n".join(lines)


def parse_divergences(_commit: GitId, text: str) -> tuple[Divergence, ...]:
    """Return the rollbacks in a note, oldest first; lines that make no sense are left out."""
    parts = split_paragraphs(text)
    return tuple(_parse_paragraph(part) for part in parts if part.startswith(_DIVERGED))


DIVERGENCES = NoteKind(DIVERGED_REF, "divergence note", parse_divergences)


def _parse_paragraph(paragraph: str) -> Divergence:
    first, *lines = paragraph.split("\n")
    fields = {key: value.strip() for key, _, value in (line.partition(":") for line in lines)}
    target = _TARGET.fullmatch(fields.get("Rolled-back-to", ""))
    at_step = fields.get("At-step", "")
    return Divergence(
        reason=one_line(first.removeprefix(_DIVERGED)),
        branch=one_line(fields.get("Branch", "")),
        target=GitId(target[1]) if target else None,
        target_step=int(target[2]) if target and target[2] else None,
        at_step=int(at_step) if _STEP.fullmatch(at_step) else None,
        time_s=find_time(fields.get("Time", "")),
    )


def add_divergence(
    context: Context, commit: GitId, divergence: Divergence, *, stamp: Stamp
) -> None:
    """Record on an abandoned tip why it was left, durably; what its note says already stays."""
    notes = context.notebook(DIVERGENCES)
    with context.history.no_sweep(), context.history.lock():
        try:
            before = notes.find_paragraphs(commit)
        except FormatError:
            before = []  # an unreadable note must not keep a training from going back
        paragraphs = [*before, encode_divergence(divergence)]
        # The message is part of the format of repositories: it stays as it is.
        notes.write({commit: paragraphs}, message=f"commit {commit} was left behind", stamp=stamp)


HEALTH_MARKS: NoteKind[None] = NoteKind(HEALTHY_REF, "health mark", lambda _commit, _text: ())


@holds_sweep_lock
def mark_healthy(context: Context, revision: str, *, note: str = "") -> None:
    """Mark a commit as one that a rollback may return to; the commit itself does not change.

    Args:
        revision: which commit; a mark that it already has stays.
        note: a remark, on one line.

    Raises:
        NotFoundError: no such revision.
        ConflictError: two ranks of its run held different bytes (``agreement`` of its log entry).
        FormatError: the existing marks are damaged.
    """
    commit = context.history.resolve_commit(revision)
    agreement = read_agreement(context.history.read_commit(commit).trailers)
    if agreement is not None and agreement.differed:
        raise ConflictError(
            f"commit {commit[:10]} cannot be marked as healthy: {agreement}",
            hint="its ranks held different bytes, and one of them is wrong",
        )
    marks = context.notebook(HEALTH_MARKS)
    with context.history.lock():
        if marks.find_note(commit) is not None:
            return
        remark = one_line(note)
        lines = [
            f"Healthy: {time_text(int(time.time()))}",
            *([f"Note: {remark}"] if remark else []),
        ]
        marks.write(
            {commit: ["\n".join(lines)]},
            message=f"commit {commit} is healthy",
            stamp=context.stamp(),
        )


def healthy_commits(context: Context, branch: str | None = None) -> tuple[GitId, ...]:
    """Return the healthy commits of a branch along first parents, newest first.

    Args:
        branch: defaults to HEAD.

    Raises:
        NotFoundError: no such branch.
        FormatError: the history or its marks are damaged.
    """
    history = context.history
    tip = history.head().commit if branch is None else history.get_branch(branch)
    marks = context.notebook(HEALTH_MARKS).open()
    if tip is None or marks is None:
        return ()
    line = first_parents(context, history.read_commit(tip))
    return tuple(info.id for info in line if marks.find(info.id) is not None)


def first_parents(context: Context, tip: CommitInfo) -> Iterator[CommitInfo]:
    """Yield a commit and its first parents, newest first; reads no further than it is asked."""
    info = tip
    yield info
    while info.parents:
        info = context.history.read_commit(info.parents[0])
        yield info
