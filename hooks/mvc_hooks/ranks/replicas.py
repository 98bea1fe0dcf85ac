"""Do the ranks hold one model? A run in which each has its own would come back wrong.

Whole tensors have to be the same on all ranks, parts of DTensors on those that hold the same part. The
bytes are compared before the first commit, and once more after the first steps, when optimizers have their
state; the forms again whenever a commit has failed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import blake3

from mvc import UnsupportedError
from mvc_hooks.parts.module import ModulePart
from mvc_hooks.parts.optimizer import OptimizerPart
from mvc_hooks.parts.part import flatten_parts
from mvc_hooks.parts.tree import (
    find_at,
    format_path,
    is_array,
    is_sharded,
    list_items,
    map_leaves,
    outline,
    read_bits,
    walk_leaves,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from mvc_hooks.parts.part import Part
    from mvc_hooks.parts.tree import Steps
    from mvc_hooks.ranks.group import Ranks
    from mvc_hooks.ranks.own import RankView

_HINT = (
    "every rank of a run has the same parts, and trains one model: wrap it in DistributedDataParallel, "
    "or shard it with fully_shard or parallelize_module"
)
_HINT_STAGES = (
    "every rank of a run has the same parts, and trains one model; what has stages of a pipeline, each on ranks of its "
    "own, is saved through mvc_hooks.dcp"
)
_HINT_OPTIMIZER = (
    "an optimizer that keeps the state of a parameter on one rank alone cannot be committed: use one that has "
    "all of it on every rank, or shard the model by fully_shard"
)


def check_replicas(ranks: Ranks, parts: Mapping[str, Part], state: Mapping[str, Any]) -> None:
    """Compare parameters and optimizer state of all ranks; UnsupportedError names what differs."""
    every = ranks.exchange(dict(_digest_parts(parts, state)))
    seen: dict[tuple[str, str], tuple[int, bytes]] = {}
    for rank, digests in enumerate(every):
        for name in {**every[0], **digests}:
            if name not in every[0] or name not in digests:
                here, away = (0, rank) if name in every[0] else (rank, 0)
                raise UnsupportedError(
                    f"rank {here} has {name}, and rank {away} has not",
                    hint=_HINT_OPTIMIZER if _is_of_optimizer(name, parts) else _HINT_STAGES,
                )
            place, digest = digests[name]
            other, expected = seen.setdefault((name, place), (rank, digest))
            if digest == expected:
                continue
            raise UnsupportedError(
                f"{name} differs between rank {other} and rank {rank}",
                hint=_HINT_OPTIMIZER if _is_of_optimizer(name, parts) else _HINT,
            )


def _is_of_optimizer(name: str, parts: Mapping[str, Part]) -> bool:
    return any(
        isinstance(entry.part, OptimizerPart)
        and f"{name}.".startswith(f"{format_path(entry.path)}.")
        for entry in flatten_parts(parts)
    )


def _digest_parts(
    parts: Mapping[str, Part], state: Mapping[str, Any]
) -> Iterator[tuple[str, tuple[str, bytes]]]:
    """Yield name, which part of it is here, and a hash of that; what is not sharded is here whole."""
    for entry in flatten_parts(parts):
        if isinstance(entry.part, ModulePart):
            for name, param in entry.part.module.named_parameters():
                yield from _digest_value((*entry.path, name), param)
        elif isinstance(entry.part, OptimizerPart):
            yield from _digest_value(entry.path, find_at(state, entry.path))


def _digest_value(path: Steps, value: Any) -> Iterator[tuple[str, tuple[str, bytes]]]:
    for place, leaf in walk_leaves(value):
        if is_sharded(leaf):
            boxes = [(list(box.offsets), list(box.sizes)) for box in leaf.__create_chunk_list__()]
            name = f"{leaf.dtype} {list(leaf.shape)} {boxes}"
            yield format_path((*path, *place)), (name, digest_state(leaf))
    rest = map_leaves(value, lambda leaf, _: None if is_sharded(leaf) else leaf)
    if rest is not None:
        yield format_path(path), ("", digest_state(rest))


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


def find_difference(ranks: Ranks, view: RankView) -> str | None:
    """Return in words where the forms of the ranks' states first differ; every rank must call it."""
    forms = [
        (format_path(path), f"{outline(leaf)}{getattr(leaf, 'placements', '')}")
        for path, leaf in walk_leaves(view.shared)
        if path[0] not in view.private and is_array(leaf)
    ]
    digests = ranks.exchange(digest_state(forms))
    other = next((rank for rank, digest in enumerate(digests) if digest != digests[0]), None)
    if other is None:
        return None
    every = ranks.exchange(forms if ranks.rank in (0, other) else None)
    ours, theirs = dict(every[0]), dict(every[other])
    for path in {**ours, **theirs}:
        if ours.get(path) != theirs.get(path):
            here, there = (form.get(path, "missing") for form in (ours, theirs))
            return f"{path} is {here} on rank 0 and {there} on rank {other}"
    return f"rank {other} has its tensors in another order than rank 0"
