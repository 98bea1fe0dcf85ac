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
from mvc.training import RunStore
from mvc_hooks.commits.branchlock import BranchLock
from mvc_hooks.commits.coordinator import Commits
from mvc_hooks.commits.queue import CommitQueue
from mvc_hooks.judge import Judge
from mvc_hooks.log import RunLog
from mvc_hooks.ranks.group import Ranks
from mvc_hooks.ranks.repositories import catch_up, open_repository
from mvc_hooks.recovery import Recovery
from mvc_hooks.resuming import Resumed, resume
from mvc_hooks.run.extensions import check_alike
from mvc_hooks.run.live import LiveRun
from mvc_hooks.run.signals import SignalWatch
from mvc_hooks.session import Session, Settings
from mvc_hooks.writer.messages import Open, RankCrew
from mvc_hooks.writer.place import open_listeners

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mvc import Repo
    from mvc_hooks.divergence.ladder import Steps
    from mvc_hooks.divergence.watch import Judges


@dataclass(frozen=True, slots=True)
class OpenRun:
    """A run on a branch, and all that works for it; ``resumed`` is None if it begins."""

    session: Session
    commits: Commits
    recovery: Recovery
    signals: SignalWatch
    resumed: Resumed | None
    closing: contextlib.ExitStack


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
    with contextlib.ExitStack() as closing:
        session = _look_at_parts(objects, settings, detectors, ladder, closing)
        lock = _open_branch(session, path, closing)
        ranks, run, log = session.ranks, session.run, session.log
        log.start(0, settings.every, run.parts, ranks.merge([*run.doubts, *run.extensions.doubt()]))
        for extension in run.extensions:
            extension.begin()
        ranks.on_first(partial(catch_up, session.repo, session.branch))
        resumed = resume(session)
        session.tips[session.branch] = resumed.commit if resumed else ""
        if resumed is not None:
            session.facts |= resumed.facts
        queue = _make_queue(session, lock)
        commits = Commits(session, queue, session.step if resumed else None)
        # A writer that is left behind would hold the branch.
        closing.callback(commits.close)
        ranks.together(queue.start_writer)
        recovery = Recovery(session, commits)
        session.roll_back = recovery.go_back_before
        for extension in run.extensions:
            extension.start()
        commits.commit_first()
        signals = SignalWatch()
        closing.callback(signals.stop)
        if settings.signals:
            signals.start(queue.crew)
        return OpenRun(session, commits, recovery, signals, resumed, closing.pop_all())


def _look_at_parts(
    objects: Mapping[str, object],
    settings: Settings,
    detectors: Judges | None,
    ladder: Steps | None,
    closing: contextlib.ExitStack,
) -> Session:
    """Return the session of a run that is complete, and the same on all ranks; nothing is on disk yet."""
    ranks = Ranks()
    run = LiveRun(objects, ranks, settings.all_extensions, settings.for_data)
    closing.callback(run.remove)
    has_scaler = any(ranks.exchange(run.has_scaler))
    check_alike(ranks, run.extensions)
    judge = Judge(
        detectors, ladder, settings.healthy_after, has_scaler=has_scaler, scale=run.first_scale
    )
    session = Session(
        objects=run.objects,
        parts=run.parts,
        ranks=ranks,
        log=RunLog(),
        settings=settings,
        run=run,
        judge=judge,
    )
    run.extensions.open(session)
    return session


def _open_branch(
    session: Session, path: str | os.PathLike[str], closing: contextlib.ExitStack
) -> BranchLock | None:
    """Open the repository of a session, and take its branch; return rank 0's lock on it."""
    ranks, settings = session.ranks, session.settings
    repo, session.sends = open_repository(path, ranks)
    session.repo = repo
    repo.identity = settings.identity
    ranks.on_first(repo.check_identity)
    session.branch = branch = settings.branch or ranks.ask_first(partial(_current_branch, repo))
    lock = ranks.on_first(lambda: BranchLock(repo.git_dir, branch))
    if lock is not None:
        closing.callback(lock.release)
    closing.callback(session.log.close)
    if ranks.is_first:
        session.log.feed = RunStore(repo).open_feed(branch)
    return lock


def _current_branch(repo: Repo) -> str:
    branch = repo.head.branch
    if branch is None:
        raise UsageError("HEAD is detached: there is no current branch", hint="pass branch=...")
    return branch


def _make_queue(session: Session, lock: BranchLock | None) -> CommitQueue:
    settings, repo, ranks = session.settings, session.repo, session.ranks
    identity, threads = settings.identity, settings.writer_threads
    name, email = (identity.name, identity.email) if identity else (None, None)
    crew = place = None
    if not ranks.is_alone:
        place, addresses = ranks.meet(lambda: ((place := open_listeners()), place.address))
        crew = RankCrew(ranks.rank, tuple(addresses))
        if threads is None:  # the writers of a machine share its cores
            here = [address.node for address in crew.addresses].count(place.address.node)
            threads = max(1, (os.cpu_count() or 1) // here)
    replicates = bool(settings.replicate)
    has_others = crew is not None and crew.find_neighbour() is not None
    if replicates and not has_others and ranks.is_first:
        session.log.doubt(["replicate=1 has no effect: there is no other machine in this run"])
    opening = Open(
        str(repo.worktree), name, email, threads, send=session.sends, replicates=replicates
    )
    held = () if lock is None else (lock.descriptor,)
    return CommitQueue(
        opening, held=held, tips=session.tips, delta=settings.delta, place=place, crew=crew
    )
