"""Commits of a distributed run: rank 0 makes them, the others take part.

Whether a commit is made, and what became of it, only rank 0 knows. It says so at the places where
all ranks are anyway. A failure that it comes to know of in between is kept until the next note can
tell the others, so that all of them stop at the same step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mvc_hooks.commits.coordinator import Commits, KeptStates
from mvc_hooks.errors import CommitFailedError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from mvc import Identity, Repo
    from mvc_hooks.commits.branchlock import BranchLock
    from mvc_hooks.ranks.ranks import Ranks
    from mvc_hooks.reports import CommitReport
    from mvc_hooks.run.live import LiveRun
    from mvc_hooks.run.log import RunLog
    from mvc_hooks.settings import Settings
    from mvc_hooks.snapshot.image import Snapshot

_MAKE, _LEAVE_OUT = True, False


def make_commits(
    ranks: Ranks,
    repo: Repo,
    branch: str,
    run: LiveRun,
    *,
    settings: Settings,
    log: RunLog,
    lock: BranchLock | None,
    identity: Identity | None,
    on_commit: Callable[[CommitReport], None],
) -> Commits | FollowingCommits:
    """Return the commits of this rank; the arguments are those of ``Commits``."""
    if lock is None:
        return FollowingCommits(branch, run, settings, ranks)
    kind = Commits if ranks.size == 1 else LeadingCommits
    commits = kind(
        repo, branch, run, settings=settings, log=log, lock=lock, identity=identity,
        on_commit=on_commit,
    )  # fmt: skip
    if isinstance(commits, LeadingCommits):
        commits.ranks = ranks
    return commits


class LeadingCommits(Commits):
    """Commits of rank 0; ``ranks`` is set right after it is made."""

    ranks: Ranks
    _is_committing = False

    def commit(
        self,
        capture: Callable[[], Mapping[str, object]],
        step: int,
        message: str,
        metrics: Mapping[str, float],
        *,
        is_asked: bool,
    ) -> bool:
        """As for one process; the others hear of it before the state is gathered."""
        told: list[bool] = []

        def tell_and_capture() -> Mapping[str, object]:
            self.ranks.share(_MAKE)
            told.append(_MAKE)
            return capture()

        self._is_committing = True
        try:
            return super().commit(tell_and_capture, step, message, metrics, is_asked=is_asked)
        except CommitFailedError as error:
            self.failure = error
            return bool(told)
        finally:
            self._is_committing = False
            if not told:
                self.ranks.share(_LEAVE_OUT)

    def pump(self) -> None:
        """Move what can be moved; a failure is kept."""
        try:
            super().pump()
        except CommitFailedError as error:
            self.failure = error

    def wait(self) -> None:
        """Wait until all are durable; the other ranks wait as well."""
        if self._is_committing:
            super().wait()
        else:
            self.ranks.on_first(self._wait_for_all)

    def _wait_for_all(self) -> None:
        super().wait()
        if self.failure is not None:
            raise self.failure

    def settle(self) -> None:
        """Wait until nothing is under way; the other ranks wait as well."""
        self.ranks.on_first(super().settle)


class FollowingCommits(KeptStates):
    """The part of the other ranks in the commits of rank 0."""

    def __init__(self, branch: str, run: LiveRun, settings: Settings, ranks: Ranks) -> None:
        """Take part."""
        super().__init__(branch, run, settings)
        self._ranks = ranks
        self.tips: dict[str, str] = {}
        self.depth = 0

    def commit(
        self,
        capture: Callable[[], Mapping[str, object]],
        step: int,
        message: str,  # noqa: ARG002  as Commits.commit
        metrics: Mapping[str, float],  # noqa: ARG002
        *,
        is_asked: bool,  # noqa: ARG002
    ) -> bool:
        """Give the pieces of this rank, where rank 0 makes a commit."""
        if not self._ranks.share(None):
            return False
        capture()
        self.last_step = step
        return True

    def freeze(self, capture: Callable[[], Mapping[str, object]], step: int) -> None:  # noqa: ARG002
        """Give the pieces of this rank."""
        capture()

    def prepare(self, state: Mapping[str, object]) -> None:
        """Do nothing; gathering the state was the part of this rank."""

    def drop(self, snapshot: Snapshot) -> None:
        """Do nothing."""

    def submit(self, *_: object) -> None:
        """Do nothing."""

    def commit_frozen(self, *_: object) -> None:
        """Do nothing."""

    def pump(self) -> None:
        """Do nothing."""

    def wait(self) -> None:
        """Wait for rank 0."""
        self._ranks.on_first(_nothing)

    def settle(self) -> None:
        """Wait for rank 0."""
        self._ranks.on_first(_nothing)

    def mark_healthy(self, step: int, commit: str) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Free the memory."""
        if self.ring is not None:
            self.ring.close()


def _nothing() -> None:
    return None
