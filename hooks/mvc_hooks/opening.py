"""How a run is opened, in the one order that is safe.

The parts are looked at before the repository is made, and the branch is taken before anything of it is read.
Then the run goes on from the tip; only then its writer starts, and makes the first commit. Ranks do each
of these together. If one fails, what was done before it is undone, and nothing is left behind.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from mvc import UsageError
from mvc_data.guard import DataGuard
from mvc_data.shards import as_checks, find_checks
from mvc_hooks.commits.branchlock import BranchLock
from mvc_hooks.commits.coordinator import Commits
from mvc_hooks.commits.queue import CommitQueue
from mvc_hooks.judge import Judge
from mvc_hooks.ranks.buckets import Buckets
from mvc_hooks.ranks.group import Ranks
from mvc_hooks.ranks.notes import Talk
from mvc_hooks.ranks.repositories import catch_up, open_repository
from mvc_hooks.recovery import Recovery, go_back_before
from mvc_hooks.resuming import Resuming
from mvc_hooks.run.live import LiveRun
from mvc_hooks.run.log import RunLog
from mvc_hooks.run.signals import SignalWatch
from mvc_hooks.writer.crew import Crew
from mvc_hooks.writer.messages import Open
from mvc_hooks.writer.place import open_place
from mvc_lab.compression.run import check_compressions
from mvc_lab.consistency.checking import check_consistencies, spell_settings
from mvc_lab.consistency.watching import Host

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mvc import Repo
    from mvc_hooks.divergence.ladder import Steps
    from mvc_hooks.divergence.watch import Judges
    from mvc_hooks.resuming import Resumed
    from mvc_hooks.settings import Settings
    from mvc_hooks.writer.crew import Address
    from mvc_hooks.writer.place import Place
    from mvc_lab.consistency.checking import Consistency
    from mvc_lab.monitor.monitor import Monitor


@dataclass(frozen=True, slots=True)
class OpenRun:
    """A run on a branch, and all that works for it; ``resumed`` is None if it begins."""

    repo: Repo
    branch: str
    run: LiveRun
    judge: Judge
    ranks: Ranks
    talk: Talk
    signals: SignalWatch
    log: RunLog
    commits: Commits
    recovery: Recovery
    resumed: Resumed | None
    lock: BranchLock | None
    consistency: Consistency | None
    monitor: Monitor | None
    guard: DataGuard

    def close(self) -> None:
        """Take all hooks off, and let go of writer, branch, log and monitor."""
        self.signals.stop()
        if self.consistency is not None:
            self.consistency.remove()
        self.run.remove()
        self.guard.close()
        try:
            self.commits.close()
        finally:
            if self.lock is not None:
                self.lock.release()
            self.log.close()
            if self.monitor is not None:
                self.monitor.close()


def open_run(
    path: str | os.PathLike[str],
    objects: Mapping[str, object],
    settings: Settings,
    detectors: Judges | None,
    ladder: Steps | None,
) -> OpenRun:
    """Open or create the repository, take the branch, resume from its tip, and start the writer.

    Raises:
        MvcError: as ``Checkpointer`` says; nothing is left open.
    """
    ranks, talk, signals, monitor = Ranks(), Talk(), SignalWatch(), settings.monitor
    with contextlib.ExitStack() as undo:
        run = LiveRun(objects, ranks, settings.pipeline)
        undo.callback(run.remove)
        judge = _make_judge(run, ranks, settings, detectors, ladder)
        if monitor is not None:
            monitor.open(ranks)
            undo.callback(monitor.close)
        repo, sends = open_repository(path, ranks)
        repo.identity = settings.identity
        ranks.on_first(repo.check_identity)
        branch = settings.branch or ranks.ask_first(partial(_current_branch, repo))
        lock = ranks.on_first(lambda: BranchLock(repo.git_dir, branch))
        if lock is not None:
            undo.callback(lock.release)
        log = RunLog(repo.open_feed(branch) if ranks.is_first else None)
        undo.callback(log.close)
        if monitor is not None:
            monitor.follow(log, branch)
        log.start(0, settings.every, run.parts, ranks.merge(run.doubts))
        guard = undo.enter_context(contextlib.closing(_check_data(run, repo, ranks, settings, log)))
        ranks.on_first(lambda: catch_up(repo, branch))
        resumed = _resume(Resuming(repo, branch, run, judge, ranks, log, settings, guard, sends))
        # A writer that is left behind would hold the branch.
        queue = undo.enter_context(
            contextlib.closing(_make_queue(repo, settings, ranks, lock, log, sends=sends))
        )
        queue.tips[branch] = resumed.commit if resumed else ""
        ranks.together(queue.start_writer)
        commits = Commits(
            branch, run, judge, queue, ranks=ranks, talk=talk, settings=settings, log=log,
            last_step=None if resumed is None else run.counters.step, chunk_bytes=repo.chunk_bytes,
            guard=guard,
        )  # fmt: skip
        _tell_first(commits, ranks, repo, resumed)
        recovery = Recovery(
            repo, run, judge, commits, ranks, talk, log, settings.keep_diverged, guard, sends,
            settings.allow,
        )  # fmt: skip
        if settings.consistency is not None:
            host = _make_host(repo, branch, ranks, log, queue, judge, recovery)
            settings.consistency.attach(run.parts, host, run.counters.step)
            undo.callback(settings.consistency.remove)
        if monitor is not None:
            monitor.attach(ranks, Buckets(run.parts).list_models, settings.consistency)
        commits.commit_first()
        if settings.signals:
            signals.start(queue.crew)
        undo.pop_all()
    return OpenRun(
        repo, branch, run, judge, ranks, talk, signals, log, commits, recovery, resumed, lock,
        settings.consistency, monitor, guard,
    )  # fmt: skip


def _make_judge(
    run: LiveRun, ranks: Ranks, settings: Settings, detectors: Judges | None, ladder: Steps | None
) -> Judge:
    """Return what judges the run, once it is known that all ranks are set alike."""
    told = ranks.exchange(
        (run.has_scaler, run.compression.settings, spell_settings(settings.consistency))
    )
    scalers, compressions, checks = zip(*told, strict=True)
    check_compressions(compressions)
    check_consistencies(checks)
    return Judge(
        detectors, ladder, settings.healthy_after, has_scaler=any(scalers), scale=run.first_scale
    )  # fmt: skip


def _check_data(
    run: LiveRun, repo: Repo, ranks: Ranks, settings: Settings, log: RunLog
) -> DataGuard:
    """Return what guards the data of the run, once that is known to be what its maps say."""
    guard = DataGuard(find_checks(run.loaders) | as_checks(settings.shards), ranks, repo)
    try:
        guard.check()
    except BaseException:
        guard.close()
        raise
    for name, one in guard.maps.items():
        log.check_data(name, one, ranks.size, guard.seconds, is_lazy=guard.is_lazy)
    if not guard.is_watching and ranks.is_first:
        log.doubt(["the system does not tell which shards are opened: all are hashed, one by one"])
    run.record.shards = {name: one.tree for name, one in guard.maps.items()}
    return guard


def _tell_first(commits: Commits, ranks: Ranks, repo: Repo, resumed: Resumed | None) -> None:
    """Have the first commit of this process record what is new since the one before it."""
    if resumed is not None:
        commits.facts |= resumed.facts
    ranks.on_first(partial(commits.add_maps, repo))


def _resume(resuming: Resuming) -> Resumed | None:
    """Go on from the tip of the branch, with schedules as long as the run."""
    told = resuming.run.take_longer()  # before a resume: its schedules were stretched, too
    resumed = resuming.resume()
    resuming.log.doubt(dict.fromkeys([*told, *resuming.run.take_longer()]))
    return resumed


def _make_host(
    repo: Repo,
    branch: str,
    ranks: Ranks,
    log: RunLog,
    queue: CommitQueue,
    judge: Judge,
    recovery: Recovery,
) -> Host:
    """Return what the run lends to a check of its ranks."""

    def find_commit() -> tuple[Repo, str] | None:
        tip = ranks.share(queue.tips.get(branch))
        return (repo, tip) if tip else None

    return Host(ranks, log, find_commit, partial(go_back_before, recovery), judge.note_bad_state)


def _current_branch(repo: Repo) -> str:
    branch = repo.head.branch
    if branch is None:
        raise UsageError("HEAD is detached: there is no current branch", hint="pass branch=...")
    return branch


def _make_queue(
    repo: Repo,
    settings: Settings,
    ranks: Ranks,
    lock: BranchLock | None,
    log: RunLog,
    *,
    sends: bool,
) -> CommitQueue:
    identity, threads = settings.identity, settings.writer_threads
    name, email = (identity.name, identity.email) if identity else (None, None)
    crew = place = None
    if not ranks.is_alone:
        place, addresses = ranks.meet(_open_place)
        crew = Crew(ranks.rank, tuple(addresses))
        if threads is None:  # the writers of a machine share its cores
            here = [one.node for one in crew.addresses].count(place.address.node)
            threads = max(1, (os.cpu_count() or 1) // here)
    replicates = bool(settings.replicate)
    has_others = crew is not None and crew.find_neighbour() is not None
    if replicates and not has_others and ranks.is_first:
        log.doubt(["replicate=1 has no effect: there is no other machine in this run"])
    opening = Open(str(repo.worktree), name, email, threads, send=sends, replicates=replicates)
    held = () if lock is None else (lock.descriptor,)
    return CommitQueue(opening, held=held, delta=settings.delta, place=place, crew=crew)


def _open_place() -> tuple[Place, Address]:
    place = open_place()
    return place, place.address
