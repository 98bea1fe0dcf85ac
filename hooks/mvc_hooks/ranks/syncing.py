"""How long DistributedDataParallel (DDP) takes to sum gradients, bucket by bucket.

Its communication hook is the place where that shows. The hook here does what DDP does without one, to
the bit: it multiplies a bucket by 1/size, as DDP's reducer does while it copies gradients into it (torch's
own ``allreduce_hook`` divides, which rounds otherwise on three ranks), divides a sparse gradient, as the reducer
does, and sums over the ranks. Only a gradient that DDP keeps in its bucket over several backward passes
(``gradient_as_bucket_view`` without ``set_to_none``) is divided, too, and a hook cannot tell which ones are:
where size is a power of two that is the same, elsewhere no hook is installed.

On a host, a sum begins when its bucket is full and ends on the thread that completes it. On CUDA both are
events on streams, which are read at later steps, once they have passed: no host waits for its device.
"""

# No annotations from __future__: DDP looks at those of a hook, and takes only types for them.

import math
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

_MAX_PASSES = 256
"""Backward passes that may wait to be read; on CUDA, of a host far ahead of its device."""
_MS = 1e-3


@dataclass(slots=True, eq=False)
class _Sum:
    """One bucket under way: times on a host, events on CUDA."""

    bucket: int
    size_bytes: int
    begin: Any
    end: Any = None


@dataclass(frozen=True, slots=True)
class GradientSum:
    """The gradients of one backward pass, summed over the ranks."""

    seconds: float  # how long at least one bucket was on its way
    buckets: tuple[tuple[int, float], ...]  # number of each bucket, and its seconds
    size_bytes: int  # of all buckets
    bus_bytes: float | None  # what a link carries for it; None if that is unknown


class TimedHook:
    """A communication hook of DDP that times another one.

    It times nothing while ``size``, the number of ranks, is 0. Copies of a model get DDP's own sum in its
    place: they have neither a use for it nor its process group.
    """

    def __init__(self, inner: Callable[[Any, Any], Any] | None = None, group: Any = None) -> None:
        """Time a hook of the user's, or the plain sum over a group."""
        self._inner, self._group = inner, group
        self.size = 0
        self._passes = deque[list[_Sum]](maxlen=_MAX_PASSES)
        self._open = list[_Sum]()
        # DDP asks for both.
        self.__name__ = getattr(inner, "__name__", "timed")
        self.__qualname__ = getattr(inner, "__qualname__", "timed")

    def __call__(self, state, bucket):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN204  see above
        """Sum a bucket through the other hook."""
        if not self.size:
            return (self._inner or _average)(state if self._inner else self._group, bucket)
        buffer = bucket.buffer()
        values = buffer._values() if buffer.is_sparse else buffer  # noqa: SLF001  it need not be coalesced
        current = _Sum(
            bucket.index(), int(values.numel() * values.element_size()), _now(buffer.device)
        )
        future = self._inner(state, bucket) if self._inner else _start(self._group, bucket)
        if current.bucket == 0:
            self._open = []  # what is left of a backward pass that failed
        self._open.append(current)
        if bucket.is_last():
            self._passes.append(self._open)
            self._open = []
        return future.then(partial(_finish, current, buffer.device))

    def take(self) -> list[GradientSum]:
        """Return the updates that are complete and were not returned yet; never waits."""
        done = list[GradientSum]()
        while self._passes and all(map(_is_done, self._passes[0])):
            sums = self._passes.popleft()
            first = sums[0].begin
            spans = [(_since(first, entry.begin), _since(first, entry.end)) for entry in sums]
            buckets = tuple(
                (entry.bucket, end - begin) for entry, (begin, end) in zip(sums, spans, strict=True)
            )
            size_bytes = sum(entry.size_bytes for entry in sums)
            bus_bytes = count_bus_bytes(size_bytes, self.size) if self._inner is None else None
            done.append(GradientSum(join_intervals(spans), buckets, size_bytes, bus_bytes))
        return done

    def stop(self) -> None:
        """Time nothing any more."""
        self.size = 0
        self._passes.clear()

    def __reduce__(self) -> tuple[Any, ...]:
        return _make_plain, ()


def _make_plain() -> Callable[[Any, Any], Any]:
    return _average


def _average(group: Any, bucket: Any) -> Any:
    return _start(group, bucket).then(lambda future: future.value()[0])


def _start(group: Any, bucket: Any) -> Any:
    """Begin to average a bucket over the ranks of a group, as DDP does without a hook."""
    buffer, size = bucket.buffer(), distributed.get_world_size(group)
    if buffer.is_sparse:
        buffer.div_(size)
    else:
        buffer.mul_(1.0 / size)
    work = distributed.all_reduce(buffer, group=group, async_op=True)
    assert work is not None
    return work.get_future()


def time_sums(size_bytes: int, times: int, device: torch.device, *, warm_up: int) -> list[float]:
    """Return how long each of some all_reduces took on this rank; every rank must call it."""
    tensor = torch.zeros(size_bytes // 4, device=device)
    durations_s: list[float] = []
    for _ in range(warm_up + times):
        distributed.barrier()
        started_s = time.perf_counter()
        distributed.all_reduce(tensor)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        durations_s.append(time.perf_counter() - started_s)
    return durations_s[warm_up:]


def count_bus_bytes(size_bytes: float, size: int) -> float:
    """Return what each of ``size`` ranks has to send until all have the sum: 2 (n−1)/n of the bytes."""
    return 2 * (size - 1) / size * size_bytes


def install(ddp: DistributedDataParallel) -> TimedHook | str:
    """Have a DDP's sums timed; return the hook, or in words why they are not."""
    facts: Any = ddp._get_ddp_logging_data()  # type: ignore[no-untyped-call]  # noqa: SLF001  torch's documentation has users call it
    name = facts.get("comm_hook")
    size = ddp.process_group.size()
    for hook, _ in ddp._comm_hooks:  # noqa: SLF001  there is no public way
        if isinstance(hook, TimedHook):
            hook.size = size
            return hook
    if name:
        return (
            f"DistributedDataParallel has the hook {name}; register monitor.timed({name}) instead"
        )
    if getattr(ddp, "_use_python_reducer", False):
        return "torch.compile sums the gradients itself"
    if ddp.gradient_as_bucket_view and size & (size - 1):
        return f"with gradient_as_bucket_view=True a hook would round otherwise on {size} ranks"
    timed = TimedHook(group=ddp.process_group)
    timed.size = size
    ddp.register_comm_hook(None, timed)
    return timed


def _finish(entry: _Sum, device: torch.device, future: Any) -> Any:
    # On CUDA this runs at once, on a stream that waits for the sum.
    value = future.value()
    entry.end = _now(device)
    return value[0] if isinstance(value, list) else value


def _now(device: torch.device) -> Any:
    if device.type != "cuda":
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]  # so in torch
    event.record(torch.cuda.current_stream(device))
    return event


def _is_done(entry: _Sum) -> bool:
    return entry.end is not None and (isinstance(entry.end, float) or entry.end.query())


def _since(begin: Any, end: Any) -> float:
    return float(end - begin if isinstance(begin, float) else begin.elapsed_time(end) * _MS)


def join_intervals(intervals: Iterable[tuple[float, float]]) -> float:
    """Return how long at least one of the intervals lasts; each is a begin and an end."""
    total, reached = 0.0, -math.inf
    for begin, end in sorted(intervals):
        if end > reached:
            total += end - max(begin, reached)
            reached = end
    return total
