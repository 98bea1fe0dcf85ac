"""Where a rollback goes: the ways to name the target, and which commits qualify.

A branch goes back along its first parents, newest commit first; only a commit that was named may be
any ancestor. Commits whose content was released are skipped, and a named one is refused: what
cannot be restored is not a place to go back to.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

from mvc.errors import ConflictError, NotFoundError, UsageError
from mvc.workspace.health import read_failed
from mvc.workspace.manifests import is_complete
from mvc.workspace.released import check_content
from mvc.workspace.releases import find_release
from mvc.workspace.trailers import read_annotations
from mvc.workspace.verdicts import HEALTH_MARKS, first_parents

if TYPE_CHECKING:
    from mvc.history.values import CommitInfo
    from mvc.ids import GitId
    from mvc.workspace.context import Context

ROLLBACK_COMMAND = "mvc rollback {}"
SHORT_ID = 10
_TARGET_HINT = 'name one, or give `step` or `steps_back`; "mvc log" lists the commits'


@dataclass(frozen=True, slots=True)
class BranchLine:
    """A branch that is to go back. What finds a target also returns in words what it is."""

    context: Context
    name: str
    tip: CommitInfo

    @classmethod
    def find(cls, context: Context, branch: str | None) -> BranchLine:
        """Return a branch; defaults to the current one."""
        history = context.history
        head = history.head()
        name = head.branch if branch is None else branch
        if name is None:
            raise UsageError(
                "HEAD is not on a branch, and a rollback moves one", hint="name it with `branch`"
            )
        if name == head.branch and head.commit is None:
            raise NotFoundError(f"branch {name!r} has no commit yet")
        return cls(context, name, history.read_commit(history.get_branch(name)))

    def find_ancestor(self, revision: str) -> tuple[CommitInfo, str]:
        """Return the commit that a revision names: an ancestor that still has its content."""
        history = self.context.history
        target = history.read_commit(history.resolve_commit(revision))
        if not history.is_ancestor(target.id, self.tip.id):
            raise ConflictError(
                f"{revision!r} is commit {target.id[:SHORT_ID]} {target.subject!r}, "
                f"which is not an ancestor of branch {self.name!r}",
                hint=f'"mvc log {self.name}" lists where it can go back to',
            )
        check_whole(self.context, target.id)
        return target, revision

    def find_healthy(self) -> tuple[CommitInfo, str]:
        """Return the newest healthy commit below the tip."""
        marks = self.context.notebook(HEALTH_MARKS).open()
        below = islice(self._commits(), 1, None) if marks is not None else ()
        skipped = 0
        for info in below:
            if marks is None or marks.find(info.id) is None or read_failed(info.trailers):
                continue
            if _is_whole(self.context, info.id):
                return info, f"the newest healthy commit below the tip{_note_skipped(skipped)}"
            skipped += 1
        raise NotFoundError(
            f"no commit below the tip of branch {self.name!r} is marked as healthy"
            f"{_note_skipped(skipped)}",
            hint=_TARGET_HINT,
        )

    def find_step(self, step: int) -> tuple[CommitInfo, str]:
        """Return the commit of a step, or else the newest before it."""
        found, skipped = self._find_until(step, exactly=True)
        what = "commit of" if read_annotations(found).step == step else "newest commit up to"
        return found, f"the {what} step {step:,}{_note_skipped(skipped)}"

    def find_back(self, steps: int) -> tuple[CommitInfo, str]:
        """Return the newest commit at least that many steps before the tip."""
        last = read_annotations(self.tip).step
        if last is None:
            raise NotFoundError(
                f"the tip of branch {self.name!r} has no step to count back from", hint=_TARGET_HINT
            )
        found, skipped = self._find_until(last - steps, exactly=False)
        text = f"the newest commit at least {steps:,} steps before the tip's step {last:,}"
        return found, text + _note_skipped(skipped)

    def _find_until(self, step: int, *, exactly: bool) -> tuple[CommitInfo, int]:
        """Return the newest whole commit of a step, or else up to it, and how many were skipped.

        A branch that started counting again has a step twice; the newest commit is meant.
        ``exactly`` prefers an older commit of just that step to a newer one below it.
        """
        nearest, skipped = None, 0
        for info in self._commits():
            other = read_annotations(info).step
            if other is None or other > step or (nearest is not None and other < step):
                continue
            if not _is_whole(self.context, info.id):
                skipped += 1
            elif other == step or not exactly:
                return info, skipped
            else:
                nearest = info
        if nearest is None:
            raise NotFoundError(
                f"branch {self.name!r} has no commit up to step {step:,}{_note_skipped(skipped)}",
                hint=_TARGET_HINT,
            )
        return nearest, skipped

    def count_left(self, target: CommitInfo) -> int:
        """Return how many commits the tip reaches and the target does not."""
        for number, info in enumerate(self._commits()):
            if info.id == target.id:
                return number
            if len(info.parents) > 1:
                break  # the other side of a merge counts too
        walk = self.context.history.walk
        kept = {info.id for info in walk([target.id])}
        return sum(info.id not in kept for info in walk([self.tip.id]))

    def _commits(self) -> Iterator[CommitInfo]:
        return first_parents(self.context, self.tip)


def _note_skipped(count: int) -> str:
    return f", {count:,} skipped whose content was released" if count else ""


def _is_whole(context: Context, commit: GitId) -> bool:
    """Return whether all content of a commit is there, as far as any was ever released."""
    if find_release(context, commit) is None:
        return True
    tree = context.history.read_tree(commit)
    return all(is_complete(context, entry.blob) for entry in tree.values())


def check_whole(context: Context, commit: GitId) -> None:
    """Check that no content of a commit was released, or that it came back."""
    tree = context.history.read_tree(commit)
    versions = [(path, entry.blob) for path, entry in tree.items()]
    check_content(context, versions, commit=commit, command=ROLLBACK_COMMAND)
