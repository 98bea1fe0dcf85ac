"""From the tensors of a step to readings, without the host waiting for the device.

``put`` starts what is needed and returns; ``take`` hands out what is due. A value on a CUDA device
is copied into a pinned slot behind the kernels that make it, and read ``lag_steps`` steps later,
when it has long arrived: the wait for its event is no wait then. What is due is decided by step
numbers, never by looking whether a copy happens to be complete, so all ranks see a reading at the
same step.

In a distributed run the mean over the ranks is what counts, as one all-reduce of doubles: the
sums of losses and norms, and how many ranks gave one. NaN or infinity on one rank is NaN or
infinity in the sum, so every rank decides alike. A note of the caller's, a fifth double, is summed
with them and so arrives at the same step on every rank. Every rank must put every step. It runs on the
device of the process group: with NCCL on a stream of its own beside the training, with gloo on the
CPU, where it is waited for in ``take``.
"""

from __future__ import annotations

import numbers
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import distributed

from mvc import UsageError
from mvc_hooks.divergence.values import Reading

if TYPE_CHECKING:
    from collections.abc import Sequence

HOST_LAG_STEPS = 0
CUDA_LAG_STEPS = 2


@dataclass(slots=True)
class _Slot:
    """Pinned memory for five doubles, and the event behind the copy into it."""

    vector: torch.Tensor
    event: torch.cuda.Event


@dataclass(slots=True)
class _Pending:
    """A reading under way.

    Attributes:
        step: its step.
        lag_steps: after how many steps it is due.
        vector: sum of losses, their number, sum of norms, their number, and among several ranks the
            sum of their notes; on the CPU.
        slot: what the vector lies in, where it comes from a device.
        work: the collective that is to be waited for.
        is_summed: whether the vector is the sum over all ranks, or will be after ``work``.
    """

    step: int
    lag_steps: int
    vector: torch.Tensor
    slot: _Slot | None = None
    work: Any = None
    is_summed: bool = True


class ReadingQueue:
    """Readings on their way from the device, oldest first."""

    def __init__(
        self,
        lag_steps: int | None = None,
        group: distributed.ProcessGroup | None = None,
    ) -> None:
        """Make an empty queue.

        Args:
            lag_steps: how many steps after its own a reading is due; otherwise 0 for values in
                host memory and 2 for values on a CUDA device.
            group: the ranks to average over; otherwise all, where torch.distributed is initialised.
        """
        if lag_steps is not None and (type(lag_steps) is not int or lag_steps < 0):
            raise UsageError(f"lag_steps is {lag_steps!r}, not a number of steps")
        self._lag_steps = lag_steps
        self._group = group
        self._queue: deque[_Pending] = deque()
        self._newest_step = -1
        self._notes = 0.0
        self._slots: list[_Slot] = []
        self._streams: dict[torch.device, torch.cuda.Stream] = {}

    def __len__(self) -> int:
        return len(self._queue)

    def put(
        self, step: int, loss: object = None, grad_norm: object = None, *, note: float = 0.0
    ) -> None:
        """Start the reading of a step.

        Args:
            step: the number of the step; it rises.
            loss: a number, NumPy scalar or tensor of one element on any device, or None. Its value
                now is what counts; the graph behind it is not kept.
            grad_norm: the same.
            note: a finite number for ``take_notes`` of every rank; where there are several ranks.

        Raises:
            UsageError: not a number, or a step that is not behind the one before.
        """
        Reading(step)
        if step <= self._newest_step:
            raise UsageError(
                f"a reading of step {step} came after one of step {self._newest_step}",
                hint="call clear() when the run goes back",
            )
        values = _read_host("loss", step, loss), _read_host("gradient norm", step, grad_norm)
        self._queue.append(self._start(step, values, note))
        self._newest_step = step

    def take(self, step: int | None = None) -> list[Reading]:
        """Return the readings that are due, oldest first.

        Args:
            step: where the run is, if it did not put a reading at every step.
        """
        now = self._newest_step if step is None else max(step, self._newest_step)
        due = []
        while self._queue and now - self._queue[0].step >= self._queue[0].lag_steps:
            due.append(self._finish(self._queue.popleft()))
        return due

    def take_notes(self) -> float:
        """Return the sum of the notes that came with the readings handed out since the last call."""
        notes, self._notes = self._notes, 0.0
        return notes

    def drain(self) -> list[Reading]:
        """Return all readings, oldest first, waiting for them."""
        return [self._finish(self._queue.popleft()) for _ in range(len(self._queue))]

    def clear(self) -> None:
        """Throw away what is under way, as a rollback does; the next step may be any."""
        self.drain()
        self._newest_step = -1
        self._notes = 0.0

    def _start(self, step: int, values: tuple[_Value, _Value], note: float) -> _Pending:
        device = next((v.device for v in values if isinstance(v, torch.Tensor)), None)
        backends = _find_backends(self._group)
        # Where the group reduces is decided by the group and not by the values, which one rank may
        # have on the host while another has them on the device.
        if device is None and (_prefers_cuda(backends) or (backends and "cpu" not in backends)):
            device = torch.device("cuda", torch.cuda.current_device())
        default = HOST_LAG_STEPS if device is None else CUDA_LAG_STEPS
        lag = default if self._lag_steps is None else self._lag_steps
        wanted = _with_counts(values) + ([note] if backends else [])
        if device is not None:
            return self._start_on_cuda(step, lag, wanted, device, backends)
        vector = torch.tensor(wanted, dtype=torch.float64)
        work = None
        if backends:
            work = distributed.all_reduce(vector, group=self._group, async_op=True)
        return _Pending(step, lag, vector, work=work)

    def _start_on_cuda(
        self,
        step: int,
        lag: int,
        values: list[float | torch.Tensor],
        device: torch.device,
        backends: dict[str, str],
    ) -> _Pending:
        reduces_here = _prefers_cuda(backends) or (bool(backends) and "cpu" not in backends)
        with torch.cuda.device(device), torch.no_grad():
            slot = self._slots.pop() if self._slots else _allocate_slot()
            # Stacked on the stream of the training, so that whatever it does to the values
            # afterwards comes later; the rest may run beside it.
            vector = torch.stack([_to_device(x, device) for x in values])
            stream = torch.cuda.current_stream(device)
            if reduces_here:
                stream = self._follow(stream, device)
                vector.record_stream(stream)
            with torch.cuda.stream(stream):
                if reduces_here:
                    # Waits on this stream for NCCL; the host goes on.
                    work = distributed.all_reduce(vector, group=self._group, async_op=True)
                    assert work is not None
                    work.wait()
                arrived = slot.vector[: len(values)]
                arrived.copy_(vector, non_blocking=True)
                slot.event.record(stream)
        return _Pending(step, lag, arrived, slot, is_summed=reduces_here or not backends)

    def _follow(self, stream: torch.cuda.Stream, device: torch.device) -> torch.cuda.Stream:
        """Return the queue's own stream, ordered behind ``stream``."""
        if device not in self._streams:
            self._streams[device] = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # so in torch
        self._streams[device].wait_stream(stream)
        return self._streams[device]

    def _finish(self, pending: _Pending) -> Reading:
        if pending.slot is not None:
            pending.slot.event.synchronize()
        if pending.work is not None:
            pending.work.wait()
        if not pending.is_summed:
            distributed.all_reduce(pending.vector, group=self._group)
        loss, losses, norm, norms, *notes = pending.vector.tolist()
        self._notes += sum(notes)
        if pending.slot is not None:
            self._slots.append(pending.slot)
        return Reading(
            pending.step, loss / losses if losses else None, norm / norms if norms else None
        )


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
        raise UsageError(f"{what} of step {step} is beyond any float") from None


def _read_tensor(what: str, step: int, value: torch.Tensor) -> _Value:
    # The gradient norm of sharded parameters is a DTensor, which each rank holds a part of.
    gather = getattr(value, "full_tensor", None)
    value = (value if gather is None else gather()).detach()
    if value.numel() != 1 or value.is_complex() or value.dtype == torch.bool or value.is_meta:
        raise UsageError(
            f"{what} of step {step} is a tensor of {value.dtype} of shape {tuple(value.shape)}",
            hint="pass one number",
        )
    return value.reshape(()) if value.device.type == "cuda" else float(value.item())


def _with_counts(values: Sequence[_Value]) -> list[float | torch.Tensor]:
    """Return each value, or 0, and behind it whether it is there."""
    return [x for v in values for x in ((0.0, 0.0) if v is None else (v, 1.0))]


def _to_device(value: float | torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return a double on the device, without a copy that the host would wait for."""
    if isinstance(value, torch.Tensor):
        return value.to(device=device, dtype=torch.float64, non_blocking=True)
    return torch.full((), value, dtype=torch.float64, device=device)


def _allocate_slot() -> _Slot:
    event = torch.cuda.Event()  # type: ignore[no-untyped-call]  # so in torch
    return _Slot(torch.zeros(5, dtype=torch.float64, pin_memory=True), event)


def _find_backends(group: distributed.ProcessGroup | None) -> dict[str, str]:
    """Return device type → backend of a group of several ranks; empty where there is none."""
    if not (distributed.is_available() and distributed.is_initialized()):
        return {}
    if distributed.get_world_size(group) < 2:  # noqa: PLR2004  # alone there is nothing to average
        return {}
    config = distributed.get_backend_config(group)
    pairs = (part.split(":") for part in config.split(",") if ":" in part)
    return {pair[0]: pair[1] for pair in pairs}


def _prefers_cuda(backends: dict[str, str]) -> bool:
    return backends.get("cuda") == "nccl" and torch.cuda.is_available()
