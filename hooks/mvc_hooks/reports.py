"""Reports of a checkpointer on its commits and rollbacks, and the errors that end a run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from mvc import MvcError
from mvc.training import Agreement  # noqa: TC001  msgspec needs it


@dataclass(frozen=True, slots=True)
class CommitReport:
    """One commit of a run; its text is one line.

    Attributes:
        commit: its id, or None if it failed.
        stall_s: how long the training paused for it.
        write_s: how long the writer took, in the background.
        plain_bytes: size of the state; ``written_bytes`` of it went into the repository.
        queue_depth: snapshots in the queue when it joined, itself included.
        error: why there is no commit, or None.
        is_refused: whether that is because a gate of the repository refused it.
        failed_gates: the gates that it was marked for, with the reason of each.
        agreement: whether a second rank held the same bytes, the same on all ranks; None if nothing was
            checked. A commit with ``agreement.differed`` never becomes healthy.
    """

    step: int
    commit: str | None
    branch: str
    subject: str
    stall_s: float
    write_s: float
    written_bytes: int
    plain_bytes: int
    queue_depth: int
    error: str | None = None
    is_refused: bool = False
    failed_gates: tuple[str, ...] = ()
    agreement: Agreement | None = None

    @property
    def is_disputed(self) -> bool:
        """Whether two ranks held different bytes of what they should have alike."""
        return self.agreement is not None and self.agreement.differed > 0

    def __str__(self) -> str:
        if self.commit is None:
            what = "is refused" if self.is_refused else "failed"
            return f"commit of step {self.step} {what}: {self.error}"
        marks = "".join(f"; marked as failed {reason}" for reason in self.failed_gates)
        return (
            f"commit {self.commit[:10]} step {self.step}: stall {self.stall_s * 1e3:.1f} ms, "
            f"write {self.write_s:.2f} s, {self.written_bytes:,} of {self.plain_bytes:,} bytes, "
            f"queue {self.queue_depth}{marks}"
        )


@dataclass(frozen=True, slots=True)
class RollbackReport:
    """One rollback of a run.

    Attributes:
        onset_step: step at which it began to go wrong.
        to_commit: commit it went back to; None means a snapshot of the ring.
        diverged_branch: branch that keeps the abandoned commits, or None if there were none.
        skipped_first, skipped_last: batches that are skipped, counted from 1 over the whole run,
            or None.
        seconds: from the alarm to the verified state.
    """

    from_step: int
    onset_step: int
    to_step: int
    to_commit: str | None
    diverged_branch: str | None
    reason: str
    skipped_first: int | None
    skipped_last: int | None
    seconds: float

    @property
    def skipped(self) -> str:
        """The skipped batches, as a commit records them."""
        if self.skipped_first is None:
            return "none"
        return f"{self.skipped_first}-{self.skipped_last}"

    @property
    def skipped_count(self) -> int:
        """How many batches are skipped."""
        if self.skipped_first is None or self.skipped_last is None:
            return 0
        return self.skipped_last - self.skipped_first + 1

    def __str__(self) -> str:
        where = f"commit {self.to_commit[:10]}" if self.to_commit else "a snapshot in memory"
        return (
            f"rolled back from step {self.from_step} to step {self.to_step} ({where}) in "
            f"{self.seconds:.2f} s: {self.reason}; skipped batches: {self.skipped}"
        )


class CommitFailedError(MvcError):
    """A commit was not made: its writer was killed, the disk is full, the repository is gone.

    The last good commit stays good; the next one is tried again with a new writer.
    """

    kind: ClassVar[str] = "commit-failed"
    exit_code: ClassVar[int] = 6


class DivergedError(MvcError):
    """The run diverged, and its ladder has no answer left."""

    kind: ClassVar[str] = "diverged"
    exit_code: ClassVar[int] = 11


def spell_size(size_bytes: int) -> str:
    """Return a number of bytes in words: ``812 B``, ``1.2 GB``."""
    value, units = float(size_bytes), ["B", "kB", "MB", "GB", "TB"]
    while value >= 999.5 and len(units) > 1:  # noqa: PLR2004  what would round to four digits
        value, units = value / 1000, units[1:]
    is_whole = units[0] == "B" or value >= 99.95  # noqa: PLR2004  the same with one decimal
    return f"{value:,.{0 if is_whole else 1}f} {units[0]}"
