"""What all ranks save together: which rank has which boxes of which tensors, and which objects.

The plans of DCP say it: every item is a box of a tensor, or an object. All ranks get the same words, of
which each lays out its own part, so they need not talk about it again.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import msgspec
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner, WriteItemType

from mvc import UnsupportedError
from mvc_hooks.dcp.targets import Home  # noqa: TC001  msgspec needs it
from mvc_hooks.writer.messages import Address  # noqa: TC001  as above

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mvc_hooks.dcp.names import Path

Box = tuple[tuple[int, ...], tuple[int, ...]]
"""Offsets and sizes."""


class TensorWords(msgspec.Struct, frozen=True, array_like=True):
    """A tensor, and the number of the spread that says who has which box of it.

    ``at`` is its place in the order of the state.
    """

    at: int
    name: str
    path: tuple[str | int, ...]
    dtype: str
    shape: tuple[int, ...]
    spread: int


class ObjectWords(msgspec.Struct, frozen=True, array_like=True):
    """An object, which is not a tensor, and the rank that stores it."""

    at: int
    name: str
    path: tuple[str | int, ...]
    rank: int


class SharedPlan(msgspec.Struct, frozen=True, array_like=True):
    """What all ranks save. ``spreads`` are (rank, offsets, sizes) of boxes; ``turn`` counts saves."""

    turn: int
    tensors: tuple[TensorWords, ...]
    objects: tuple[ObjectWords, ...]
    spreads: tuple[tuple[tuple[int, tuple[int, ...], tuple[int, ...]], ...], ...]
    addresses: tuple[Address, ...]
    home: Home | None = None


class Presence(msgspec.Struct, frozen=True, array_like=True):
    """What a rank says of itself: the number that its next save has at least, and where it is reached.

    Rank 0 says ``home`` as well, if there are others.
    """

    turn: int
    address: Address
    home: Home | None = None


class RankTensor(msgspec.Struct, frozen=True, array_like=True):
    """A tensor, and the boxes of it that one rank has."""

    name: str
    path: tuple[str | int, ...]
    dtype: str
    shape: tuple[int, ...]
    boxes: list[Box]


class RankPlan(msgspec.Struct, frozen=True, array_like=True):
    """What one rank has; of objects name and path.

    ``known`` are the names of all that it has, also if another rank stores it.
    """

    tensors: tuple[RankTensor, ...]
    objects: tuple[tuple[str, tuple[str | int, ...]], ...]
    known: tuple[str, ...]
    presence: Presence


encode_plan = msgspec.msgpack.Encoder().encode
parse_shared = msgspec.msgpack.Decoder(SharedPlan).decode
parse_rank = msgspec.msgpack.Decoder(RankPlan).decode
parse_presence = msgspec.msgpack.Decoder(Presence).decode


def read_plan(plan: SavePlan) -> RankPlan:
    """Return what a plan of DCP says that a rank has."""
    tensors: dict[str, RankTensor] = {}
    objects = []
    for item in plan.items:
        name = item.index.fqn
        if item.type == WriteItemType.BYTE_IO:
            objects.append((name, _find_path(plan, name)))
            continue
        data = item.tensor_data
        if data is None:
            raise UnsupportedError(f"the plan does not say what tensor {name!r} is")
        dtype = str(data.properties.dtype).removeprefix("torch.")
        words = RankTensor(name, _find_path(plan, name), dtype, tuple(data.size), [])
        boxes = tensors.setdefault(name, words).boxes
        boxes.append((tuple(data.chunk.offsets), tuple(data.chunk.sizes)))
    known = tuple(plan.planner_data) if isinstance(plan.planner_data, dict) else ()
    presence = parse_presence(plan.storage_data)
    return RankPlan(tuple(tensors.values()), tuple(objects), known, presence)


def _find_path(plan: SavePlan, name: str) -> Path:
    """Return the path that a planner has flattened to a name; if it says none, the name is it."""
    path = plan.planner_data.get(name) if isinstance(plan.planner_data, dict) else None
    return tuple(path) if isinstance(path, tuple) and path else (name,)


def join_plans(plans: Sequence[RankPlan], root: str | None) -> SharedPlan:
    """Return what all ranks save; tensors at the top level belong below ``root``, if that is given.

    An object that several ranks have is stored by the first of them, which is rank 0 nearly always.
    """
    order, of_first = _order_names(plans)
    tensors: dict[str, tuple[RankTensor, list[Any]]] = {}
    objects: dict[str, ObjectWords] = {}
    for rank, plan in enumerate(plans):
        for tensor in plan.tensors:
            known, boxes = tensors.setdefault(tensor.name, (tensor, []))
            if (known.dtype, known.shape) != (tensor.dtype, tensor.shape):
                raise UnsupportedError(
                    f"tensor {tensor.name!r} is {tensor.dtype} {list(tensor.shape)} on rank {rank}, and "
                    f"{known.dtype} {list(known.shape)} on another"
                )
            boxes.extend((rank, *box) for box in tensor.boxes if math.prod(box[1]))
        for name, path in plan.objects:
            keeper = 0 if order[name] < of_first else rank
            objects.setdefault(name, ObjectWords(order[name], name, path, keeper))
    spreads: dict[tuple[Any, ...], int] = {}
    words = []
    for name, (tensor, boxes) in tensors.items():
        path = (root, *tensor.path) if root is not None and len(tensor.path) == 1 else tensor.path
        number = spreads.setdefault(tuple(boxes), len(spreads))
        words.append(TensorWords(order[name], name, path, tensor.dtype, tensor.shape, number))
    turn = max(plan.presence.turn for plan in plans)
    addresses = tuple(plan.presence.address for plan in plans)
    home = plans[0].presence.home
    return SharedPlan(turn, tuple(words), tuple(objects.values()), tuple(spreads), addresses, home)


def _order_names(plans: Sequence[RankPlan]) -> tuple[dict[str, int], int]:
    """Return the place of each name in the state, and how many of them rank 0 has."""
    order: dict[str, int] = {}
    of_first = 0
    for rank, plan in enumerate(plans):
        names = (
            *plan.known,
            *(tensor.name for tensor in plan.tensors),
            *(name for name, _ in plan.objects),
        )
        for name in names:
            order.setdefault(name, len(order))
        of_first = len(order) if rank == 0 else of_first
    return order, of_first


def find_cached(plans: list[SavePlan]) -> list[SavePlan] | None:
    """Return the plans of all ranks, where DCP sends only those that have changed; None if none has.

    Its planners keep the plans by their own class, so they are found by one that has just been made.
    """
    changed = [number for number, plan in enumerate(plans) if plan.usable]
    if len(changed) == len(plans):
        return plans
    if not changed:
        return None
    kept: dict[str, list[SavePlan]] = getattr(SavePlanner, "_cached_global_plan", {})
    for cached in kept.values():
        if len(cached) == len(plans) and all(cached[number] is plans[number] for number in changed):
            return cached
    raise UnsupportedError(
        "the planner sends the plans of some ranks only, and keeps the others elsewhere than torch does",
        hint="enable_plan_caching=False",
    )
