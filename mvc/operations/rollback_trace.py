"""What goes when a rollback is undone: its branch on the abandoned tip, and its note there.

    undo   the branch is back at the tip ──► the note's paragraph goes ──► the diverged branch goes
    redo   both are made again, as by the rollback ──► the branch leaves the tip

So something names the abandoned tip at every moment. A branch that has moved since, or that
something else made, stays.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mvc.errors import FormatError
from mvc.history.refnames import HEADS
from mvc.operations.rollback import keep_again
from mvc.upkeep.retention import DIVERGED
from mvc.workspace.verdicts import DIVERGED_REF, DIVERGENCES, parse_divergences

if TYPE_CHECKING:
    from mvc.history.values import Stamp
    from mvc.ids import GitId
    from mvc.workspace.context import Context

_ROLLBACK = re.compile(r"rollback: to [0-9a-f]{7,40}(?: \(step [0-9]+\))?(?:: (.*))?")
_UNDONE = re.compile(
    r"the rollback from commit ([0-9a-f]{40}) was undone(?: \(at step ([0-9]{1,18})\))?"
)


@dataclass(frozen=True, slots=True)
class RollbackTrace:
    """A rollback of ``branch`` from ``tip`` to ``target``; ``action`` is its line in the reflog."""

    branch: str
    tip: GitId
    target: GitId
    action: str
    reason: str

    def make(self, context: Context, stamp: Stamp) -> None:
        """Make branch and note again."""
        step = self._find_step(context)
        keep_again(context, self.branch, self.tip, self.target, self.reason, step, stamp)

    def remove(self, context: Context, stamp: Stamp) -> str | None:
        """Remove note and branch; return the branch, or None if it stays."""
        with context.history.lock():
            self._drop_note(context, stamp)
            name = self.find_branch(context)
            if name is not None:
                context.history.delete_ref(HEADS + name, expected=self.tip, stamp=stamp)
        return name

    def find_branch(self, context: Context) -> str | None:
        """Return the branch that this rollback made, if it is still there."""
        refs = context.history.list_refs(f"{HEADS}{DIVERGED}{self.branch}/")
        for ref in (ref for ref, commit in refs.items() if commit == self.tip):
            if [move.message for move in context.history.read_reflog(ref)] == [self.action]:
                return ref.removeprefix(HEADS)
        return None

    def _drop_note(self, context: Context, stamp: Stamp) -> None:
        notes = context.notebook(DIVERGENCES)
        try:
            paragraphs = notes.find_paragraphs(self.tip)
        except FormatError:
            return  # fsck reports it
        for number in reversed(range(len(paragraphs))):
            for one in parse_divergences(self.tip, paragraphs[number]):
                if (one.branch, one.target) == (self.branch, self.target):
                    del paragraphs[number]
                    message = f"the rollback from commit {self.tip} was undone"
                    message += "" if one.at_step is None else f" (at step {one.at_step})"
                    notes.write({self.tip: paragraphs}, message=message, stamp=stamp)
                    return

    def _find_step(self, context: Context) -> int | None:
        """Return the step that the note named: the commit that took the note away says it."""
        commit = context.history.find_ref(DIVERGED_REF)
        while commit is not None:
            info = context.history.read_commit(commit)
            match = _UNDONE.match(info.message)
            if match and match[1] == self.tip:
                return int(match[2]) if match[2] else None
            commit = info.parents[0] if info.parents else None
        return None


def find_trace(branch: str, tip: GitId, target: GitId, action: str) -> RollbackTrace | None:
    """Return the trace of a rollback, or None for any other move."""
    match = _ROLLBACK.fullmatch(action)
    return RollbackTrace(branch, tip, target, action, match[1] or "") if match else None
