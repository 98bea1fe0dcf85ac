"""What is known of a training run: values that ``read_run`` gives."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RunCommit:
    """A commit that a run made.

    Attributes:
        step: training step.
        time_s: when, in seconds since 1970.
        commit: its id; empty where the run did not say.
        subject: first line of its message.
        stall_s: how long the training stood still for it, or None.
        write_s: how long it took to write, or None.
        written_bytes: what was new in the store, or None.
        plain_bytes: the whole state, or None.
        queue_depth: states that waited to be written, or None.
        is_healthy: whether the run went on without alarm for long enough since.
        is_abandoned: whether the run went back to before it since.
    """

    step: int
    time_s: float
    commit: str
    subject: str
    stall_s: float | None
    write_s: float | None
    written_bytes: int | None
    plain_bytes: int | None
    queue_depth: int | None
    is_healthy: bool = False
    is_abandoned: bool = False


@dataclass(frozen=True, slots=True)
class RunAlarm:
    """A detector found that the run diverges.

    Attributes:
        step: training step, or None.
        time_s: when, in seconds since 1970.
        cause: kind of the alarm, such as ``spike``.
        reason: the numbers behind it, in words.
    """

    step: int | None
    time_s: float
    cause: str
    reason: str


@dataclass(frozen=True, slots=True)
class RunRollback:
    """The run went back to an earlier commit.

    Attributes:
        step: where it was.
        to_step: where it went on.
        time_s: when, in seconds since 1970.
        to_commit: the commit that it went back to; empty where the run did not say.
        diverged_branch: what keeps the abandoned arm; empty where nothing does.
        skipped_batches: batches of data left out, or None.
        seconds: how long it took, or None.
        reason: why.
    """

    step: int
    to_step: int
    time_s: float
    to_commit: str
    diverged_branch: str
    skipped_batches: int | None
    seconds: float | None
    reason: str


@dataclass(frozen=True, slots=True)
class RunEvent:
    """Anything else that happened.

    Attributes:
        kind: ``start``, ``resume``, ``action``, ``skip``, ``error`` or ``stop``.
        step: training step, or None.
        time_s: when, in seconds since 1970.
        text: what, in words.
    """

    kind: str
    step: int | None
    time_s: float
    text: str


@dataclass(frozen=True, slots=True)
class RunView:
    """A run as its feed tells; everything that the feed does not say is None or empty.

    Attributes:
        branch: the branch it commits to.
        alive: whether its process exists; None where that cannot be told, as from another machine.
        stopped: why it ended, where it said so; None while it has not.
        pid: id of its process.
        host: name of its machine.
        started_s: when the process began with it, in seconds since 1970.
        updated_s: when it was last heard of, in seconds since 1970.
        step: last training step that was told of.
        total: step at which it will be done.
        every: steps between commits.
        steps_per_s: speed over the last steps.
        loss: of the last step.
        grad_norm: of the last step.
        lr: learning rate of the last step.
        losses: (step, loss) of the last steps, oldest first; after a rollback steps repeat.
        queue_depth: states that wait to be written.
        stall_s: how long the training stood still for the last snapshot or commit.
        commits: the last ones, newest first.
        alarms: the last ones, newest first.
        rollbacks: the last ones, newest first.
        events: other things that happened, newest first, no errors.
        errors: what went wrong beside the training, newest first.
        damaged_lines: lines of the feed that were no records.
    """

    branch: str
    alive: bool | None = None
    stopped: str | None = None
    pid: int | None = None
    host: str = ""
    started_s: float | None = None
    updated_s: float | None = None
    step: int | None = None
    total: int | None = None
    every: int | None = None
    steps_per_s: float | None = None
    loss: float | None = None
    grad_norm: float | None = None
    lr: float | None = None
    losses: tuple[tuple[int, float], ...] = ()
    queue_depth: int | None = None
    stall_s: float | None = None
    commits: tuple[RunCommit, ...] = ()
    alarms: tuple[RunAlarm, ...] = ()
    rollbacks: tuple[RunRollback, ...] = ()
    events: tuple[RunEvent, ...] = ()
    errors: tuple[RunEvent, ...] = ()
    damaged_lines: int = 0
