"""Is the transport sound? Known numbers are summed over the ranks, and every rank knows what must come out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import distributed

from mvc_hooks.parts.tree import is_sharded, to_local

if TYPE_CHECKING:
    from collections.abc import Iterator

_ROUNDS = 3
_NUMBERS = 1 << 18
_FACTOR = 0x9E3779B97F4A7C1  # odd: all bits are in use


def probe_transport(tensor: Any) -> bool:
    """Return whether sums over the ranks that hold a tensor come out right here; all of them must call it."""
    device = to_local(tensor.detach()).device
    is_sound = True
    for group in _list_groups(tensor):
        ranks = distributed.get_process_group_ranks(group or distributed.group.WORLD)
        for turn in range(_ROUNDS):
            numbers = torch.arange(turn, turn + _NUMBERS, device=device)
            found = numbers * _FACTOR + ranks.index(distributed.get_rank())
            expected = numbers * _FACTOR * len(ranks) + sum(range(len(ranks)))
            distributed.all_reduce(found, group=group)
            is_sound = is_sound and torch.equal(found, expected)
    return is_sound


def _list_groups(tensor: Any) -> Iterator[Any]:
    """Yield the groups that keep a tensor the same; None is that of all ranks."""
    if not is_sharded(tensor):
        yield None
        return
    for dim, placement in enumerate(tensor.placements):
        if placement.is_replicate() and tensor.device_mesh.size(dim) > 1:
            yield tensor.device_mesh.get_group(dim)
