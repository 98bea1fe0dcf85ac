"""DTensors in parts of a run: each rank works on its own local piece, without asking another rank.

Operations on DTensors may send messages (a comparison, a count, a copy to other placements); what a
part does between two steps must not, since other ranks may do something else meanwhile. So bits are
read and compared in the local tensor, and copies are made between equal placements.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import torch

from mvc import ConflictError
from mvc.training import ArrayOutline
from mvc_hooks.parts.tree import ABSENT, find_at, is_sharded, list_items, to_local

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

COPIED = "copied"  # how a placement is spelled that has the whole tensor on every rank


def make_blank(
    like: Any, stored: ArrayOutline, placed: Sequence[object] | None = None
) -> torch.Tensor:
    """Return a new DTensor with the mesh and shape of another, for a stored tensor.

    It has the other's placements, too, if ``placed`` does not spell its own. Only the part that is
    here takes memory.
    """
    kind = getattr(torch, stored.dtype)
    if placed is None:
        return torch.empty_like(like.detach(), dtype=kind)
    from torch.distributed.tensor import empty  # noqa: PLC0415  loaded, as there is a DTensor

    return empty(
        like.shape, dtype=kind, device_mesh=like.device_mesh, placements=_build_placements(placed)
    )


def fits_whole(tensor: Any, stored: object) -> bool:
    """Return whether a stored array has the shape of a DTensor, so that it may be sharded like that."""
    return (
        is_sharded(tensor)
        and isinstance(stored, ArrayOutline)
        and stored.kind == "tensor"
        and stored.shape == tuple(tensor.shape)
    )


def shard_like(like: torch.Tensor, whole: torch.Tensor) -> torch.Tensor:
    """Return a tensor sharded as another of its shape, with the values of a whole one."""
    if is_sharded(whole):
        return whole
    made = torch.empty_like(like.detach(), dtype=whole.dtype)
    if to_local(made).numel():
        (chunk,) = like.__create_chunk_list__()  # type: ignore[attr-defined]  # DTensor has it
        cut = tuple(
            slice(at, at + size) for at, size in zip(chunk.offsets, chunk.sizes, strict=True)
        )
        to_local(made).copy_(whole[cut])
    return made


def blank_shards(captured: Any, stored: Any) -> Any:
    """Return a new DTensor for every captured one that is stored with its shape, nested as both.

    ABSENT if there is none.
    """
    if fits_whole(captured, stored):
        return make_blank(captured, stored)
    items = list_items(captured)
    if items is None or list_items(stored) is None:
        return ABSENT
    blanks = {key: blank_shards(item, find_at(stored, (key,))) for key, item in items}
    return nest_present(blanks, captured)


def nest_present(values: Mapping[Any, Any], like: object) -> Any:
    """Return values by key as a dict or list, as ``like`` is, without those that are ABSENT; ABSENT if all are."""
    if all(value is ABSENT for value in values.values()):
        return ABSENT
    if isinstance(like, dict):
        return {key: value for key, value in values.items() if value is not ABSENT}
    return [None if value is ABSENT else value for value in values.values()]


def describe_sum(tensor: Any) -> dict[str, Any] | None:
    """Return what is here of a DTensor that is still to be added up, and how; None for any other."""
    if not is_sharded(tensor) or not any(placement.is_partial() for placement in tensor.placements):
        return None
    placed = spell_placements(tensor)
    if None in placed:
        return None  # it will be refused by its path
    return {"here": to_local(tensor.detach()), "placed": placed}


def spell_placements(tensor: Any) -> list[int | str | None]:
    """Return how a DTensor lies along each dimension of its mesh; None for a way without a word.

    The dimension of the tensor that is sharded there, ``copied``, or how the summands become one.
    """
    kinds = [(type(placement).__name__, placement) for placement in tensor.placements]
    known = {"Shard": "dim", "Partial": "reduce_op"}
    return [
        COPIED if kind == "Replicate" else getattr(placement, known.get(kind, ""), None)
        for kind, placement in kinds
    ]


def _build_placements(spelled: Iterable[object]) -> list[Any]:
    from torch.distributed.tensor import Partial, Replicate, Shard  # noqa: PLC0415  as above

    placements: list[Any] = []
    for word in spelled:
        if word == COPIED:
            placements.append(Replicate())
        else:
            placements.append(Shard(word) if isinstance(word, int) else Partial(str(word)))
    return placements


def build_sum(param: torch.Tensor, stored: dict[str, Any]) -> torch.Tensor:
    """Return the gradient of a parameter that ``describe_sum`` described."""
    from torch.distributed.tensor import DTensor  # noqa: PLC0415  loaded, as the parameter is one

    mesh = getattr(param, "device_mesh", None)
    if mesh is None or mesh.ndim != len(stored["placed"]):
        raise ConflictError("gradients were summed up over another mesh")
    return DTensor.from_local(
        stored["here"].to(to_local(param).device),
        mesh,
        _build_placements(stored["placed"]),
        run_check=False,
        shape=param.shape,
        stride=param.stride(),
    )


def list_unreduced(modules: Iterable[torch.nn.Module]) -> list[str]:
    """Return the parameters of FSDP2 whose gradients were not yet averaged over the ranks.

    Those gradients are in no parameter: FSDP2 keeps them until it is to average them.
    """
    return sorted(
        {str(getattr(param, "_param_fqn", "?")) for param in _iterate_waiting(modules, clear=False)}
    )


def drop_unreduced(modules: Iterable[torch.nn.Module]) -> None:
    """Drop gradients that were not yet averaged."""
    for _ in _iterate_waiting(modules, clear=True):
        pass


def _iterate_waiting(modules: Iterable[torch.nn.Module], *, clear: bool) -> Iterator[Any]:
    """Yield what FSDP2 keeps of every parameter with gradients of its own; torch has no public way."""
    for group in _list_groups(modules):
        is_partial = getattr(group, "_partial_reduce_output", None) is not None
        if is_partial and clear:
            group._partial_reduce_output = None  # noqa: SLF001
        for param in getattr(group, "fsdp_params", ()):
            whole = getattr(param, "_unsharded_param", None)
            waits = getattr(param, "unsharded_accumulated_grad", None) is not None
            if is_partial or waits or (whole is not None and whole.grad is not None):
                yield param
                if clear:
                    param.unsharded_accumulated_grad = None
                    if whole is not None:
                        whole.grad = None


def _list_groups(modules: Iterable[torch.nn.Module]) -> list[Any]:
    fsdp: Any = sys.modules.get("torch.distributed.fsdp")
    kind = getattr(fsdp, "FSDPModule", ())
    states = [
        child._get_fsdp_state()  # noqa: SLF001
        for module in modules
        for child in module.modules()
        if isinstance(child, kind)
    ]
    groups: list[Any] = []
    for state in states:
        several = getattr(state, "_fsdp_param_groups", None)
        groups += several if several is not None else [getattr(state, "_fsdp_param_group", None)]
    return list({id(group): group for group in groups if group is not None}.values())
