"""Optimizer state that does not lie on the ranks as its parameter does.

State comes back sharded as its parameter, because most of it is, and because that fits any number of ranks.
Tensor parallelism makes exceptions: the gradient of an embedding that is sharded by rows is whole on
every rank if what it returns is sharded by sequence, and so is a momentum that began as a copy of it. The
values are the same either way, but an optimizer that looks at a matrix as a whole (Muon) then adds up in
another order. So a commit of several ranks says which state lies otherwise, and a run whose
parameters lie as they did then has it so again.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

from mvc import FormatError
from mvc_hooks.parts.optimizer import index_parameters
from mvc_hooks.parts.shards import COPIED, spell_placements
from mvc_hooks.parts.tree import is_sharded

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch.optim import Optimizer

    from mvc_hooks.parts.optimizer import OptimizerPart
    from mvc_hooks.parts.tree import Steps


def describe_placed(parts: Mapping[Steps, OptimizerPart]) -> list[dict[str, Any]]:
    """Return which state of optimizers lies otherwise than its parameter, to be committed."""
    found = ((path, part, _list_placed(part)) for path, part in parts.items())
    return [
        {"at": list(path), "layout": _digest_layout(part.optimizer), "state": state}
        for path, part, state in found
        if state
    ]


def _list_placed(part: OptimizerPart) -> list[list[Any]]:
    """Return [index, name, placements] of state that lies otherwise than its parameter."""
    listed: list[list[Any]] = [
        [index, name, spell_placements(value)]
        for (index, name), value, param in part.list_sharded()
        if value.placements != param.placements and value.device_mesh == param.device_mesh
    ]
    return [one for one in listed if all(how == COPIED or type(how) is int for how in one[2])]


def expect_placed(stored: object, parts: Mapping[Steps, OptimizerPart]) -> None:
    """Tell optimizers how stored state lay, those whose parameters lie as they did then."""
    try:
        known = {tuple(one["at"]): one for one in stored or ()}  # type: ignore[attr-defined]
        for path, part in parts.items():
            told = known.get(path)
            is_same = told is not None and told["layout"] == _digest_layout(part.optimizer)
            part.placed = _parse_placed(told["state"], part.optimizer) if told and is_same else {}
    except (TypeError, LookupError, ValueError):
        raise FormatError("the commit does not say how optimizer state lay on the ranks") from None


def _parse_placed(stored: Any, optimizer: Optimizer) -> dict[tuple[object, object], list[object]]:
    params: dict[int, Any] = index_parameters(optimizer)
    found = {(index, name): list(placed) for index, name, placed in stored}
    for (index, _), placed in found.items():
        possible = (COPIED, *range(params[index].ndim))
        if len(placed) != params[index].device_mesh.ndim or not set(placed) <= set(possible):
            raise ValueError("no placements of this parameter")
    return found


def _digest_layout(optimizer: Optimizer) -> str:
    """Return what tells apart ways to lay an optimizer's parameters out on ranks."""
    params: dict[int, Any] = index_parameters(optimizer)
    layout = [
        (index, _describe(param.device_mesh), spell_placements(param))
        for index, param in params.items()
        if is_sharded(param)
    ]
    return hashlib.sha256(repr(layout).encode()).hexdigest()


def _describe(mesh: Any) -> tuple[object, ...]:
    return (*mesh.shape, mesh.mesh_dim_names)
