"""What to change, and why: conclusions from the steps of a trace, or of several ranks' traces.

DistributedDataParallel sums a bucket of gradients as soon as a backward pass has filled it, and fills them from the
last layer to the first. So all but the last bucket can hide behind the rest of the backward pass; the last cannot.
Smaller buckets start earlier and leave less for the end, but each costs the latency of one collective.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean, median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from mvc.tracing.overlap import Exposed, Overlap, Step
    from mvc.tracing.trace import Trace

_MATTERS = 0.05  # of a step
_TRIFLE = 0.01
_LATE = 0.75
_MOST = 0.5
_MANY, _SMALL_BYTES, _SHORT_S = 16, 2**20, 2e-4
_PARTS = 8  # buckets to have instead of one


@dataclass(frozen=True, slots=True)
class Advice:
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


def advise(trace: Trace, overlap: Overlap) -> list[Advice]:
    """Return what the steps of one rank say, what matters most first."""
    steps = overlap.steps
    total_s = sum(one.seconds for one in steps) or 1e-12
    if not any(one.collectives for one in steps):
        return [
            Advice(
                "note",
                "no collective is in these steps",
                "profile a run of several ranks; collectives on GPUs need ProfilerActivity.CUDA",
            ),
            *_advise_own(overlap, total_s),
        ]
    exposed_s = sum(one.exposed_s for one in steps)
    found = [_sum_up(steps, exposed_s / total_s)]
    if exposed_s / total_s >= _MATTERS:
        found += _advise_buckets([one for one in steps if one.collectives])
    return [*found, *_advise_copies(trace, steps, total_s), *_advise_own(overlap, total_s)]


def _sum_up(steps: Sequence[Step], share: float) -> Advice:
    communication_s = sum(one.communication_s for one in steps) or 1e-12
    hidden = sum(one.hidden_s for one in steps) / communication_s
    text = f"{_percent(hidden)} of the communication is hidden; the rest is {_percent(share)} of a step"
    return Advice("good" if share < _MATTERS else "warning", text)


def _advise_buckets(steps: Sequence[Step]) -> Iterator[Advice]:
    compute_s = fmean(one.compute_s for one in steps)
    communication_s = fmean(one.communication_s for one in steps)
    counts = median(len(one.collectives) for one in steps)
    is_split = counts >= _MANY and _is_small([one for step in steps for one in step.collectives])
    is_short = communication_s <= compute_s
    if not is_short:
        yield Advice(
            "warning",
            f"a step communicates for {_ms(communication_s)} and computes for {_ms(compute_s)}: "
            "no order of buckets can hide that",
            "send less: compress gradients, or sum them every few steps (no_sync()); or use a faster link",
        )
    if is_split:
        yield Advice(
            "warning",
            f"{counts:.0f} small collectives a step: each costs its latency, whatever it carries",
            "a larger bucket_cap_mb of DistributedDataParallel joins them",
        )
    elif is_short:
        yield from [_advise_one(steps)] if counts == 1 else _advise_order(steps)


def _advise_one(steps: Sequence[Step]) -> Advice:
    sizes = [one.size_bytes for step in steps for one in step.collectives if one.size_bytes]
    wanted = max(median(sizes) / _PARTS / 2**20, 0.1) if sizes else None
    return Advice(
        "warning",
        "all gradients are in one bucket, whose sum begins when the backward pass is over",
        "a smaller bucket_cap_mb of DistributedDataParallel lets most of it begin earlier"
        + (f": about {wanted:.2g}" if wanted else ""),
    )


def _advise_order(steps: Sequence[Step]) -> Iterator[Advice]:
    exposed_s = sum(one.exposed_s for step in steps for one in step.collectives) or 1e-12
    lasts = [step.collectives[-1] for step in steps]
    if sum(one.exposed_s for one in lasts) / exposed_s >= _MOST:
        size = max((one.size_bytes or 0 for one in lasts), default=0)
        shown = f" of {size / 2**20:.3g} MiB" if size else ""
        yield Advice(
            "warning",
            f"the last bucket{shown} is most of what is not hidden: nothing is left to compute then",
            "a smaller bucket_cap_mb leaves less for the end; the last bucket holds the parameters "
            "registered first, so a large embedding there may be registered later",
        )
    late = median(step.collectives[0].computed for step in steps)
    if late >= _LATE:
        yield Advice(
            "warning",
            f"the first bucket is not summed before {_percent(late)} of the computation is done",
            "register layers in the order in which the forward pass uses them, and take a smaller "
            "bucket_cap_mb, so that buckets fill early",
        )


def _is_small(collectives: Sequence[Exposed]) -> bool:
    sizes = [one.size_bytes for one in collectives if one.size_bytes is not None]
    if sizes:
        return median(sizes) < _SMALL_BYTES
    return median(one.seconds for one in collectives) < _SHORT_S


def _advise_copies(trace: Trace, steps: Sequence[Step], total_s: float) -> Iterator[Advice]:
    windows = [(one.start_s, one.start_s + one.seconds) for one in steps]
    copies_s = sum(trace.copies.within(*one) for one in windows)
    if copies_s / total_s >= _TRIFLE:
        yield Advice(
            "warning",
            f"sums are copied back into gradients for {_percent(copies_s / total_s)} of a step",
            "gradient_as_bucket_view=True of DistributedDataParallel saves the copies, and memory",
        )
    searches_s = sum(trace.searches.within(*one) for one in windows)
    if searches_s / total_s >= _TRIFLE:
        yield Advice(
            "warning",
            f"{_percent(searches_s / total_s)} of a step goes into looking for unused parameters",
            "find_unused_parameters=False if all are used, static_graph=True if always the same are",
        )


def _advise_own(overlap: Overlap, total_s: float) -> Iterator[Advice]:
    own_s = sum(one.own_s for one in overlap.steps)
    if own_s / total_s >= _TRIFLE:
        name, (seconds, _) = max(overlap.sum_own().items(), key=lambda item: item[1][0])
        yield Advice(
            "warning",
            f"mvc takes {_percent(own_s / total_s)} of these steps, most of it {name} ({_ms(seconds)})",
            "commit less often (every=, every_seconds=)",
        )


def find_straggler(overlaps: Sequence[Overlap]) -> Straggler | None:
    """Return the rank that the others wait for, if it costs a step something.

    A collective ends for all at the same time, so who comes last is in it for the shortest time. Clocks
    of different machines do not count.
    """
    if len(overlaps) < 2:  # noqa: PLR2004  a rank alone waits for nobody
        return None
    waits = [fmean(step.communication_s for step in one.steps) for one in overlaps]
    trace = min(range(len(waits)), key=waits.__getitem__)
    others_wait_s = median(wait for place, wait in enumerate(waits) if place != trace)
    seconds = fmean(step.seconds for one in overlaps for step in one.steps)
    if others_wait_s - waits[trace] < _MATTERS * seconds:
        return None
    excess = {
        "computation": _excess([[s.compute_s for s in one.steps] for one in overlaps], trace),
        "mvc": _excess([[s.own_s for s in one.steps] for one in overlaps], trace),
        "idle time": _excess([[s.idle_s for s in one.steps] for one in overlaps], trace),
    }
    most = max(excess, key=excess.__getitem__)
    is_cause = excess[most] >= _MOST * (others_wait_s - waits[trace])
    because, excess_s = (most, excess[most]) if is_cause else (None, 0.0)
    return Straggler(trace, waits[trace], others_wait_s, because, excess_s)


def _excess(values: Sequence[Sequence[float]], place: int) -> float:
    means = [fmean(one) for one in values]
    return means[place] - median(mean for at, mean in enumerate(means) if at != place)


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %" if share < 0.0995 else f"{100 * share:.0f} %"  # noqa: PLR2004  three digits are enough


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"
