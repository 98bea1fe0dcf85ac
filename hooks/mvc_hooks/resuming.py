"""A new process goes on where the last one was: it finds the tip of the branch, and restores it.

The tip is what rank 0 says it is. Every rank restores its own state of it, hashed and compared; then
counters and judge follow. A tip that is damaged, and that no remote can mend, is left for the newest
commit before it that all ranks can read: the branch goes back there, and what it leaves keeps a name.

States to restore are tried one after the other: the first that every rank can read. Only what is lost is passed over: content that is not what its id says, that is missing, or that was
released. What cannot be read just now may be whole, and of a state that does not fit the ones before it
are no better: such an error ends the search, on every rank.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Generic, TypeAlias, TypeVar

from mvc import CorruptionError, MvcError, NotFoundError, ReleasedError, UsageError
from mvc.training import RunStore
from mvc_hooks.environment import compare_environments
from mvc_hooks.extension import StoredCommit
from mvc_hooks.log import ranged
from mvc_hooks.parts.restoring import from_commit
from mvc_hooks.tiers.memory import MemoryTier, name_lies, name_tiers
from mvc_hooks.tiers.shelf import sharing_reads

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from mvc_hooks.ranks.group import Ranks
    from mvc_hooks.session import Session


_MAX_TRIES = 3
LOST: tuple[type[MvcError], ...] = (CorruptionError, ReleasedError)
"""Errors that waiting does not mend."""

_State = TypeVar("_State")
_Value = TypeVar("_Value")


@dataclass(frozen=True, slots=True)
class RestoreFailure(Generic[_State]):
    """Why a state cannot be restored, and on which rank."""

    state: _State
    rank: int
    error: MvcError

    def __str__(self) -> str:
        return f"rank {self.rank}: {self.error.message}" if self.rank else self.error.message


def restore_first(
    ranks: Ranks,
    states: Iterable[_State],
    restore: Callable[[_State], _Value],
    failures: list[RestoreFailure[_State]],
    *,
    passes: tuple[type[MvcError], ...] = LOST,
    mend: Callable[[_State, MvcError | None], None] | None = None,
) -> tuple[_State, _Value] | None:
    """Restore the first of some states that all ranks can read; None: not one of the first few.

    Args:
        ranks: all of them must call this.
        states: alike on all ranks.
        restore: reads one, on every rank.
        failures: gets a failure for every state that was passed over.
        passes: the errors that another state is tried after.
        mend: called on every rank, with the error that it met if it met one; then the state is tried
            once more.
    """
    for state in states:
        value, errors = ranks.attempt(partial(restore, state))
        _raise_others(errors, passes)
        if errors and mend is not None:
            mend(state, errors.get(ranks.rank))
            value, errors = ranks.attempt(partial(restore, state))
            _raise_others(errors, passes)
        if not errors:
            return state, value
        failures.append(RestoreFailure(state, *next(iter(errors.items()))))
        if len(failures) == _MAX_TRIES:
            break
    return None


def _raise_others(errors: dict[int, MvcError], passes: tuple[type[MvcError], ...]) -> None:
    for error in errors.values():
        if not isinstance(error, passes):
            raise error


_Change: TypeAlias = tuple[str, object, object]
_PASSES = 2  # a static graph of DistributedDataParallel is known after its second one


@dataclass(frozen=True, slots=True)
class Resumed:
    """What a run goes on from."""

    commit: str  # id of the commit
    changes: Sequence[_Change]  # what changed in the environment since then: (item, then, now)
    # What the next commit records: name → text.
    facts: Mapping[str, str] = field(default_factory=dict)


def resume(session: Session) -> Resumed | None:
    """Restore the tip of the branch; None: it has no commits, so the run begins. Every rank must call it."""
    repo, branch, settings = session.repo, session.branch, session.settings

    def find_tip() -> str | None:
        with contextlib.suppress(NotFoundError):
            return repo.resolve(f"refs/heads/{branch}")
        return None

    tip = session.ranks.ask_first(find_tip)
    if tip is None:
        if session.ranks.is_first:
            session.log.missing(branch, _find_last_step(session))
        return None
    if not settings.resume:
        raise UsageError(
            f"branch {branch!r} already has commits, and resume is off",
            hint="pass branch=... to start a new branch",
        )
    if settings.warm_up is not None:
        for _ in range(_PASSES):
            settings.warm_up()
    try:
        return _resume_at(session, tip)
    except NotFoundError:
        try:
            holds_state = bool(RunStore(repo).outline_state(tip))
        except NotFoundError:
            holds_state = False
        if holds_state:
            raise
        raise UsageError(
            f"branch {branch!r} holds files, and no training state",
            hint="pass branch=..., and the run has a branch of its own",
        ) from None


def _find_last_step(session: Session) -> int | None:
    """Return the step of the last commit that a run made here, by its feed."""
    with contextlib.suppress(MvcError):
        for record in session.repo.runs.read(session.branch, losses=0).commits:
            return record.step
    return None


@ranged("mvc.resume")
def _resume_at(session: Session, tip: str) -> Resumed:
    started_s = time.perf_counter()
    ranks, log = session.ranks, session.log
    failures: list[RestoreFailure[str]] = []
    memory = MemoryTier(session.repo, session.branch)
    memory.look(ranks)
    is_done = False
    try:
        with sharing_reads(session.repo, ranks):
            restored = restore_first(
                ranks,
                _list_commits(session, tip),
                partial(_restore, session, memory),
                failures,
                mend=partial(_mend, session),
            )
        if restored is None:
            raise _join(failures)
        commit, (changes, facts) = restored
        given, changes_of_ranks = zip(*ranks.exchange((memory.tell(), changes)), strict=True)
        is_done = True
    finally:
        memory.close(is_done=is_done)
    log.doubt(name_lies(given))
    if failures:
        facts |= ranks.ask_first(partial(_leave_tip, session, commit, failures))
    if ranks.is_first:  # the other ranks mark no commit
        _judge_commit(session, commit)
    changes, seconds = changes_of_ranks[0], time.perf_counter() - started_s
    log.resume(session.step, commit, seconds, changes, tier=name_tiers(given))
    return Resumed(commit, changes, facts)


def _list_commits(session: Session, tip: str) -> Iterator[str]:
    """Yield the tip, and then the commits of steps before it, newest first: rank 0's on all ranks."""

    def walk() -> Iterator[str]:
        yield tip
        for entry in session.repo.log(tip, first_parent=True):
            if entry.annotations.step is not None and entry.info.id != tip:
                yield entry.info.id

    commits = walk()
    while commit := session.ranks.ask_first(lambda: next(commits, None)):
        yield commit


def _restore(
    session: Session, memory: MemoryTier, commit: str
) -> tuple[list[_Change], dict[str, str]]:
    """Restore a commit, with counters and judge.

    Returns:
        What changed in the environment since then, and what the next commit records of it.
    """
    run, allow = session.run, session.settings.allow
    if session.sends:  # another machine has made it
        RunStore(session.repo).bring_commit(commit)
    source = from_commit(session.repo, commit)
    comparison = run.extensions.check_commit(StoredCommit(commit, source, allow))
    with memory.reading(commit):
        stored = run.restore(source, allow=allow)
    run.counters = stored.counters
    run.is_clean = True
    session.judge.restore(stored.watch, stored.ladder)
    if session.ranks.is_first:
        session.log.doubt([*stored.doubts, *comparison.doubts])
    changes = compare_environments(stored.environment, run.environment)
    return [*changes, *comparison.changes], comparison.facts


def _judge_commit(session: Session, commit: str) -> None:
    """Have the judge watch the commit, unless its replicas differed: then it cannot become healthy."""
    agreement = session.repo.show(commit).agreement
    if agreement is None or not agreement.differed:
        session.judge.note_commit(session.step, commit)
        return
    text = (
        f"the run goes on from commit {commit[:10]}, whose ranks did not hold the same: {agreement}"
    )
    session.log.doubt([f'{text}; "mvc log" marks such commits, "mvc rollback" goes back to before'])


# What is damaged.


def _mend(session: Session, commit: str, error: MvcError | None) -> None:
    """Set aside what this rank found damaged, and let remotes bring it."""
    lines: list[str] = []
    if isinstance(error, CorruptionError):
        lines.append(f"commit {commit[:10]} is damaged: {error.message}")
        try:
            lines += session.repo.upkeep.mend(commit)
        except MvcError as failure:  # another rank may be at it
            lines.append(f"it cannot be mended now: {failure.message}")
    # Exchanged, so that no rank looks again before all have mended.
    lines_of_ranks = session.ranks.exchange(lines)
    session.log.doubt(dict.fromkeys(line for lines in lines_of_ranks for line in lines))


def _leave_tip(
    session: Session, commit: str, failures: Sequence[RestoreFailure[str]]
) -> dict[str, str]:
    """Take the branch back to a commit; return what the next one records of that."""
    why = f"it could not be read: {failures[0]}"
    plan = session.repo.runs.plan_rollback(commit, branch=session.branch)
    done = session.repo.runs.rollback(plan, reason=why)
    session.log.fall_back(
        (plan.tip_step, plan.tip), (plan.target_step, plan.target), done.diverged_branch, why
    )
    return {
        "rolled_back_from": f"step {plan.tip_step}",
        "rolled_back_to": f"step {plan.target_step}",
        "rolled_back_because": why,
    }


def _join(failures: Sequence[RestoreFailure[str]]) -> MvcError:
    """Return one error for all that could not be read."""
    if len(failures) == 1:
        return failures[0].error
    why = "; ".join(f"commit {failure.state[:10]}: {failure}" for failure in failures)
    return CorruptionError(
        f"no state to resume from can be read: {why}", hint=failures[0].error.hint
    )
