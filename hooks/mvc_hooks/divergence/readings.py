"""From the tensors of a step to readings, without the host waiting for the device.

``put`` starts what is needed and returns; ``take`` hands out what is due. A value on a CUDA device
is copied into a pinned slot after the kernels that make it, and read two steps later, when it
arrived long ago: waiting for its event then takes no time. What is due is decided by step numbers,
never by checking whether a copy happens to be complete, so all ranks see a reading at the same
step.

In a distributed run the mean over the ranks counts, as one all-reduce of doubles: the sums of
losses and norms, and how many ranks gave one. NaN or infinity on one rank is NaN or infinity in the
sum, so every rank decides alike. A note of the caller, one more double, is summed with them and so
arrives at the same step on every rank. Every rank must put every step. The all-reduce runs on the
device of the process group: with NCCL on a side stream, with gloo on the CPU, where
``take`` waits for it.
"""

from __future__ import annotations

import numbers
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import distributed

from mvc import StorageError, UsageError
from mvc_hooks.checks import check_count
from mvc_hooks.divergence.history import Reading
from mvc_hooks.ranks.group import find_backends

if TYPE_CHECKING:
    from collections.abc import Sequence

HOST_LAG_STEPS = 0
CUDA_LAG_STEPS = 2


@dataclass(slots=True)
class _Slot:
    """Pinned memory for nine doubles, and the event after the copy into it."""

    vector: torch.Tensor
    event: torch.cuda.Event


@dataclass(slots=True)
class _PendingReading:
    """A reading under way.

    ``vector`` is on the CPU: sum of losses, their number, the same of norms, of learning rates and
    of loss scales if they are read, and among several ranks the sum of their notes. It is the sum over all ranks if ``is_summed``, or will be
    after ``work``.
    """

    step: int
    lag_steps: int
    vector: torch.Tensor
    slot: _Slot | None = None
    work: Any = None
    is_summed: bool = True


class ReadingQueue:
    """Readings on their way from the device, oldest first."""

    def __init__(self, lag_steps: int | None = None, *, reads_scale: bool = False) -> None:
        """Make an empty queue; every rank has to read scales, or none."""
        self._lag_steps = None if lag_steps is None else check_count("lag_steps", lag_steps, 0)
        self._queue: deque[_PendingReading] = deque()
        self._reads_scale = reads_scale
        self._scales: deque[_Slot] = deque()
        self._newest_step = -1
        self._notes: list[tuple[int, float]] = []
        self._slots: list[_Slot] = []
        self._streams: dict[torch.device, torch.cuda.Stream] = {}

    def __len__(self) -> int:
        return len(self._queue)

    def put(
        self,
        step: int,
        loss: object = None,
        grad_norm: object = None,
        *,
        lr: float | None = None,
        scale: float | torch.Tensor | None = None,
        note: float = 0.0,
    ) -> None:
        """Start the reading of a step; their numbers rise.

        The values count as they are now. ``note`` is a finite number, summed for ``take_notes``.
        """
        Reading(step)
        if step <= self._newest_step:
            raise UsageError(
                f"a reading of step {step} came after one of step {self._newest_step}",
                hint="call clear() when the run goes back",
            )
        values = [_read_host("loss", step, loss), _read_host("gradient norm", step, grad_norm), lr]
        if self._reads_scale:
            values.append(_read_host("loss scale", step, scale))
        self._queue.append(self._start(step, values, note))
        self._newest_step = step

    def take(self, step: int | None = None) -> list[Reading]:
        """Return the readings that are due at a step (by default the newest that was put), oldest first."""
        now = self._newest_step if step is None else max(step, self._newest_step)
        due = []
        while self._queue and now - self._queue[0].step >= self._queue[0].lag_steps:
            due.append(self._finish(self._queue.popleft()))
        return due

    def take_notes(self) -> list[tuple[int, float]]:
        """Return the sums of the notes that came with the readings handed out since the last call.

        Each has the step of its reading.
        """
        notes, self._notes = self._notes, []
        return notes

    def drain(self) -> list[Reading]:
        """Return all readings, oldest first, waiting for them."""
        return [self._finish(self._queue.popleft()) for _ in range(len(self._queue))]

    def clear(self) -> None:
        """Discard what is under way, as a rollback does; the next step may be any."""
        self.drain()
        self._slots += self._scales
        self._scales.clear()
        self._newest_step = -1
        self._notes.clear()

    def _start(self, step: int, values: list[_Value], note: float) -> _PendingReading:
        device = next((v.device for v in values[:3] if isinstance(v, torch.Tensor)), None)
        backends = find_backends()
        has_nccl = backends.get("cuda") == "nccl" and torch.cuda.is_available()
        reduces_on_cuda = has_nccl or (bool(backends) and "cpu" not in backends)
        # The group decides where to reduce, not the values: one rank may have them on the host while
        # another has them on the device.
        if device is None and reduces_on_cuda:
            device = torch.device("cuda", torch.cuda.current_device())
        if device is None:
            values = [self._read_late(v) if isinstance(v, torch.Tensor) else v for v in values]
        default = HOST_LAG_STEPS if device is None else CUDA_LAG_STEPS
        lag = default if self._lag_steps is None else self._lag_steps
        wanted = _with_counts(values) + ([note] if backends else [])
        if device is not None:
            vector, slot = self._copy_from_cuda(wanted, device, reduces=reduces_on_cuda)
            return _PendingReading(
                step, lag, vector, slot, is_summed=reduces_on_cuda or not backends
            )
        vector = torch.tensor(wanted, dtype=torch.float64)
        work = distributed.all_reduce(vector, async_op=True) if backends else None
        return _PendingReading(step, lag, vector, work=work)

    def _read_late(self, scale: torch.Tensor) -> float | None:
        """Return the scale of two steps ago: a loss that is on the host does not wait for the device."""
        with torch.cuda.device(scale.device), torch.no_grad():
            slot = self._slots.pop() if self._slots else _allocate_slot()
            slot.vector[0].copy_(scale, non_blocking=True)
            slot.event.record(torch.cuda.current_stream(scale.device))
        self._scales.append(slot)
        if len(self._scales) <= CUDA_LAG_STEPS:
            return None
        slot = self._scales.popleft()
        slot.event.synchronize()
        self._slots.append(slot)
        return slot.vector[0].item()

    def _copy_from_cuda(
        self, values: list[float | torch.Tensor], device: torch.device, *, reduces: bool
    ) -> tuple[torch.Tensor, _Slot]:
        """Start a copy, after an all-reduce if wanted; return where it arrives."""
        with torch.cuda.device(device), torch.no_grad():
            slot = self._slots.pop() if self._slots else _allocate_slot()
            # Stacked on the stream of the training, so that later changes of the values do not
            # matter; the rest may run alongside.
            vector = torch.stack([_to_device(x, device) for x in values])
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
                arrived = slot.vector[: len(values)]
                arrived.copy_(vector, non_blocking=True)
                slot.event.record(stream)
        return arrived, slot

    def _follow(self, stream: torch.cuda.Stream, device: torch.device) -> torch.cuda.Stream:
        """Return the queue's own stream, ordered after ``stream``."""
        if device not in self._streams:
            self._streams[device] = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # so in torch
        self._streams[device].wait_stream(stream)
        return self._streams[device]

    def _finish(self, pending: _PendingReading) -> Reading:
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
                hint="one has ended, hangs, or does not call step(); what it said itself tells why",
            ) from error
        numbers = pending.vector.tolist()
        sums = 2 * (3 + self._reads_scale)
        pairs, notes = zip(numbers[:sums:2], numbers[1:sums:2], strict=True), numbers[sums:]
        self._notes += [(pending.step, note) for note in notes]
        if pending.slot is not None:
            self._slots.append(pending.slot)
        return Reading(pending.step, *(total / count if count else None for total, count in pairs))


_Value = float | torch.Tensor | None


def _read_host(what: str, step: int, value: object) -> _Value:
    """Return a host value as a float, a CUDA tensor detached, and refuse anything else."""
    if value is None:
        return None
    if isinstance(value, torch.Tensor):
        return _read_tensor(what, step, value)
    if isinstance(value, np.ndarray) and value.size == 1:
        value = value.reshape(())[()]
    if isinstance(value, bool | np.bool_) or not isinstance(value, numbers.Real | np.number):
        raise UsageError(f"{what} of step {step} is a {type(value).__name__}, not a number")
    if isinstance(value, np.complexfloating):
        raise UsageError(f"{what} of step {step} is complex")
    try:
        return float(value)
    except OverflowError:
        raise UsageError(f"{what} of step {step} is too large for a float") from None


def _read_tensor(what: str, step: int, value: torch.Tensor) -> _Value:
    # The gradient norm of sharded parameters is a DTensor: each rank holds a part of it.
    gather = getattr(value, "full_tensor", None)
    value = (value if gather is None else gather()).detach()
    if value.numel() != 1 or value.is_complex() or value.dtype == torch.bool or value.is_meta:
        raise UsageError(
            f"{what} of step {step} is a tensor of {value.dtype} of shape {tuple(value.shape)}",
            hint="pass one number",
        )
    return value.reshape(()) if value.device.type == "cuda" else float(value.item())


def _with_counts(values: Sequence[_Value]) -> list[float | torch.Tensor]:
    """Return each value, or 0, and after it whether it is there."""
    return [x for v in values for x in ((0.0, 0.0) if v is None else (v, 1.0))]


def _to_device(value: float | torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return a double on the device, without making the host wait for a copy."""
    if isinstance(value, torch.Tensor):
        return value.to(device=device, dtype=torch.float64, non_blocking=True)
    return torch.full((), value, dtype=torch.float64, device=device)


def _allocate_slot() -> _Slot:
    event = torch.cuda.Event()  # type: ignore[no-untyped-call]  # so in torch
    return _Slot(torch.zeros(9, dtype=torch.float64, pin_memory=True), event)
