"""The optimizer's step done again, in place, from what was kept: does this rank compute what it computed?

A shadow of the optimizer (its class, settings and plain attributes) steps copies of a share. If every rank gets
the bits that it has, or one rank alone does not, that says who is right, even with two ranks. An optimizer
whose step couples parameters, needs a closure, or draws numbers does not come to the same bits from a
share: then the healthy ranks do not either, and nothing is concluded.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

import torch

from mvc_hooks.parts.optimizer_state import find_inner
from mvc_lab.consistency.digest import Digests

if TYPE_CHECKING:
    from mvc_lab.consistency.sight import Before, KeptSlot, Key, Sight

_PLAIN = (bool, int, float, str, type(None))


def step_again(sight: Sight) -> dict[Key, bool]:
    """Return for each piece of a share whether the step done again comes to the bits that are there.

    Pieces of an optimizer that cannot step a share are left out.
    """
    live, found = sight.list_after(), dict[tuple[str, int], bool]()
    for before in sight.before:
        stepped = _step(before)
        if stepped is None:
            continue
        keys, results = [], []
        for held, piece in sight.pieces:
            at = next((at for at, one in enumerate(before.slots) if one.piece == piece), None)
            if at is None or held.kind == "buffer":
                continue
            param, state = stepped[at]
            result = param if held.kind == "parameter" else state.get(held.path[-1])
            is_rest = piece.part > 0 and held.kind == "state"
            if is_rest and isinstance(result, torch.Tensor) and result.numel() != param.numel():
                continue
            keys.append((held.name, piece.part))
            results.append(result if isinstance(result, torch.Tensor) else None)
        digests = Digests(results).read()
        found |= {key: live[key] == one for key, one in zip(keys, digests, strict=True)}
    return found


def _step(before: Before) -> list[tuple[torch.Tensor, dict[Any, Any]]] | None:
    """Return parameters and state after the step, or None if it cannot be done again."""
    if before.has_closure or find_inner(before.optimizer):
        return None
    devices = {one.param.device for one in before.slots if one.param.is_cuda}
    params = [_make_parameter(one) for one in before.slots]
    try:
        shadow = _make_shadow(before, params)
        with torch.random.fork_rng(devices=list(devices)):
            type(shadow).step(shadow)
    except Exception:  # noqa: BLE001  whatever another's optimizer needs that its shadow lacks
        return None
    return [(param.detach(), shadow.state.get(param, {})) for param in params]


def _make_parameter(kept: KeptSlot) -> torch.nn.Parameter:
    param = torch.nn.Parameter(kept.param.clone(), requires_grad=kept.slot.param.requires_grad)
    if kept.grad is not None:
        param.grad = kept.grad.clone()
    return param


def _make_shadow(before: Before, params: list[torch.nn.Parameter]) -> Any:
    optimizer = before.optimizer
    groups = [{**settings, "params": []} for settings in before.settings]
    for kept, param in zip(before.slots, params, strict=True):
        groups[kept.slot.group]["params"].append(param)
    state = {
        param: {
            key: value.clone() if isinstance(value, torch.Tensor) else value
            for key, value in kept.state.items()
        }
        for kept, param in zip(before.slots, params, strict=True)
        if kept.state
    }
    plain = {key: value for key, value in vars(optimizer).items() if isinstance(value, _PLAIN)}
    shadow: Any = object.__new__(type(optimizer))
    shadow.__setstate__(
        {
            **plain,
            "defaults": dict(optimizer.defaults),
            "state": defaultdict(dict, state),
            "param_groups": [group for group in groups if group["params"]],
        }
    )
    return shadow
