"""The marks that a transition leaves beside HEAD: what is under way, and that it has ended."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mvc.workspace.journal import MARKS, Mark
from mvc.workspace.pending import HEADS, MESSAGE, TODO

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mvc.ids import GitId
    from mvc.workspace.pending import Kind, Pending

_ORIG_HEAD = "ORIG_HEAD"
_STEP: dict[Kind, str] = {"merge": "merge", "cherry-pick": "pick", "revert": "revert"}
ENDED = tuple(Mark(name) for name in MARKS if name != _ORIG_HEAD)
"""Removes all marks: nothing is under way any more."""


def make_marks(
    pending: Pending, head: GitId | None, conflicts: Sequence[str] = ()
) -> tuple[Mark, ...]:
    """Return the marks that say what is under way; the message names the paths in conflict."""
    lines = "".join(f"#\t{path}\n" for path in conflicts)
    notes = f"\n# Conflicts:\n{lines}" if lines else ""
    step = _STEP[pending.kind]
    todo = "".join(f"{step} {one}\n" for one in (*pending.heads, *pending.rest))
    name = HEADS[pending.kind]
    return (
        *(mark for mark in ENDED if mark.name not in (name, MESSAGE, TODO)),
        _make_mark(name, "".join(f"{one}\n" for one in pending.heads)),
        _make_mark(MESSAGE, pending.message.rstrip("\n") + "\n" + notes),
        _make_mark(TODO, todo) if pending.rest else Mark(TODO),
        *mark_origin(head),
    )


def mark_origin(head: GitId | None) -> tuple[Mark, ...]:
    """Return the mark of where HEAD was before."""
    return () if head is None else (_make_mark(_ORIG_HEAD, f"{head}\n"),)


def _make_mark(name: str, text: str) -> Mark:
    return Mark(name, text.encode("utf-8", "surrogateescape").decode("latin-1"))
