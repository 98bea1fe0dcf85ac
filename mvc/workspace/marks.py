"""The marks that a transition leaves beside HEAD: what is under way, and that it has ended."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mvc.workspace.journal import MARKS, Mark
from mvc.workspace.pending import HEADS, MESSAGE, OPTIONS, ORIGIN, STEPS, TODO

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mvc.ids import GitId
    from mvc.workspace.pending import Pending

_ORIG_HEAD = "ORIG_HEAD"
ENDED = tuple(Mark(name) for name in MARKS if name != _ORIG_HEAD)
"""Removes all marks: nothing is under way any more."""


def make_marks(
    pending: Pending, head: GitId | None, conflicts: Sequence[str] = ()
) -> tuple[Mark, ...]:
    """Return the marks that say what is under way; the message names the paths in conflict."""
    lines = "".join(f"#\t{path}\n" for path in conflicts)
    notes = f"\n# Conflicts:\n{lines}" if lines else ""
    sequence = _sequence(pending, [*pending.heads, *pending.rest]) if pending.rest else {}
    texts = {
        HEADS[pending.kind]: "".join(f"{one}\n" for one in pending.heads),
        MESSAGE: pending.message.rstrip("\n") + "\n" + notes,
        **sequence,
    }
    return _make(texts) + mark_origin(head)


def mark_done(pending: Pending) -> tuple[Mark, ...]:
    """Return the marks once the commit is made: of a sequence, what is left to do."""
    return _make(_sequence(pending, pending.rest)) if pending.rest else ENDED


def mark_origin(head: GitId | None) -> tuple[Mark, ...]:
    """Return the mark of where HEAD was before."""
    return () if head is None else (_make_mark(_ORIG_HEAD, f"{head}\n"),)


def _sequence(pending: Pending, commits: Sequence[GitId]) -> dict[str, str]:
    options = "".join(f"\t{key} = {value}\n" for key, value in pending.options.items())
    step = STEPS[pending.kind]
    return {
        TODO: "".join(f"{step} {one}\n" for one in commits),
        ORIGIN: f"{pending.origin}\n",
        **({OPTIONS: f"[options]\n{options}"} if options else {}),
    }


def _make(texts: Mapping[str, str]) -> tuple[Mark, ...]:
    """Return marks with these texts; all others go."""
    made = tuple(_make_mark(name, text) for name, text in texts.items())
    return tuple(mark for mark in ENDED if mark.name not in texts) + made


def _make_mark(name: str, text: str) -> Mark:
    return Mark(name, text.encode("utf-8", "surrogateescape").decode("latin-1"))
