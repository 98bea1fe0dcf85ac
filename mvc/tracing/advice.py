"""What to change, and why: conclusions from the steps of a trace, or of several ranks' traces.

DistributedDataParallel sums a bucket of gradients as soon as a backward pass has filled it, and fills them from the
last layer to the first. So all but the last bucket can hide behind the rest of the backward pass; the last cannot.
Smaller buckets start earlier and leave less for the end, but each costs the latency of one collective.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mvc.tracing.overlap import Overlap, Step
    from mvc.tracing.spans import Trace

_MATTERS = 0.05  # of a step
_TRIFLE = 0.01
_LATE = 0.75
_MOST = 0.5
_MANY, _SMALL_BYTES, _SHORT_S = 16, 2**20, 2e-4
_PARTS = 8  # buckets to have instead of one


@dataclass(frozen=True, slots=True)
class TraceAdvice:
    """A finding: ``level`` is ``good``, ``note`` or ``warning``; ``hint`` says what to change, if anything."""

    level: str
    text: str
    hint: str | None = None


@dataclass(frozen=True, slots=True)
class Straggler:
    """The rank that the others wait for, which waits least itself.

    Attributes:
        trace: its place among the traces.
        waits_s: its time in collectives in a step, on average.
        others_wait_s: that of the others, the median of them.
        because: what it does for longer than the others: ``computation``, ``mvc`` or ``idle time``;
            None if none of them explains it.
        excess_s: by how much, in a step.
    """

    trace: int
    waits_s: float
    others_wait_s: float
    because: str | None
    excess_s: float


def advise(trace: Trace, overlap: Overlap) -> list[TraceAdvice]:
    """Return what the steps of one rank say, what matters most first."""
    steps = overlap.steps
    total_s = sum(step.seconds for step in steps) or 1e-12
    if not any(step.collectives for step in steps):
        return [
            TraceAdvice(
                "note",
                "no collective is in these steps",
                "profile a run of several ranks; collectives on GPUs need ProfilerActivity.CUDA",
            ),
            *_advise_own(overlap, total_s),
        ]
    communication_s = sum(step.communication_s for step in steps) or 1e-12
    hidden = _percent(sum(step.hidden_s for step in steps) / communication_s)
    exposed = sum(step.exposed_s for step in steps) / total_s
    text = f"{hidden} of the communication is hidden; the rest is {_percent(exposed)} of a step"
    advice = [TraceAdvice("good" if exposed < _MATTERS else "warning", text)]
    if exposed >= _MATTERS:
        advice += _advise_buckets([step for step in steps if step.collectives])
    return [*advice, *_advise_copies(trace, steps, total_s), *_advise_own(overlap, total_s)]


def _advise_buckets(steps: Sequence[Step]) -> Iterator[TraceAdvice]:
    compute_s = fmean(step.compute_s for step in steps)
    communication_s = fmean(step.communication_s for step in steps)
    counts = median(len(step.collectives) for step in steps)
    every = [collective for step in steps for collective in step.collectives]
    sizes = [collective.size_bytes for collective in every if collective.size_bytes is not None]
    is_small = (
        median(sizes) < _SMALL_BYTES if sizes else median(c.seconds for c in every) < _SHORT_S
    )
    is_split = counts >= _MANY and is_small
    is_short = communication_s <= compute_s
    if not is_short:
        yield TraceAdvice(
            "warning",
            f"a step communicates for {_ms(communication_s)} and computes for {_ms(compute_s)}: "
            "no order of buckets can hide that",
            "send less: compress gradients, or sum them every few steps (no_sync()); or use a faster link",
        )
    if is_split:
        yield TraceAdvice(
            "warning",
            f"{counts:.0f} small collectives a step: each costs its latency, whatever it carries",
            "a larger bucket_cap_mb of DistributedDataParallel joins them",
        )
    elif is_short:
        yield from _advise_single(sizes) if counts == 1 else _advise_order(steps)


def _advise_single(sizes: Sequence[int]) -> Iterator[TraceAdvice]:
    wanted = max(median(filter(None, sizes)) / _PARTS / 2**20, 0.1) if any(sizes) else None
    yield TraceAdvice(
        "warning",
        "all gradients are in one bucket, whose sum begins when the backward pass is over",
        "a smaller bucket_cap_mb of DistributedDataParallel lets most of it begin earlier"
        + (f": about {wanted:.2g}" if wanted else ""),
    )


def _advise_order(steps: Sequence[Step]) -> Iterator[TraceAdvice]:
    exposed_s = sum(each.exposed_s for step in steps for each in step.collectives) or 1e-12
    lasts = [step.collectives[-1] for step in steps]
    if sum(last.exposed_s for last in lasts) / exposed_s >= _MOST:
        size = max((last.size_bytes or 0 for last in lasts), default=0)
        shown = f" of {size / 2**20:.3g} MiB" if size else ""
        yield TraceAdvice(
            "warning",
            f"most of what is not hidden is the last bucket{shown}: when it is sent, no computation is left",
            "a smaller bucket_cap_mb leaves less for the end; the last bucket holds the parameters "
            "registered first, so a large embedding there may be registered later",
        )
    late = median(step.collectives[0].computed for step in steps)
    if late >= _LATE:
        yield TraceAdvice(
            "warning",
            f"the first bucket is not summed before {_percent(late)} of the computation is done",
            "register layers in the order in which the forward pass uses them, and take a smaller "
            "bucket_cap_mb, so that buckets fill early",
        )


def _advise_copies(trace: Trace, steps: Sequence[Step], total_s: float) -> Iterator[TraceAdvice]:
    windows = [(step.start_s, step.start_s + step.seconds) for step in steps]
    copies_s = sum(trace.copies.within(*window) for window in windows)
    if copies_s / total_s >= _TRIFLE:
        yield TraceAdvice(
            "warning",
            f"sums are copied back into gradients for {_percent(copies_s / total_s)} of a step",
            "gradient_as_bucket_view=True of DistributedDataParallel saves the copies, and memory",
        )
    searches_s = sum(trace.searches.within(*window) for window in windows)
    if searches_s / total_s >= _TRIFLE:
        yield TraceAdvice(
            "warning",
            f"{_percent(searches_s / total_s)} of a step goes into looking for unused parameters",
            "find_unused_parameters=False if all are used, static_graph=True if always the same are",
        )


def _advise_own(overlap: Overlap, total_s: float) -> Iterator[TraceAdvice]:
    own_s = sum(step.own_s for step in overlap.steps)
    if own_s / total_s >= _TRIFLE:
        name, (seconds, _) = max(overlap.sum_own().items(), key=lambda item: item[1][0])
        yield TraceAdvice(
            "warning",
            f"mvc takes {_percent(own_s / total_s)} of these steps, most of it {name} ({_ms(seconds)})",
            "commit less often (every=, every_seconds=)",
        )


def find_straggler(overlaps: Sequence[Overlap]) -> Straggler | None:
    """Return the rank that the others wait for, if it costs a step something.

    A collective ends for all at the same time, so who comes last is in it for the shortest time. Clocks
    of different machines do not count.
    """
    if len(overlaps) < 2:  # noqa: PLR2004  a single rank waits for no other
        return None
    waits = [fmean(step.communication_s for step in overlap.steps) for overlap in overlaps]
    trace = min(range(len(waits)), key=waits.__getitem__)
    others_wait_s = median(wait for place, wait in enumerate(waits) if place != trace)
    seconds = fmean(step.seconds for overlap in overlaps for step in overlap.steps)
    if others_wait_s - waits[trace] < _MATTERS * seconds:
        return None
    excess = {
        what: _excess([[getattr(step, name) for step in each.steps] for each in overlaps], trace)
        for what, name in (("computation", "compute_s"), ("mvc", "own_s"), ("idle time", "idle_s"))
    }
    most = max(excess, key=excess.__getitem__)
    is_cause = excess[most] >= _MOST * (others_wait_s - waits[trace])
    because, excess_s = (most, excess[most]) if is_cause else (None, 0.0)
    return Straggler(trace, waits[trace], others_wait_s, because, excess_s)


def _excess(values: Sequence[Sequence[float]], place: int) -> float:
    means = list(map(fmean, values))
    return means[place] - median(mean for at, mean in enumerate(means) if at != place)


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %" if share < 0.0995 else f"{100 * share:.0f} %"  # noqa: PLR2004  three digits are enough


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"
