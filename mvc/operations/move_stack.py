"""The moves of HEAD that can be undone or redone, as the reflog records them.

The log of HEAD is read from its oldest entry on as a stack. A move is pushed. An undo pops it and
sets it aside, a redo pushes it again, and any other move forgets what was set aside. So undo after
undo goes further back, and redo can return as long as nothing else happened. Entries of undo and
redo are recognised by their message, which repeats that of the move.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mvc.history.values import ReflogEntry

_UNDO, REDO = "undo: ", "redo: "
_DETACHED = " (detached)"


def read_stacks(
    entries: Sequence[ReflogEntry],
) -> tuple[list[ReflogEntry], list[tuple[ReflogEntry, ReflogEntry]]]:
    """Return the moves that stand, and (move, its undo) of those that can be redone."""
    done: list[ReflogEntry] = []
    undone: list[tuple[ReflogEntry, ReflogEntry]] = []
    for entry in reversed(entries):
        text = entry.message
        if text.startswith(_UNDO):
            if done and text in undo_texts(done[-1]):
                undone.append((done.pop(), entry))
        elif text.startswith(REDO):
            if undone and text == REDO + undone[-1][0].message:
                done.append(undone.pop()[0])
        else:
            before, after = entry.switch or (entry.old, entry.new)
            if before != after:  # a renamed branch changed nothing, a switch always does
                done.append(entry)
                undone.clear()
    return done, undone


def undo_texts(move: ReflogEntry) -> tuple[str, str]:
    """Return what the undo of a move is called; the second is for an undo that left a detached HEAD."""
    return _UNDO + move.message, _UNDO + move.message + _DETACHED
