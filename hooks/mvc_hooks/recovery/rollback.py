"""Going back: which state, into the live run, and what the repository is told.

    alarm ──► all commits durable ──► what diverged is frozen
          ──► the newest state that is far enough from the onset, from the ring or a commit
          ──► into the live run, hashed and compared ──► the branch moves, by compare-and-swap
          ──► batches are left out ──► the next commit says what happened

Should a commit turn out to be damaged, the one before it is taken, a few times.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from mvc import CorruptionError, NotFoundError, ReleasedError, StorageError
from mvc_hooks.errors import DivergedError
from mvc_hooks.parts.sources import CommitSource, ImageSource
from mvc_hooks.reports import RollbackReport

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mvc import Repo
    from mvc_hooks.commits.coordinator import Commits
    from mvc_hooks.commits.rankcommits import FollowingCommits
    from mvc_hooks.divergence.ladder import Rollback
    from mvc_hooks.parts.sources import StateSource
    from mvc_hooks.ranks.ranks import Ranks
    from mvc_hooks.run.live import LiveRun, StoredRun
    from mvc_hooks.snapshot.image import Snapshot

_MAX_TRIES = 3


@dataclass(frozen=True, slots=True)
class RollbackRequest:
    """What is asked of a rollback.

    Attributes:
        target: where to.
        skip_batches: batches to leave out.
        onset_step: step at which it began to go wrong.
        reason: why, one line.
    """

    target: Rollback
    skip_batches: int
    onset_step: int
    reason: str


@dataclass(frozen=True, slots=True, eq=False)
class _Candidate:
    """A state that can be gone back to."""

    step: int
    commit: str | None
    snapshot: Snapshot | None

    def open(self, repo: Repo) -> StateSource:
        if self.snapshot is not None:
            return ImageSource(self.snapshot.files())
        assert self.commit is not None
        return CommitSource(repo, self.commit)


def roll_back(
    repo: Repo,
    run: LiveRun,
    commits: Commits | FollowingCommits,
    request: RollbackRequest,
    started_s: float,
    ranks: Ranks,
) -> tuple[RollbackReport, StoredRun]:
    """Take the run back; the branch follows.

    Args:
        repo: the repository.
        run: is restored; its counters become those of the target.
        commits: nothing of them is in flight.
        request: what is asked.
        started_s: ``time.perf_counter()`` at the alarm.
        ranks: which all go back; rank 0 says where to, and moves the branch.

    Returns:
        A report, and what the target says of the run.

    Raises:
        DivergedError: nothing to go back to.
        ConflictError: somebody moved the branch, or the target does not fit the run.
    """
    now = run.counters
    from_step, batches = now.step, now.batches
    chosen, stored, rewinds = _restore(repo, run, commits, request, ranks)
    run.counters = stored.counters
    run.counters.leave_out(now.left_out)  # what was left out once stays so
    skipped = _leave_out(run, request, from_step, batches, rewinds=rewinds)
    diverged = ranks.ask_first(
        lambda: _move_branch(repo, commits, chosen, from_step, request.reason)
    )
    report = RollbackReport(
        from_step=from_step,
        onset_step=request.onset_step,
        to_step=chosen.step,
        to_commit=chosen.commit,
        diverged_branch=diverged,
        reason=request.reason,
        skipped_first=skipped[0] if skipped else None,
        skipped_last=skipped[1] if skipped else None,
        seconds=time.perf_counter() - started_s,
    )
    return report, stored


def _restore(
    repo: Repo,
    run: LiveRun,
    commits: Commits | FollowingCommits,
    request: RollbackRequest,
    ranks: Ranks,
) -> tuple[_Candidate, StoredRun, bool]:
    failures: list[str] = []
    can_rewind = all(ranks.exchange(run.can_rewind_data))
    candidates = _candidates(repo, commits, request)
    while candidate := _agree(candidates, commits, ranks):
        rewinds = request.skip_batches < run.counters.step - candidate.step and can_rewind
        restore = partial(_restore_one, repo, run, candidate, leave_data=not rewinds)
        try:
            stored = ranks.together(restore)
        except (CorruptionError, ReleasedError, StorageError) as error:
            failures.append(f"step {candidate.step}: {error}")
            if len(failures) == _MAX_TRIES:
                break
            continue
        return candidate, stored, rewinds
    why = "; ".join(failures) or _explain(request)
    raise DivergedError(f"{request.reason}; there is nothing to go back to: {why}")


def _agree(
    candidates: Iterator[_Candidate], commits: Commits | FollowingCommits, ranks: Ranks
) -> _Candidate | None:
    """Return rank 0's next candidate as this rank has it; each has a ring of its own."""

    def choose() -> tuple[int, str | None] | None:
        chosen = next(candidates, None)
        return None if chosen is None else (chosen.step, chosen.commit)

    said = ranks.ask_first(choose)
    if said is None:
        return None
    step, commit = said
    ring = commits.ring if commit is None else None
    return _Candidate(step, commit, None if ring is None else ring.find(step))


def _restore_one(repo: Repo, run: LiveRun, candidate: _Candidate, *, leave_data: bool) -> StoredRun:
    if candidate.commit is None and candidate.snapshot is None:
        raise StorageError(f"a rank has no snapshot of step {candidate.step}")
    return run.restore(candidate.open(repo), leave_data=leave_data)


def _explain(request: RollbackRequest) -> str:
    target = request.target
    limit = request.onset_step - target.min_steps_back
    kind = {"healthy": "healthy commit", "last": "commit"}.get(target.to, f"commit {target.to}")
    return f"no {kind} of step {limit} or earlier (min_steps_back={target.min_steps_back})"


def _candidates(
    repo: Repo, commits: Commits | FollowingCommits, request: RollbackRequest
) -> Iterator[_Candidate]:
    """Yield what can be gone back to, newest first."""
    target = request.target
    if target.to not in ("healthy", "last"):
        named = repo.resolve(target.to)
        with contextlib.suppress(ReleasedError):  # told of when it is read
            # Only to see, before the run is touched, that the branch can go there.
            repo.plan_rollback(named, branch=commits.branch)
        yield _Candidate(repo.show(named).annotations.step or 0, named, None)
        return
    limit = request.onset_step - target.min_steps_back
    frozen = None if commits.ring is None else commits.ring.find(limit)
    tip = commits.tips.get(commits.branch)
    for entry in repo.log(tip, first_parent=True) if tip else ():
        step, commit = entry.annotations.step, entry.info.id
        if step is None or step > limit or (target.to == "healthy" and not entry.is_healthy):
            continue
        if frozen is not None and frozen.step > step:
            yield _Candidate(frozen.step, None, frozen)
        frozen = None
        yield _Candidate(step, commit, None)
    if frozen is not None:
        yield _Candidate(frozen.step, None, frozen)


def _leave_out(
    run: LiveRun, request: RollbackRequest, from_step: int, batches: int, *, rewinds: bool
) -> tuple[int, int] | None:
    """Leave out batches; return the first and the last of them, counted from 1."""
    before = run.counters.batches
    if not rewinds:
        run.counters.batches = batches
        run.drop_batches(max(0, request.skip_batches - (batches - before)))
        window = before + 1, run.counters.batches
    else:
        at_onset = batches - (from_step - request.onset_step)
        first = max(before + 1, at_onset - request.skip_batches // 2)
        window = first, first + request.skip_batches - 1
    if window[0] > window[1]:
        return None
    run.counters.leave_out([window])
    run.pass_over()
    return window


def _move_branch(
    repo: Repo, commits: Commits | FollowingCommits, chosen: _Candidate, from_step: int, reason: str
) -> str | None:
    """Move the branch back; return the branch that keeps what it left, or None."""
    branch, tip = commits.branch, commits.tips.get(commits.branch)
    if not tip:
        return None
    try:
        if chosen.commit is not None:
            plan = repo.plan_rollback(chosen.commit, branch=branch, at_step=from_step)
        else:
            plan = repo.plan_rollback(step=chosen.step, branch=branch, at_step=from_step)
    except NotFoundError:  # a snapshot from before the first commit
        return None
    if plan.is_empty:
        return None
    result = repo.rollback(plan, reason=reason)
    commits.tips[branch] = result.commit
    return result.diverged_branch


def name_diverged(repo: Repo, branch: str, step: int, tip: str) -> str:
    """Make a branch for a diverged state that follows the tip, and return its name.

    Raises:
        MvcError: the machine refused.
    """
    taken = {one.name for one in repo.branches()}
    base = f"diverged/{branch}/{step}"
    name = next(
        name for name in (base, *(f"{base}-{number}" for number in range(2, 10_000)))
        if name not in taken
    )  # fmt: skip
    repo.create_branch(name, tip)
    return name
