"""How fast the ranks are together: latency of a small all_reduce, and bandwidth of a large one.

Bandwidth is that of the bus, as nccl-tests has it: an all_reduce of S bytes among n ranks has each link carry
2 (n - 1) / n S bytes, however it is done well, so figures of different n can be compared with the link's speed
(NVIDIA, nccl-tests, doc/PERFORMANCE.md).
"""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING

import torch
from torch import distributed

if TYPE_CHECKING:
    from mvc_hooks.ranks.group import Ranks

_SMALL_BYTES, _SMALL_TIMES = 4, 60
_LARGE_BYTES, _LARGE_TIMES = 16 * 2**20, 6
_WARM_UP = 5
_CLOCK_ROUNDS = 8


def measure_link(size: int, device: torch.device) -> dict[str, object]:
    """Return latency and bandwidth of the process group; every rank must call it."""
    small = _time(_SMALL_BYTES, _SMALL_TIMES, device)
    large_s = statistics.median(_time(_LARGE_BYTES, _LARGE_TIMES, device))
    return {
        "device": device.type,
        "small_bytes": _SMALL_BYTES,
        "latency_s": statistics.median(small),
        "latency_p99_s": statistics.quantiles(small, n=100)[98],
        "large_bytes": _LARGE_BYTES,
        "large_s": large_s,
        "bus_bytes_per_s": 2 * (size - 1) / size * _LARGE_BYTES / large_s,
    }


def _time(size_bytes: int, times: int, device: torch.device) -> list[float]:
    """Return how long each of some all_reduces took on this rank."""
    tensor = torch.zeros(size_bytes // 4, device=device)
    found: list[float] = []
    for _ in range(_WARM_UP + times):
        distributed.barrier()
        started_s = time.perf_counter()
        distributed.all_reduce(tensor)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        found.append(time.perf_counter() - started_s)
    return found[_WARM_UP:]


def measure_clock(ranks: Ranks) -> float:
    """Return how far this rank's clock is from rank 0's, in seconds; every rank must call it.

    All read their clocks as they leave a meeting. They leave it at nearly the same time, at best: the least of some
    rounds counts.
    """
    apart: list[float] = []
    for _ in range(_CLOCK_ROUNDS):
        ranks.exchange(None)
        times = ranks.exchange(time.time())
        apart.append(abs(times[ranks.rank] - times[0]))
    return min(apart)
