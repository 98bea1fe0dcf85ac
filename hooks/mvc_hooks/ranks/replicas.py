"""Are the ranks replicas of one model? A run of another kind would come back wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import blake3

from mvc import UnsupportedError
from mvc_hooks.parts.module import ModulePart
from mvc_hooks.parts.optimizer import OptimizerPart
from mvc_hooks.parts.part import flatten_parts
from mvc_hooks.parts.tree import find_at, format_path, list_items, read_bits

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mvc_hooks.parts.part import Part
    from mvc_hooks.ranks.group import Ranks


def check_replicas(ranks: Ranks, parts: Mapping[str, Part], state: Mapping[str, Any]) -> None:
    """Compare parameters and optimizer state of all ranks; UnsupportedError names what differs."""
    found: dict[str, bytes] = {}
    for entry in flatten_parts(parts):
        if isinstance(entry.part, ModulePart):
            for name, param in entry.part.module.named_parameters():
                found[format_path((*entry.path, name))] = digest_state(param)
        elif isinstance(entry.part, OptimizerPart):
            found[format_path(entry.path)] = digest_state(find_at(state, entry.path))
    every = ranks.exchange(found)
    for rank, other in enumerate(every):
        for name in {**every[0], **other}:
            if every[0].get(name) != other.get(name):
                raise UnsupportedError(
                    f"{name} differs between rank 0 and rank {rank}",
                    hint="ranks are committed as replicas of one model; wrap it in "
                    "DistributedDataParallel",
                )


def digest_state(value: Any) -> bytes:
    """Return a hash of a nested state; equal hashes mean equal bits."""
    hasher = blake3.blake3()
    items = list_items(value)
    if items is None:
        what, data = read_bits(value)
        hasher.update(what.encode())
        hasher.update(data)
    else:
        hasher.update(f"{type(value).__name__} {len(items)}".encode())
    for key, item in items or ():
        hasher.update(repr(key).encode())
        hasher.update(digest_state(item))
    return hasher.digest()
