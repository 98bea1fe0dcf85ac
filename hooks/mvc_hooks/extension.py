"""The seam of the training core: what takes part in a run besides its parts, as data, checks and measurements do.

class Rates(Extension):
    entry = "rates"  # commits have what capture() returns under this name

    def capture(self) -> object:
        return {"peak": self.peak}

    def restore(self, state: Any, origin: Origin) -> None:
        self.peak = 0.0 if state is None else state["peak"]

ckpt = Checkpointer("runs/gpt", model=model, optimizer=optimizer, extensions=[Rates()])

The life of an extension: ``open``, ``begin``, ``start``, then ``check_step`` and ``after_step`` at each
step, and ``close``. In between come commits (``settle``, ``capture``, ``describe``, ``note_durable``) and states
that the run goes to (``check_commit``, ``restore``, ``after_rollback``). All ranks call each of them at the
same time, so an extension may send messages in any of them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from mvc import Repo
    from mvc_hooks.divergence.history import Reading
    from mvc_hooks.log import RunLog
    from mvc_hooks.parts.part import Part
    from mvc_hooks.parts.restoring import StateSource
    from mvc_hooks.ranks.group import Ranks
    from mvc_hooks.reports import RollbackReport

OWN = "own"  # what the state of an extension has under this name, each rank has for itself


@dataclass(slots=True, eq=False)
class Host:
    """What a run lends to its extensions.

    Attributes:
        objects: what the run was given, by name.
        parts: the same as parts, whose state can be captured and restored.
        ranks: the processes of the run, and messages between them.
        log: takes warnings, and tells ``observers`` what happens.
        extensions: all of the run.
        repo: the repository of this rank; set before ``begin``.
        branch: the branch that the run writes; set before ``begin``.
        tips: branch → newest commit of it by this run; "" if it has none.
        facts: what the next commit records, until one succeeds: name → text; those of rank 0 count.
        texts: small files that the next commit holds, until one succeeds: path → content; rank 0's count.
        queue_depth: snapshots that wait for the writer or are being written.
        roll_back: takes the run back to a commit of that step or before, for a reason; None: it cannot.
    """

    objects: Mapping[str, object]
    parts: Mapping[str, Part]
    ranks: Ranks
    log: RunLog
    extensions: Sequence[Extension] = ()
    repo: Repo = field(init=False)
    branch: str = ""
    tips: dict[str, str] = field(default_factory=dict)
    facts: dict[str, str] = field(default_factory=dict)
    texts: dict[str, bytes] = field(default_factory=dict)
    queue_depth: int = 0
    roll_back: Callable[[int, str], RollbackReport] | None = None

    @property
    def tip(self) -> str | None:
        """The newest commit of the run, as this rank knows it."""
        return self.tips.get(self.branch)

    @property
    def step(self) -> int:
        """Completed steps."""
        return 0

    @property
    def reading(self) -> Reading | None:
        """The newest loss and gradient norm that have arrived, of all ranks."""
        return None

    def note_bad_state(self, step: int) -> None:
        """Record that the state of a step was not sound, so that no commit near it becomes healthy."""


@dataclass(frozen=True, slots=True)
class Contribution:
    """What an extension adds to one commit.

    Attributes:
        facts: what the commit records: name → text.
        metrics: name → number.
        seen: how many samples this rank tells of, and a digest of them; those of all ranks are added.
    """

    facts: Mapping[str, str] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)
    seen: tuple[int, int] = (0, 0)


@dataclass(frozen=True, slots=True)
class StoredCommit:
    """A commit that a run is about to be restored from.

    Attributes:
        allow: patterns of what may differ.
        is_replay: whether its steps are only trained again and compared.
    """

    commit: str
    source: StateSource
    allow: Sequence[str] = ()
    is_replay: bool = False


@dataclass(slots=True)
class Comparison:
    """How the run differs from a commit.

    Attributes:
        changes: what changed in the environment: (item, then, now).
        facts: what the next commit records of it.
        doubts: lines about it.
    """

    changes: list[tuple[str, object, object]] = field(default_factory=list)
    facts: dict[str, str] = field(default_factory=dict)
    doubts: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a state comes from that an extension is restored from.

    Attributes:
        ranks: how many ranks made it; None: as many as there are now.
        read_own: returns the state as another one of them had it.
        is_commit: whether it is that of a commit; otherwise that of a snapshot in memory.
        leaves_data: whether loaders stay where they are.
    """

    ranks: int | None = None
    read_own: Callable[[int], object] = lambda _: None
    is_commit: bool = True
    leaves_data: bool = False


class Extension:
    """What takes part in a run; each method does nothing unless it is overridden.

    Attributes:
        name: of it in messages; defaults to the name of the class.
        entry: name of its state in commits, or None. The state of rank 0 is that of all ranks, but for what
            it has under ``own``.
    """

    name: str = ""
    entry: str | None = None

    def agree(self) -> str:
        """Return in words what must be the same on all ranks; called before anything else."""
        return "given"

    # The life of a run.

    def open(self, host: Host) -> None:
        """Take part in a run; nothing was changed yet, and an error leaves nothing behind."""

    def begin(self) -> None:
        """The repository is open; the run is about to resume, if its branch has commits."""

    def start(self) -> None:
        """The run is where it starts from; the first step, or the first commit, comes next."""

    def close(self) -> None:
        """Let go of everything; called on each rank for itself, unless ``open`` failed."""

    # The steps.

    def doubt(self) -> Iterable[str]:
        """Return lines about what is probably not meant; asked at the start, and after the first two steps."""
        return ()

    def plan_steps(self, total: int) -> int:
        """Return how many steps a run takes that was to take ``total``."""
        return total

    def saw(self, ids: object, source: str, skipped: str | None) -> None:
        """Take note of samples that the user names; see ``Checkpointer.saw``."""

    def check_step(self, step: int) -> RollbackReport | None:
        """Look at a complete step before it is committed; return a report if the run was rolled back."""
        return None

    def after_step(self, step: int) -> None:
        """A step is over, with its commit on the way if one was due."""

    # Commits.

    def settle(self) -> None:
        """The live state is about to be committed; an error prevents that."""

    def capture(self) -> Any:
        """Return the state that commits have as ``entry``, nested; None: there is nothing to store."""
        return None

    def describe(self, step: int) -> Contribution:
        """Return what the commit of a step says besides; the state was just captured."""
        return Contribution()

    def note_durable(self, step: int) -> None:
        """The commit of a step is durable."""

    # Where the run goes.

    def check_commit(self, stored: StoredCommit) -> Comparison:
        """Compare the run with a commit that it is to resume from; an error refuses that."""
        return Comparison()

    def restore(self, state: Any, origin: Origin) -> None:
        """Take a stored state, None if there was none; the parts have theirs already."""

    def after_rollback(self) -> None:
        """The run, and its branch, went back."""

    def compare(self, state: Any) -> list[str]:
        """Return lines about how the live state differs from a stored one, for a replay."""
        return []
