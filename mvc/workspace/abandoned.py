"""What is known of commits that a rollback left behind: the cause, and where the branch went.

A Git note below ``refs/notes/diverged`` on the abandoned tip, so that no commit changes its id and
``git log --notes=diverged`` of a stock Git shows it. One paragraph per rollback from there:

    Diverged: loss is NaN
    Branch: main
    At-step: 12345
    Rolled-back-to: 9b1f6c0e8f0f2f0a9f5d6f7b1c0d2e3f4a5b6c7d (step 12000)
    Time: 2026-11-20T16:00:00Z

Paragraphs that begin otherwise are somebody's own and stay as they are. This module is part of
``log`` and loads nothing heavy.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mvc.errors import FormatError
from mvc.ids import GitId
from mvc.workspace.note_text import find_time, one_line, split_paragraphs, time_text

if TYPE_CHECKING:
    from mvc.history.values import Stamp
    from mvc.workspace.context import Context

DIVERGED_REF = "refs/notes/diverged"
MAX_NOTE_BYTES = 2**20
_DIVERGED = "Diverged:"
_TARGET = re.compile(r"([0-9a-f]{40})(?: \(step ([0-9]{1,18})\))?", re.ASCII)
_STEP = re.compile(r"[0-9]{1,18}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Divergence:
    """One rollback, as the commit it left behind tells of it.

    Attributes:
        reason: the cause, one line; empty where none was given.
        branch: the branch that went back; empty where the note does not say.
        target: the commit it went back to, or None where the note does not say.
        target_step: the training step of that commit, or None.
        at_step: the step at which the trouble was seen, or None.
        time_s: when, in seconds since 1970, or None where the note does not say.
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


def parse_note(text: str) -> tuple[Divergence, ...]:
    """Return the rollbacks that a note tells of, oldest first; lines without sense are left out."""
    parts = split_paragraphs(text)
    return tuple(_parse_paragraph(part) for part in parts if part.startswith(_DIVERGED))


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


def read_divergence(context: Context, note: GitId) -> Divergence | None:
    """Return the last rollback that a note (a blob) tells of, or None.

    Raises:
        FormatError: the note is missing, damaged or over the limit.
    """
    found = parse_note(_read_text(context, note))
    return found[-1] if found else None


def add_divergence(
    context: Context, commit: GitId, divergence: Divergence, *, stamp: Stamp
) -> None:
    """Record on an abandoned tip why it was left, durably; what its note says already stays.

    Raises:
        FormatError: the notes that are there are damaged.
    """
    history = context.history
    with history.no_sweep(), history.lock():
        notes = history.find_notes(DIVERGED_REF)
        note = None if notes is None else notes.find(commit)
        before = [] if note is None else _readable_paragraphs(context, note)
        text = "\n\n".join([*before, encode_divergence(divergence)]) + "\n"
        message = f"commit {commit} was left behind"
        history.write_notes(
            DIVERGED_REF,
            {commit: text.encode("utf-8", "surrogateescape")},
            message=message,
            stamp=stamp,
        )


def _readable_paragraphs(context: Context, note: GitId) -> list[str]:
    try:
        return split_paragraphs(_read_text(context, note))
    except FormatError:
        return []  # a note that nobody can read shall not keep a training from going back


def _read_text(context: Context, note: GitId) -> str:
    size_bytes = context.history.find_blob_size(note)
    if size_bytes is None or size_bytes > MAX_NOTE_BYTES:
        raise FormatError(f"note {note} is missing or over the limit")
    return context.history.read_blob(note).decode("utf-8", "surrogateescape")
