"""A new process goes on where the last one was: it finds the tip of the branch, and restores it.

The tip is what rank 0 says it is. Every rank restores its own state of it, hashed and compared; then
counters and judge follow. A tip that is damaged, and that no remote can mend, is left for the newest
commit before it that all ranks can read: the branch goes back there, and what it leaves keeps a name.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from mvc import CorruptionError, MvcError, NotFoundError, UsageError
from mvc_hooks.attempts import restore_first
from mvc_hooks.environment import compare_environments
from mvc_hooks.extension import StoredCommit
from mvc_hooks.parts.sources import from_commit
from mvc_hooks.run.ranges import ranged
from mvc_hooks.tiers.memory import Memory, name_lies, name_tiers
from mvc_hooks.tiers.shelf import sharing_reads

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from mvc_hooks.attempts import Failure
    from mvc_hooks.session import Session


_Change: TypeAlias = tuple[str, object, object]
_PASSES = 2  # a static graph of DistributedDataParallel is known after its second one


@dataclass(frozen=True, slots=True)
class Resumed:
    """What a run goes on from.

    Attributes:
        commit: id of the commit.
        changes: what changed in the environment since then: (item, then, now).
        facts: what the next commit records: name → text.
    """

    commit: str
    changes: Sequence[tuple[str, object, object]]
    facts: Mapping[str, str] = field(default_factory=dict)


class Resuming:
    """Takes a live run to where its branch is, on all ranks alike."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._repo, self._branch, self._run = session.repo, session.branch, session.run
        self._ranks, self._log = session.ranks, session.log

    def resume(self) -> Resumed | None:
        """Restore the tip of the branch; None: it has no commits, so the run begins."""
        tip = self._ranks.ask_first(self._find_tip)
        if tip is None:
            if self._ranks.is_first:
                self._log.missing(self._branch, self._last_committed())
            return None
        if not self._session.settings.resume:
            raise UsageError(
                f"branch {self._branch!r} already has commits, and resume is off",
                hint="pass branch=... to start a new branch",
            )
        if self._session.settings.warm_up is not None:
            for _ in range(_PASSES):
                self._session.settings.warm_up()
        try:
            return self._resume_at(tip)
        except NotFoundError:
            if self._holds_state(tip):
                raise
            raise UsageError(
                f"branch {self._branch!r} holds files, and no training state",
                hint="pass branch=..., and the run has a branch of its own",
            ) from None

    @ranged("mvc.resume")
    def _resume_at(self, tip: str) -> Resumed:
        started_s = time.perf_counter()
        failures: list[Failure[str]] = []
        commits = self._agree(self._walk(tip))
        memory = Memory(self._repo, self._branch)
        memory.look(self._ranks)
        is_done = False
        try:
            restore = partial(self._restore, memory)
            with sharing_reads(self._repo, self._ranks):
                found = restore_first(self._ranks, commits, restore, failures, mend=self._mend)
            if found is None:
                raise _give_up(failures)
            commit, (changes, facts) = found
            given, every = zip(*self._ranks.exchange((memory.tell(), changes)), strict=True)
            is_done = True
        finally:
            memory.close(is_done=is_done)
        step = self._run.counters.step
        self._log.doubt(name_lies(given))
        if failures:
            facts |= self._ranks.ask_first(partial(self._leave, commit, failures))
        if self._ranks.is_first:  # the other ranks mark no commit
            self._judge_tip(step, commit)
        seconds = time.perf_counter() - started_s
        self._log.resume(step, commit, seconds, changes, tier=name_tiers(given))
        return Resumed(commit, every[0], facts)

    def _judge_tip(self, step: int, commit: str) -> None:
        """Have the judge watch the commit, unless its replicas differed: then it cannot become healthy."""
        agreement = self._repo.show(commit).agreement
        if agreement is None or not agreement.differed:
            self._session.judge.note_commit(step, commit)
            return
        text = f"the run goes on from commit {commit[:10]}, whose ranks did not hold the same: {agreement}"
        self._log.doubt(
            [f'{text}; "mvc log" marks such commits, "mvc rollback" goes back to before']
        )

    def _walk(self, tip: str) -> Iterator[str]:
        """Yield the tip, and then the commits of steps before it, newest first."""
        yield tip
        for entry in self._repo.log(tip, first_parent=True):
            if entry.annotations.step is not None and entry.info.id != tip:
                yield entry.info.id

    def _agree(self, commits: Iterator[str]) -> Iterator[str]:
        """Yield rank 0's commits on all ranks."""
        while commit := self._ranks.ask_first(lambda: next(commits, None)):
            yield commit

    def _find_tip(self) -> str | None:
        with contextlib.suppress(NotFoundError):
            return self._repo.resolve(f"refs/heads/{self._branch}")
        return None

    def _holds_state(self, commit: str) -> bool:
        with contextlib.suppress(NotFoundError):
            return bool(self._repo.outline_state(commit))
        return False

    def _last_committed(self) -> int | None:
        """Return the step of the last commit that a run made here, by its feed."""
        with contextlib.suppress(MvcError):
            for record in self._repo.read_run(self._branch, losses=0).commits:
                return record.step
        return None

    def _restore(self, memory: Memory, commit: str) -> tuple[list[_Change], dict[str, str]]:
        """Restore a commit, with counters and judge.

        Returns:
            What changed in the environment since then, and what the next commit is to say.
        """
        run, session = self._run, self._session
        if session.sends:  # another machine has made it
            self._repo.bring_commit(commit)
        source = from_commit(self._repo, commit)
        allow = session.settings.allow
        found = run.check_commit(StoredCommit(commit, source, allow))
        with memory.reading(commit):
            stored = run.restore(source, allow=allow)
        run.counters = stored.counters
        run.is_clean = True
        session.judge.restore(stored.watch, stored.ladder)
        if self._ranks.is_first:
            self._log.doubt([*stored.doubts, *found.doubts])
        changes = compare_environments(stored.environment, run.environment)
        return [*changes, *found.changes], found.facts

    # What is damaged.

    def _mend(self, commit: str, error: MvcError | None) -> None:
        """Set aside what this rank found damaged, and have remotes bring it."""
        told: list[str] = []
        if isinstance(error, CorruptionError):
            told.append(f"commit {commit[:10]} is damaged: {error}")
            try:
                told += self._repo.mend_commit(commit)
            except MvcError as failure:  # another rank may be at it
                told.append(f"it cannot be mended now: {failure}")
        lines = self._ranks.exchange(told)  # so nobody looks again before all are done
        self._log.doubt(dict.fromkeys(line for one in lines for line in one))

    def _leave(self, commit: str, failures: Sequence[Failure[str]]) -> dict[str, str]:
        """Take the branch back to a commit; return what the next one records of that."""
        why = f"it could not be read: {failures[0]}"
        plan = self._repo.plan_rollback(commit, branch=self._branch)
        done = self._repo.rollback(plan, reason=why)
        self._log.fall_back(
            (plan.tip_step, plan.tip), (plan.target_step, plan.target), done.diverged_branch, why
        )
        return {
            "rolled_back_from": f"step {plan.tip_step}",
            "rolled_back_to": f"step {plan.target_step}",
            "rolled_back_because": why,
        }


def _give_up(failures: Sequence[Failure[str]]) -> MvcError:
    if len(failures) == 1:
        return failures[0].error
    why = "; ".join(f"commit {one.state[:10]}: {one}" for one in failures)
    return CorruptionError(
        f"no state to resume from can be read: {why}", hint=failures[0].error.hint
    )
