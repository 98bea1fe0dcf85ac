"""What of a trace of torch.profiler counts: computation, collectives, steps, and what mvc itself did.

With a GPU, its kernels are what happens, NCCL's among them. Without one, operators are: all that a thread
does in them, but for handing over and carrying out collectives, which gloo does in threads of its own.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NoReturn

from mvc.errors import FormatError, UnsupportedError
from mvc.tracing.spans import Collective, Cover, StepWindow, Trace, merge, subtract
from mvc.tracing.stream import read_events

if TYPE_CHECKING:
    from mvc.tracing.spans import Spans

_MOST_EVENTS = 50_000_000
_MOST_US = 2.0**62
_STEP = "ProfilerStep#"
_OWN, _OWN_STEP = "mvc.", "mvc.step"
_KERNELS = frozenset({"kernel", "gpu_memcpy", "gpu_memset", "memcpy", "memset"})
_OPERATORS = frozenset({"cpu_op", "operator"})
_ON_DEVICE = "gpu_user_annotation"
_RANGES = frozenset({"user_annotation", _ON_DEVICE})
_KINDS = _KERNELS | _OPERATORS | _RANGES | {"trace", "cuda_runtime", "python_function"}
_CARRIED = ("gloo:", "mpi:", "ucc:")
_HANDED_OVER = ("c10d::", "record_param_comms", "nccl:", *_CARRIED)
_COPY = "torch.distributed.ddp.reducer::copy_bucket_to_grad"
_SEARCH = "torch.distributed.ddp.reducer::search_unused_parameters"
_BYTES = {
    "double": 8, "long": 8, "int64": 8, "float": 4, "int": 4, "half": 2, "bfloat16": 2, "short": 2,
    "c10::half": 2, "c10::bfloat16": 2, "char": 1, "byte": 1, "bool": 1, "unsigned char": 1,
    "signed char": 1, "float8_e4m3fn": 1, "float8_e5m2": 1,
}  # fmt: skip
_HINT = (
    "record one with torch.profiler.profile(...) and its export_chrome_trace(), or "
    "tensorboard_trace_handler(), on a few steps"
)


def read_trace(path: str) -> Trace:
    """Read a trace of torch.profiler.

    Raises:
        FormatError: it is damaged, or records nothing.
        UnsupportedError: it is a trace of another tool.
        MvcError: see ``read_events``.
    """
    facts: dict[str, Any] = {}
    recording = _Recording(path)
    for event in read_events(path, facts):
        recording.add(event)
    recording.check(facts)
    info = facts.get("distributedInfo")
    info = info if isinstance(info, dict) else {}
    return Trace(
        path,
        _whole(info.get("rank")),
        _whole(info.get("world_size")),
        "gpu" if recording.has_device else "cpu",
        tuple(recording.list_steps()),
        recording.cover_compute(),
        tuple(recording.list_collectives()),
        recording.list_own(),
        Cover(_pairs(recording.copies)),
        Cover(_pairs(recording.searches)),
    )


def _whole(value: object) -> int | None:
    return value if type(value) is int and value >= 0 else None


def _pairs(flat: array[float]) -> Any:
    return memoryview(flat).cast("B").cast("d", (len(flat) // 2, 2)) if flat else []


class _Recording:
    """The events of a trace, sorted by what they are."""

    def __init__(self, path: str) -> None:
        self._path, self._count, self._origin_us = path, 0, math.nan
        self._is_ours, self._names = False, set[str]()
        self._kernels = array("d")
        self._operators: dict[object, array[float]] = {}
        self._handed: dict[object, array[float]] = {}
        self._carried: list[Collective] = []
        self._on_device: list[Collective] = []
        self._steps: dict[tuple[str, bool], dict[str, StepWindow]] = {}
        self._own: dict[tuple[str, str], array[float]] = {}
        self._trainers = set[str]()
        self.copies, self.searches = array("d"), array("d")

    @property
    def has_device(self) -> bool:
        return bool(self._kernels or self._on_device)

    def add(self, event: Any) -> None:
        """Take one event."""
        self._count += 1
        if not isinstance(event, dict):
            self._fail("is not an object")
        if event.get("ph") != "X":
            if event.get("ph") == "M" and event.get("name") == "process_name":
                args = event.get("args")
                self._names.add(str(args.get("name") if isinstance(args, dict) else ""))
            return
        kind, name = event.get("cat"), event.get("name")
        if not isinstance(kind, str) or not isinstance(name, str):
            return  # of another tool
        kind = kind.lower()
        if kind not in _KINDS:
            return
        self._is_ours = True
        start_s, end_s = self._read_time(event)
        if kind in _KERNELS:
            self._add_kernel(event, name, start_s, end_s)
        elif kind in _OPERATORS:
            self._add_operator(event, name, start_s, end_s)
        elif kind in _RANGES:
            self._add_range(event, (kind, name), start_s, end_s)

    def _read_time(self, event: Any) -> tuple[float, float]:
        start, length = event.get("ts"), event.get("dur")
        for value in (start, length):
            if not isinstance(value, int | float) or not abs(value) <= _MOST_US:  # not so NaN
                self._fail("has no time or length in microseconds")
        start, length = float(start), float(length)
        if length < 0:
            self._fail("ends before it starts")
        if math.isnan(self._origin_us):
            self._origin_us = start
        if self._count > _MOST_EVENTS:
            raise FormatError(
                f"{self._path!r} has more than {_MOST_EVENTS:,} events", hint="record fewer steps"
            )
        return (start - self._origin_us) / 1e6, (start - self._origin_us + length) / 1e6

    def _fail(self, why: str) -> NoReturn:
        raise FormatError(f"{self._path!r} is damaged: event {self._count:,} {why}")

    def _add_kernel(self, event: Any, name: str, start_s: float, end_s: float) -> None:
        if "nccl" not in name.lower():
            self._kernels.extend((start_s, end_s))
            return
        args = event.get("args")
        args = args if isinstance(args, dict) else {}
        called = args.get("Collective name")
        shown = called if isinstance(called, str) and called else name.partition("(")[0]
        counts = [_whole(args.get(f"{way} msg nelems")) or 0 for way in ("In", "Out")]
        size = max(counts) * _BYTES.get(str(args.get("dtype")).lower(), 0)
        self._on_device.append(Collective(shown, start_s, end_s, size or None))

    def _add_operator(self, event: Any, name: str, start_s: float, end_s: float) -> None:
        threads = self._handed if name.startswith(_HANDED_OVER) else self._operators
        self._note(threads, event, start_s, end_s)
        if name == _COPY:
            self.copies.extend((start_s, end_s))
        elif name == _SEARCH:
            self.searches.extend((start_s, end_s))

    def _add_range(self, event: Any, what: tuple[str, str], start_s: float, end_s: float) -> None:
        kind, name = what
        if name.startswith((_STEP, _OWN_STEP)):
            is_numbered = name.startswith(_STEP)
            family = (_STEP if is_numbered else _OWN_STEP, kind == _ON_DEVICE)
            steps = self._steps.setdefault(family, {})
            key = name if is_numbered else f"{name} {len(steps) + 1}"
            known = steps.get(key, StepWindow(key, start_s, end_s))
            steps[key] = StepWindow(key, min(known.start_s, start_s), max(known.end_s, end_s))
            self._trainers.add(_thread_of(event))
        elif name.startswith(_OWN) and kind == "user_annotation":
            place = (name, _thread_of(event))
            self._own.setdefault(place, array("d")).extend((start_s, end_s))
        elif name.startswith(_CARRIED):
            self._carried.append(Collective(name, start_s, end_s, _find_size(event.get("args"))))
            self._note(self._handed, event, start_s, end_s)

    def _note(
        self, threads: dict[object, array[float]], event: Any, start_s: float, end_s: float
    ) -> None:
        threads.setdefault(_thread_of(event), array("d")).extend((start_s, end_s))

    # What they come to.

    def check(self, facts: Mapping[str, Any]) -> None:
        """Check that this is a trace of torch.profiler, and that something was recorded."""
        if not self._is_ours and not {"schemaVersion", "deviceProperties"} & facts.keys():
            is_xla = any(name.startswith(("/host:", "/device:")) for name in self._names)
            tool = "TensorFlow or JAX" if is_xla else "another tool"
            raise UnsupportedError(
                f"{self._path!r} is a trace of {tool}, not of torch.profiler", hint=_HINT
            )
        if not self._operators and not self.has_device:
            raise FormatError(f"{self._path!r} records no operation", hint=_HINT)

    def cover_compute(self) -> Cover:
        """Return when something was computed."""
        if self.has_device:
            return Cover(_pairs(self._kernels))
        return Cover(
            *(
                subtract(merge(_pairs(spans)), merge(_pairs(self._handed.get(thread, array("d")))))
                for thread, spans in self._operators.items()
            )
        )

    def list_collectives(self) -> Iterable[Collective]:
        """Return the collectives as they began."""
        collectives = self._on_device if self.has_device else self._carried
        return sorted(collectives, key=lambda collective: collective.start_s)

    def list_own(self) -> dict[str, Spans]:
        """Return the ranges of mvc in threads that have steps, or in all if there are none."""
        kept = [
            (name, spans)
            for (name, thread), spans in self._own.items()
            if not self._trainers or thread in self._trainers
        ]
        return {
            name: merge(*(_pairs(spans) for other, spans in kept if other == name))
            for name, _ in kept
        }

    def list_steps(self) -> list[StepWindow]:
        """Return the steps; on a GPU, which lags behind, each lasts until the next one begins."""
        families = (
            (name, place) for name in (_STEP, _OWN_STEP) for place in (self.has_device, False)
        )
        known = next((self._steps[family] for family in families if family in self._steps), {})
        steps = sorted(known.values(), key=lambda step: step.start_s)
        if not steps:
            return [StepWindow("the whole trace", *self._extent())]
        if not self.has_device:
            return steps
        ends = [step.start_s for step in steps[1:]]
        ends.append(max(steps[-1].end_s, self._extent()[1]))
        return [
            StepWindow(step.name, step.start_s, end_s)
            for step, end_s in zip(steps, ends, strict=True)
        ]

    def _extent(self) -> tuple[float, float]:
        spans = [self._kernels] if self.has_device else self._operators.values()
        low = min((min(times) for times in spans if times), default=math.inf)
        high = max((max(times) for times in spans if times), default=-math.inf)
        for collective in (*self._on_device, *self._carried):
            low, high = min(low, collective.start_s), max(high, collective.end_s)
        return low, high


def _thread_of(event: Mapping[str, Any]) -> str:
    return f"{event.get('pid')} {event.get('tid')}"


def _find_size(args: Any) -> int | None:
    """Return the bytes of the tensors of a collective of gloo, if shapes were recorded."""
    if not isinstance(args, dict):
        return None
    shapes, types = args.get("Input Dims"), args.get("Input type")
    if not isinstance(shapes, list) or not isinstance(types, list):
        return None
    pairs = zip(shapes, types, strict=False)
    return sum(_count(shape) * _BYTES.get(str(kind).lower(), 0) for shape, kind in pairs) or None


def _count(shape: object) -> int:
    is_shape = isinstance(shape, list) and shape and all(_whole(size) is not None for size in shape)
    return math.prod(shape) if is_shape and isinstance(shape, list) else 0
