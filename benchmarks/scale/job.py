"""A long run with commits and failures, event by event, and how often it should commit.

Failures come at random at a constant rate, which published runs give:

* Llama 3 (2024): 419 unexpected interruptions in 54 days on 16,384 GPUs: one in 50,700 GPU-hours, taken
  to grow with the number of GPUs; 78 % of them hardware, after which the node is replaced.
* Meta's research clusters (2024): a mean time to failure of 7.9 h on 1,024 GPUs and 1.8 h on 16,384, the
  latter a projection. Between them a power law is laid.

With a blocked time of d per commit and a mean time to failure of M, Young (1974) has √(2dM) as the best
interval; Daly (2006), as here for d < 2M, √(2dM)·(1 + ⅓√(d/2M) + d/18M) − d. Neither knows that a commit is
of use only once it is durable, nor that the next one waits for that.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from random import Random

_LLAMA_GPU_H = 54 * 24 * 16_384 / 419
_META = ((1024, 7.9), (16_384, 1.8))
HARDWARE_SHARE = 0.78
"""Of failures, after which a node is lost with its memory."""


def llama_mttf_s(ranks: int) -> float:
    """Return the mean time to failure at the rate of the Llama 3 run."""
    return _LLAMA_GPU_H / ranks * 3600


def meta_mttf_s(ranks: int) -> float:
    """Return the mean time to failure by Meta's study of its clusters."""
    (small, small_h), (large, large_h) = _META
    power = math.log(large_h / small_h) / math.log(large / small)
    return small_h * (ranks / small) ** power * 3600


RATES: dict[str, Callable[[int], float]] = {"Llama 3": llama_mttf_s, "Meta": meta_mttf_s}


@dataclass(frozen=True, slots=True)
class Job:
    """A run as its commits and failures see it.

    Attributes:
        mttf_s: mean time to failure.
        blocked_s: what training waits for each commit; one is drawn.
        durable_s: from the start of a commit until it is durable; one is drawn, together with that.
        recovery_s: from a failure to the next step, of a lost process and of a lost node; one of each is
            drawn.
    """

    mttf_s: float
    blocked_s: Sequence[float]
    durable_s: Sequence[float]
    process_s: Sequence[float]
    node_s: Sequence[float]


@dataclass(frozen=True, slots=True)
class Share:
    """Where the time of a run went, as shares of it."""

    useful: float
    blocked: float
    lost: float
    recovering: float


def young_s(blocked_s: float, mttf_s: float) -> float:
    """Return Young's best interval."""
    return math.sqrt(2 * blocked_s * mttf_s)


def daly_s(blocked_s: float, mttf_s: float) -> float:
    """Return Daly's best interval."""
    part = math.sqrt(blocked_s / (2 * mttf_s))
    return young_s(blocked_s, mttf_s) * (1 + part / 3 + part * part / 9) - blocked_s


def simulate_job(job: Job, interval_s: float, draw: Random, failures: int) -> Share:
    """Train with a commit each so many seconds until so many failures have come.

    ``work`` is what was trained, ``safe`` how much of it the newest durable commit has.
    """
    events: list[tuple[float, str, float]] = []
    now_s = work_s = safe_s = blocked_s = lost_s = recovering_s = pending_until_s = 0.0
    heapq.heappush(events, (draw.expovariate(1 / job.mttf_s), "failure", 0.0))
    heapq.heappush(events, (interval_s, "commit", 0.0))
    came = 0
    while came < failures:
        at_s, kind, value = heapq.heappop(events)
        if kind == "durable":
            safe_s = value
            continue
        work_s += max(0.0, at_s - now_s)
        now_s = max(now_s, at_s)
        if kind == "commit":
            chosen = draw.randrange(len(job.blocked_s))
            waited_s = max(0.0, pending_until_s - now_s) + job.blocked_s[chosen]
            pending_until_s = max(pending_until_s, now_s) + job.durable_s[chosen]
            blocked_s += waited_s
            now_s += waited_s
            heapq.heappush(events, (pending_until_s, "durable", work_s))
            heapq.heappush(events, (now_s + interval_s, "commit", 0.0))
            continue
        came += 1
        lost_s += work_s - safe_s
        work_s = safe_s
        is_node = draw.random() < HARDWARE_SHARE
        down_s = draw.choice(job.node_s if is_node else job.process_s)
        recovering_s += down_s
        now_s += down_s
        pending_until_s = now_s
        events = [(now_s + interval_s, "commit", 0.0)]
        heapq.heappush(events, (now_s + draw.expovariate(1 / job.mttf_s), "failure", 0.0))
    return Share(work_s / now_s, blocked_s / now_s, lost_s / now_s, recovering_s / now_s)


def list_intervals(job: Job) -> list[float]:
    """Return intervals to try, each a fifth longer than the one before, around Young's."""
    middle_s = young_s(sum(job.blocked_s) / len(job.blocked_s), job.mttf_s)
    durable_s = sum(job.durable_s) / len(job.durable_s)
    middle_s = max(middle_s, durable_s / 2)
    return [middle_s * 1.2**power for power in range(-8, 20)]


def find_best(
    job: Job, make_draw: Callable[[], Random], failures: int
) -> tuple[float, dict[float, Share]]:
    """Return the best interval, and the share of each one tried; all see the same failures."""
    found = {
        interval_s: simulate_job(job, interval_s, make_draw(), failures)
        for interval_s in list_intervals(job)
    }
    return max(found, key=lambda one: found[one].useful), found
