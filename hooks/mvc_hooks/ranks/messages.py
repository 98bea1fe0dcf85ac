"""The one message of a step: named numbers that are summed over the ranks, without the host waiting for a device.

``send`` starts what is needed and returns; ``receive`` hands out what is due. A value on a CUDA device
is copied into a pinned slot after the kernels that make it, and read two steps later, when it
arrived long ago: waiting for its event then takes no time. What is due is decided by step numbers,
never by checking whether a copy happens to be complete, so all ranks see a message at the same step.

In a distributed run it is one all-reduce of doubles, whatever is in it: of each value that is averaged its sum
and how many ranks gave one, and the sums of counts. NaN or infinity on one rank is NaN or infinity in
the sum, so every rank decides alike. Every rank must send the same names at every step. The
all-reduce runs on the device of the process group: with NCCL on a side stream, with gloo on the CPU,
where ``receive`` waits for it.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import distributed

from mvc import StorageError, UsageError
from mvc_hooks.ranks.group import find_backends

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence


HOST_LAG_STEPS = 0
CUDA_LAG_STEPS = 2
_MOST_NUMBERS = 32
Value: TypeAlias = "float | torch.Tensor | None"


@dataclass(frozen=True, slots=True)
class StepSums:
    """What all ranks together sent for a step."""

    step: int
    # Name → mean over the ranks that gave a value; None: no rank did.
    means: Mapping[str, float | None]
    counts: Mapping[str, float]  # name → sum over the ranks; empty in a run of one process


@dataclass(slots=True)
class _Slot:
    """Pinned memory for the numbers that go to a device and that come back, and the event after both."""

    sent: torch.Tensor
    arrived: torch.Tensor
    event: torch.cuda.Event


@dataclass(slots=True)
class _PendingMessage:
    """A message under way; ``vector`` is on the CPU, and the sum over all ranks if ``is_summed``, or after ``work``."""

    step: int
    lag_steps: int
    names: tuple[tuple[str, ...], tuple[str, ...]]
    vector: torch.Tensor
    slot: _Slot | None = None
    work: Any = None
    is_summed: bool = True


class StepMessages:
    """The messages of a run's steps under way, oldest first."""

    def __init__(self, lag_steps: int | None = None) -> None:
        """Start with none; ``lag_steps`` replaces after how many steps a message is due."""
        self._lag_steps = lag_steps
        self._queue: deque[_PendingMessage] = deque()
        self._late: deque[_Slot] = deque()
        self._newest_step = -1
        self._arrived: list[StepSums] = []
        self._slots: list[_Slot] = []
        self._streams: dict[torch.device, torch.cuda.Stream] = {}

    def __len__(self) -> int:
        return len(self._queue)

    def send(
        self,
        step: int,
        means: Mapping[str, Value],
        counts: Mapping[str, float],
        *,
        late: Collection[str] = (),
    ) -> None:
        """Start the message of a step; their numbers rise.

        Args:
            step: the values count as they are now.
            means: name → value that is averaged, None: this rank has none. A tensor is on CUDA.
            counts: name → number that is summed.
            late: names of values that are no reason to wait for a device: if no other value is on one, theirs
                of two steps ago counts.
        """
        if step <= self._newest_step:
            raise UsageError(
                f"a reading of step {step} came after one of step {self._newest_step}",
                hint="call clear() when the run goes back",
            )
        self._queue.append(self._start(step, means, counts, late))
        self._newest_step = step

    def receive(self, step: int | None = None) -> list[StepSums]:
        """Return the messages that are due at a step (by default the newest one sent), oldest first."""
        now = self._newest_step if step is None else max(step, self._newest_step)
        due = []
        while self._queue and now - self._queue[0].step >= self._queue[0].lag_steps:
            due.append(self._finish(self._queue.popleft()))
        return due

    def drain(self) -> list[StepSums]:
        """Return all messages, oldest first, waiting for them."""
        return [self._finish(self._queue.popleft()) for _ in range(len(self._queue))]

    def take_arrived(self) -> list[StepSums]:
        """Return all that was received, in whichever way, since the last call."""
        arrived, self._arrived = self._arrived, []
        return arrived

    def clear(self) -> None:
        """Discard what is under way, as a rollback does; the next step may be any."""
        self.drain()
        self._slots += self._late
        self._late.clear()
        self._newest_step = -1
        self._arrived.clear()

    def _start(
        self,
        step: int,
        means: Mapping[str, Value],
        counts: Mapping[str, float],
        late: Collection[str],
    ) -> _PendingMessage:
        deciding = (value for name, value in means.items() if name not in late)
        device = next((value.device for value in deciding if isinstance(value, torch.Tensor)), None)
        backends = find_backends()
        has_nccl = backends.get("cuda") == "nccl" and torch.cuda.is_available()
        reduces_on_cuda = has_nccl or (bool(backends) and "cpu" not in backends)
        # The group decides where to reduce, not the values: one rank may have them on the host while
        # another has them on the device.
        if device is None and reduces_on_cuda:
            device = torch.device("cuda", torch.cuda.current_device())
        values = list(means.values())
        if device is None:
            values = [self._read_late(v) if isinstance(v, torch.Tensor) else v for v in values]
        default = HOST_LAG_STEPS if device is None else CUDA_LAG_STEPS
        lag = default if self._lag_steps is None else self._lag_steps
        # Each value, or 0, and after it whether it is there.
        numbers: list[float | torch.Tensor] = []
        for value in values:
            numbers += (0.0, 0.0) if value is None else (value, 1.0)
        names = (tuple(means), tuple(counts) if backends else ())
        numbers += counts.values() if backends else ()
        if device is not None:
            vector, slot = self._copy_from_cuda(numbers, device, reduces=reduces_on_cuda)
            is_summed = reduces_on_cuda or not backends
            return _PendingMessage(step, lag, names, vector, slot, is_summed=is_summed)
        vector = torch.tensor(numbers, dtype=torch.float64)
        work = distributed.all_reduce(vector, async_op=True) if backends else None
        return _PendingMessage(step, lag, names, vector, work=work)

    def _read_late(self, value: torch.Tensor) -> float | None:
        """Return the value of two steps ago: what is on the host does not wait for the device."""
        with torch.cuda.device(value.device), torch.no_grad():
            slot = self._slots.pop() if self._slots else _allocate_slot()
            slot.arrived[0].copy_(value, non_blocking=True)
            slot.event.record(torch.cuda.current_stream(value.device))
        self._late.append(slot)
        if len(self._late) <= CUDA_LAG_STEPS:
            return None
        slot = self._late.popleft()
        slot.event.synchronize()
        self._slots.append(slot)
        return slot.arrived[0].item()

    def _copy_from_cuda(
        self, numbers: Sequence[float | torch.Tensor], device: torch.device, *, reduces: bool
    ) -> tuple[torch.Tensor, _Slot]:
        """Start a copy, after an all-reduce if wanted; return where it arrives."""
        count = len(numbers)
        with torch.cuda.device(device), torch.no_grad():
            slot = self._slots.pop() if self._slots else _allocate_slot()
            on_host = [0.0 if isinstance(value, torch.Tensor) else value for value in numbers]
            slot.sent[:count] = torch.tensor(on_host, dtype=torch.float64)
            # On the stream of the training, so that later changes of the values do not matter; the
            # rest may run alongside.
            vector = slot.sent[:count].to(device, non_blocking=True)
            for at, value in enumerate(numbers):
                if isinstance(value, torch.Tensor):
                    vector[at].copy_(value, non_blocking=True)
            stream = torch.cuda.current_stream(device)
            if reduces:
                stream = self._follow(stream, device)
                vector.record_stream(stream)
            with torch.cuda.stream(stream):
                if reduces:
                    # Waits on this stream for NCCL; the host goes on.
                    work = distributed.all_reduce(vector, async_op=True)
                    assert work is not None
                    work.wait()
                arrived = slot.arrived[:count]
                arrived.copy_(vector, non_blocking=True)
                slot.event.record(stream)
        return arrived, slot

    def _follow(self, stream: torch.cuda.Stream, device: torch.device) -> torch.cuda.Stream:
        """Return a stream of its own, ordered after ``stream``."""
        if device not in self._streams:
            self._streams[device] = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # so in torch
        self._streams[device].wait_stream(stream)
        return self._streams[device]

    def _finish(self, pending: _PendingMessage) -> StepSums:
        if pending.slot is not None:
            pending.slot.event.synchronize()
        try:
            if pending.work is not None:
                pending.work.wait()
            if not pending.is_summed:
                distributed.all_reduce(pending.vector)
        except RuntimeError as error:  # torch names addresses, if anything
            raise StorageError(
                f"not all ranks took part in step {pending.step}",
                hint="one has ended, hangs, or does not call step(); its own last lines say why",
            ) from error
        numbers = pending.vector.tolist()
        averaged, counted = pending.names
        pairs = 2 * len(averaged)
        means = {
            name: total / count if count else None
            for name, total, count in zip(
                averaged, numbers[:pairs:2], numbers[1:pairs:2], strict=True
            )
        }
        if pending.slot is not None:
            self._slots.append(pending.slot)
        sums = StepSums(pending.step, means, dict(zip(counted, numbers[pairs:], strict=True)))
        self._arrived.append(sums)
        return sums


def _allocate_slot() -> _Slot:
    sent, arrived = torch.zeros(2, _MOST_NUMBERS, dtype=torch.float64, pin_memory=True)
    return _Slot(sent, arrived, torch.cuda.Event())  # type: ignore[no-untyped-call]  # so in torch


_SIGNALS = ("SIGTERM", "SIGINT")  # the more urgent one first


@dataclass(frozen=True, slots=True)
class Note:
    """What one rank notes, or all of them together."""

    signal: str | None = None  # the signal that was caught, if one was
    is_due: bool = False  # rank 0 says that a commit is due by its clock
    has_failed: bool = False  # rank 0 says that a commit failed
    is_behind: bool = False  # the writer has no room for another commit

    def as_counts(self) -> dict[str, float]:
        """Return it as numbers to be summed over the ranks."""
        known = {"due": self.is_due, "failed": self.has_failed, "behind": self.is_behind}
        known |= {name: self.signal == name for name in _SIGNALS}
        return {name: float(value) for name, value in known.items()}

    @classmethod
    def from_counts(cls, counts: Mapping[str, float]) -> Note:
        """Return the notes of all ranks as one."""
        signal = next((name for name in _SIGNALS if counts[name]), None)
        return cls(signal, bool(counts["due"]), bool(counts["failed"]), bool(counts["behind"]))


class Talk:
    """Notes as they go out and come in; ``heard`` is the latest of all ranks."""

    def __init__(self) -> None:
        self._has_asked = False
        self._room_step: int | None = None
        self.heard = Note()

    def write(self, mine: Note) -> dict[str, float]:
        """Return the note of this rank for a step.

        Signals and failures are repeated until they are heard, because a rollback throws away
        notes on their way. A commit is asked for once: until the note arrives the clock stays due.
        """
        asks = mine.is_due and not self._has_asked
        self._has_asked = self._has_asked or asks
        return Note(mine.signal, asks, mine.has_failed, mine.is_behind).as_counts()

    def read(self, arrived: Iterable[StepSums]) -> None:
        """Take the messages that arrived since the last time."""
        notes = [(sums.step, Note.from_counts(sums.counts)) for sums in arrived]
        signals = {note.signal for _, note in notes}
        self.heard = Note(
            next((name for name in _SIGNALS if name in signals), None),
            any(note.is_due for _, note in notes),
            any(note.has_failed for _, note in notes),
            bool(notes) and notes[-1][1].is_behind,
        )
        if notes:
            self._room_step = None if self.heard.is_behind else notes[-1][0]

    def take_due(self) -> bool:
        """Return whether a commit was asked for since the last call."""
        due = self.heard.is_due
        if due:
            self._has_asked = False
        return due

    def has_room(self, since_step: int | None) -> bool:
        """Return whether the writers of all ranks are known to have room.

        A note from before the last commit, that of ``since_step``, says nothing. None: no commit yet.
        """
        if since_step is None:
            return True
        return self._room_step is not None and self._room_step > since_step

    def forget(self) -> None:
        """Forget notes on their way; a rollback throws them away."""
        self._has_asked, self._room_step, self.heard = False, None, Note()
