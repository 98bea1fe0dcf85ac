"""How fast the link between ranks is: as stated, or as a few sums at the start of a run show it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import torch
from torch import distributed

from mvc_hooks.ranks.group import find_backends
from mvc_hooks.ranks.syncing import count_bus_bytes

if TYPE_CHECKING:
    from mvc_hooks.ranks.group import Ranks

_HOST_BYTES, _CUDA_BYTES = 4 * 2**20, 64 * 2**20
_TRIES = 4  # the first one opens connections


def measure_link(ranks: Ranks) -> float:
    """Return bytes per second that a rank sends while nothing else happens; every rank must call it.

    It is the best of a few sums, as the slowest rank has it.
    """
    uses_cuda = "cuda" in find_backends() and torch.cuda.is_available()
    device = torch.device("cuda", torch.cuda.current_device()) if uses_cuda else torch.device("cpu")
    size_bytes = _CUDA_BYTES if uses_cuda else _HOST_BYTES
    values = torch.zeros(size_bytes // 4, dtype=torch.float32, device=device)
    best_s = min(_time_sum(values) for _ in range(_TRIES))
    slowest_s: float = max(ranks.exchange(best_s))
    return count_bus_bytes(size_bytes, ranks.size) / slowest_s


def _time_sum(values: torch.Tensor) -> float:
    began_s = time.perf_counter()
    distributed.all_reduce(values)
    if values.is_cuda:
        torch.cuda.synchronize(values.device)
    return time.perf_counter() - began_s
