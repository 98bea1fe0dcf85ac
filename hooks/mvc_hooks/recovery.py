"""What is done about an alarm: another learning rate, a rollback, or the end of the run.

    alarm ──► all commits durable ──► what diverged is frozen
          ──► the newest state that is far enough before the onset, from the ring or a commit
          ──► into the live run, hashed and compared ──► the branch moves, by compare-and-swap
          ──► batches are skipped ──► the next commit records what happened

If a commit turns out to be damaged, the one before it is tried, a few times.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, NoReturn

from mvc import MvcError, NotFoundError, ReleasedError, StorageError
from mvc.training import RunStore
from mvc_hooks.divergence.history import SPIKE, TREND
from mvc_hooks.divergence.ladder import Action, Rollback
from mvc_hooks.log import ranged
from mvc_hooks.parts.restoring import MisfitError, from_commit, from_image
from mvc_hooks.reports import DivergedError, RollbackReport
from mvc_hooks.resuming import LOST, RestoreFailure, restore_first
from mvc_hooks.tiers.shelf import sharing_reads

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mvc_hooks.commits.coordinator import Commits
    from mvc_hooks.run.live import LiveRun, StoredRun
    from mvc_hooks.session import Session
    from mvc_hooks.snapshot.ring import Snapshot

_TRIED = "mvc log --graph --all shows what was tried"
_MISFIT = (
    "the state is on a diverged branch, unless keep_diverged is off; start the program again to go on "
    "from the last commit, and create what the run adds along the way before the checkpointer"
)


@dataclass(frozen=True, slots=True)
class RollbackRequest:
    """What is asked of a rollback; ``onset_step`` is where it began to go wrong."""

    target: Rollback
    skip_batches: int
    onset_step: int
    reason: str


@dataclass(frozen=True, slots=True, eq=False)
class _Candidate:
    """A state to go back to: a commit, or a snapshot if ``commit`` is None."""

    step: int
    commit: str | None
    snapshot: Snapshot | None = None


class Recovery:
    """Answers alarms, on all ranks alike."""

    def __init__(self, session: Session, commits: Commits) -> None:
        self._session, self._commits = session, commits
        self._repo, self._run, self._judge = session.repo, session.run, session.judge
        self._ranks, self._log = session.ranks, session.log

    def answer(self, action: Action, started_s: float) -> RollbackReport | None:
        """Do what the ladder decided; return a report if the run was rolled back."""
        if action.stop:
            advice = action.verdict.advice
            hint = f"{_TRIED}; if the run was healthy: {advice}" if advice else _TRIED
            self._give_up(action.reason, hint=hint)
        if action.rollback is None:
            self._run.scale_lr(action.lr_factor)
            return None
        request = RollbackRequest(
            action.rollback, action.skip_batches, action.verdict.onset_step, action.reason
        )
        may_be_healthy = action.verdict.cause in (SPIKE, TREND)
        if may_be_healthy:
            self._commits.wait(with_marks=True)
            has_target = self._ranks.ask_first(
                lambda: next(self._candidates(request), None) is not None
            )
            if not has_target:
                self._only_warn(action, f"there is {_explain(request)}")
                return None
        # Should the rollback fail, the diverged state must not become the last commit of the run.
        self._run.is_clean = False
        try:
            return self.roll_back(request, started_s)
        except MisfitError as error:
            if may_be_healthy and self._ranks.is_alone:
                self._run.is_clean = True
                self._only_warn(action, error.message)
                return None
            frozen, tip = self._freeze()
            self._keep(frozen, tip, action.reason)
            self._give_up(f"{action.reason}; {error.message}", error, _MISFIT)

    def _only_warn(self, action: Action, why: str) -> None:
        """Go on: the run may well be healthy, and it is all there is."""
        self._judge.take_back()
        self._log.action(action.verdict.step, f"only a warning: {why}")

    def _give_up(self, reason: str, cause: Exception | None = None, hint: str = _TRIED) -> NoReturn:
        self._log.stop(self._run.counters.step, reason)
        self._run.is_clean = False  # what diverged is not committed
        raise DivergedError(f"the run diverged: {reason}", hint=hint) from cause

    @ranged("mvc.rollback")
    def roll_back(self, request: RollbackRequest, started_s: float) -> RollbackReport:
        """Take run and branch back; DivergedError means that there is nothing to go back to."""
        commits = self._commits
        commits.wait(with_marks=True)
        frozen, tip = self._freeze()
        try:
            report, stored = self._go_back(request, started_s)
        except MvcError as error:
            if frozen is not None:
                frozen.release()
            if isinstance(error, DivergedError):
                self._give_up(error.message, error)
            raise
        self._run.is_clean = True
        # The ladder keeps its learning-rate factor; the restored state has the one of its time.
        then = stored.ladder.get("lr_factor") if isinstance(stored.ladder, dict) else None
        then = then if isinstance(then, float) and then > 0 else 1.0
        self._run.scale_lr(self._judge.ladder.lr_factor / then)
        self._judge.forget_after(report.to_step)
        self._session.messages.clear()
        self._session.talk.forget()
        commits.forget_after(report.to_step, report.to_commit)
        self._keep(frozen, tip, report.reason, report.diverged_branch)
        # The next commit records the rollback, and the batches of earlier unrecorded ones.
        before = self._session.facts.get("skipped_batches", "none")
        skipped = [text for text in (before, report.skipped) if text != "none"]
        self._session.facts |= {
            "rolled_back_from": f"step {report.from_step}",
            "rolled_back_to": f"step {report.to_step}",
            "rolled_back_because": report.reason,
            "skipped_batches": ", ".join(skipped) or "none",
        }
        self._log.rollback(report)
        for extension in self._session.extensions:
            extension.after_rollback()
        return report

    def go_back_before(self, step: int, reason: str) -> RollbackReport:
        """Go back to the newest state of a step or before; no batches are skipped."""
        request = RollbackRequest(Rollback("last", 0, (0, 0)), 0, step, reason)
        return self.roll_back(request, time.perf_counter())

    def _freeze(self) -> tuple[Snapshot | None, str | None]:
        """Freeze what diverged, if it is to be kept; return it, and the tip that it belongs to."""
        tip = self._ranks.share(self._session.tips.get(self._session.branch))
        frozen = None
        if self._session.settings.keep_diverged and tip:
            frozen = self._ranks.together(self._commits.freeze)
        if frozen is not None:
            frozen.fence.wait()  # restoring overwrites what is being copied
        return frozen, tip

    def _keep(
        self, frozen: Snapshot | None, tip: str | None, reason: str, branch: str | None = None
    ) -> None:
        """Commit what diverged to a branch, a new one at the tip by default."""
        if frozen is not None and tip:
            name = branch or self._ranks.ask_first(
                partial(self._make_diverged_branch, frozen.step, tip)
            )
            self._session.tips[name] = tip
            text = f"diverged at step {frozen.step}: {reason}"
            self._commits.queue.submit(frozen, name, text, no_gate=True)
            self._log.snapshot(frozen)

    def _go_back(
        self, request: RollbackRequest, started_s: float
    ) -> tuple[RollbackReport, StoredRun]:
        now, reason = self._run.counters, request.reason
        chosen, stored, rewinds = self._restore(request)
        self._run.counters = stored.counters
        self._run.counters.leave_out(now.left_out)  # what was skipped once stays skipped
        skipped = _skip_batches(self._run, request, now.step, now.batches, rewinds=rewinds)
        diverged, tip = self._ranks.ask_first(lambda: self._move_branch(chosen, now.step, reason))
        if tip is not None:
            self._session.tips[self._session.branch] = tip
        report = RollbackReport(
            from_step=now.step,
            onset_step=request.onset_step,
            to_step=chosen.step,
            to_commit=chosen.commit,
            diverged_branch=diverged,
            reason=reason,
            skipped_first=skipped[0] if skipped else None,
            skipped_last=skipped[1] if skipped else None,
            seconds=time.perf_counter() - started_s,
        )
        return report, stored

    # Where to.

    def _restore(self, request: RollbackRequest) -> tuple[_Candidate, StoredRun, bool]:
        """Restore the first candidate that can be read; return it, and whether data rewinds."""
        failures: list[RestoreFailure[_Candidate]] = []
        can_rewind = all(self._ranks.exchange(self._run.can_rewind_data))

        def restore(candidate: _Candidate) -> tuple[StoredRun, bool]:
            steps_back = self._run.counters.step - candidate.step
            rewinds = request.skip_batches < steps_back and can_rewind
            leave_data = not rewinds and not self._run.skips_unread
            return self._restore_one(candidate, leave_data=leave_data), rewinds

        candidates = self._agree(self._candidates(request))
        passes = (*LOST, StorageError)
        with sharing_reads(self._repo, self._ranks):
            found = restore_first(self._ranks, candidates, restore, failures, passes=passes)
        if found is not None:
            chosen, (stored, rewinds) = found
            return chosen, stored, rewinds
        why = "; ".join(
            f"step {failure.state.step}: {failure}" for failure in failures
        ) or _explain(request)
        raise DivergedError(f"{request.reason}; there is nothing to go back to: {why}")

    def _candidates(self, request: RollbackRequest) -> Iterator[_Candidate]:
        """Yield what the run can go back to, newest first."""
        target, commits = request.target, self._commits
        if target.to not in ("healthy", "last"):
            named = self._repo.resolve(target.to)
            with contextlib.suppress(ReleasedError):  # reported when it is read
                # Only to see, before the run is touched, that the branch can go there.
                self._repo.runs.plan_rollback(named, branch=self._session.branch)
            yield _Candidate(self._repo.show(named).annotations.step or 0, named)
            return
        limit = _find_limit(request)
        frozen = None if commits.ring is None else commits.ring.find(limit)
        tip = self._session.tips.get(self._session.branch)
        for entry in self._repo.log(tip, first_parent=True) if tip else ():
            step, commit = entry.annotations.step, entry.info.id
            if step is None or step > limit:
                continue
            # The start of a run is as good as the run will ever be known to be there.
            if target.to == "healthy" and step and not entry.is_healthy:
                continue
            if frozen is not None and frozen.step > step:
                yield _Candidate(frozen.step, None, frozen)
            frozen = None
            yield _Candidate(step, commit)
        if frozen is not None:
            yield _Candidate(frozen.step, None, frozen)

    def _agree(self, candidates: Iterator[_Candidate]) -> Iterator[_Candidate]:
        """Yield rank 0's candidates as this rank has them; each has a ring of its own."""

        def choose() -> tuple[int, str | None] | None:
            chosen = next(candidates, None)
            return None if chosen is None else (chosen.step, chosen.commit)

        while said := self._ranks.ask_first(choose):
            step, commit = said
            ring = self._commits.ring if commit is None else None
            yield _Candidate(step, commit, None if ring is None else ring.find(step))

    def _restore_one(self, candidate: _Candidate, *, leave_data: bool) -> StoredRun:
        if candidate.commit is not None:
            if self._session.sends:
                RunStore(self._repo).bring_commit(candidate.commit)
            source = from_commit(self._repo, candidate.commit)
        elif candidate.snapshot is None:
            raise StorageError(f"a rank has no snapshot of step {candidate.step}")
        else:
            source = from_image(candidate.snapshot.files())
        return self._run.restore(source, allow=self._session.settings.allow, leave_data=leave_data)

    # The branch.

    def _move_branch(
        self, chosen: _Candidate, from_step: int, reason: str
    ) -> tuple[str | None, str | None]:
        """Move the branch back; return the branch that keeps what it abandoned, and the new tip, or None."""
        branch = self._session.branch
        if not self._session.tips.get(branch):
            return None, None
        step = chosen.step if chosen.commit is None else None
        try:
            plan = self._repo.runs.plan_rollback(
                chosen.commit, step=step, branch=branch, at_step=from_step
            )
        except NotFoundError:  # a snapshot from before the first commit
            return None, None
        if plan.is_empty:
            return None, None
        result = self._repo.runs.rollback(plan, reason=reason)
        return result.diverged_branch, result.commit

    def _make_diverged_branch(self, step: int, tip: str) -> str:
        """Make a branch at the tip for a diverged state, and return its name."""
        taken = {branch.name for branch in self._repo.branches.list()}
        base = f"diverged/{self._session.branch}/{step}"
        name = next(
            name for name in (base, *(f"{base}-{number}" for number in range(2, 10_000)))
            if name not in taken
        )  # fmt: skip
        self._repo.branches.create(name, tip)
        return name


def _find_limit(request: RollbackRequest) -> int:
    """Return the newest step to go back to; the start of the run is never too near."""
    return max(0, request.onset_step - request.target.min_steps_back)


def _explain(request: RollbackRequest) -> str:
    target, limit = request.target, _find_limit(request)
    kind = {"healthy": "healthy commit", "last": "commit"}.get(target.to, f"commit {target.to}")
    return f"no {kind} of step {limit} or earlier (min_steps_back={target.min_steps_back})"


def _skip_batches(
    run: LiveRun, request: RollbackRequest, from_step: int, batches: int, *, rewinds: bool
) -> tuple[int, int] | None:
    """Skip batches; return the first and the last of them, counted from 1, or None."""
    before = run.counters.batches
    if not rewinds and run.skips_unread:
        window = before + 1, before + max(request.skip_batches, batches - before)
    elif not rewinds:
        # The data stays where it is, so all batches since the target are skipped already.
        run.counters.batches = batches
        run.drop_batches(max(0, request.skip_batches - (batches - before)))
        window = before + 1, run.counters.batches
    else:
        at_onset = batches - (from_step - request.onset_step)
        first = max(before + 1, at_onset - request.skip_batches // 2)
        window = first, first + request.skip_batches - 1
    if window[0] > window[1]:
        return None
    run.leave_out(*window, request.reason)
    return window
