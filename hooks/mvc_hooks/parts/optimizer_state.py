"""The state of an optimizer as nested values: what it means, compared, and put in place."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.optim import Optimizer

from mvc_hooks.parts.shards import fits_whole, make_blank, nest_present, shard_like
from mvc_hooks.parts.tree import (
    Difference,
    Steps,
    describe,
    format_path,
    is_array,
    is_sharded,
    list_items,
    locate,
    map_tensors,
    outline,
    walk_leaves,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


def find_optimizers(value: object) -> list[Optimizer]:
    """Return the torch optimizer that an object is, or those that it wraps."""
    if isinstance(value, Optimizer) and hasattr(value, "_optimizer_step_post_hooks"):
        return [value]
    if not hasattr(value, "step") or not hasattr(value, "zero_grad"):
        return []  # a scheduler has an optimizer, and wraps none
    inner = [
        other
        for other in vars(value).values()
        if isinstance(other, Optimizer) and other is not value
    ]
    return [optimizer for other in inner for optimizer in find_optimizers(other)]


def find_inner(optimizer: Optimizer) -> dict[str, Optimizer]:
    """Return the optimizers that one steps through, and whose state its own does not have."""
    if type(optimizer).state_dict is not Optimizer.state_dict:
        return {}
    others = {
        key: attribute
        for key, attribute in vars(optimizer).items()
        if key not in ("state", "param_groups")
    }
    return {
        format_path(path): leaf
        for path, leaf in walk_leaves(others)
        if isinstance(leaf, Optimizer)
        and leaf.state is not optimizer.state
        and not any(isinstance(other, Optimizer) for other in vars(leaf).values())
    }


def index_parameters(optimizer: Optimizer) -> dict[int, torch.Tensor]:
    """Return the parameters by the index that the state dict gives them."""
    params: dict[int, torch.Tensor] = {}
    seen: set[int] = set()
    start = 0
    for group in optimizer.param_groups:
        for index, param in enumerate(group["params"], start):
            if id(param) not in seen:
                seen.add(id(param))
                params[index] = param
        start += len(group["params"])
    return params


def list_settings(optimizer: Optimizer) -> list[dict[str, Any]]:
    """Return the settings of each group that are numbers, pairs of numbers, or None."""
    return [
        {
            name: value.item() if isinstance(value, torch.Tensor) else value
            for name, value in group.items()
            if isinstance(value, (bool, int, float, tuple, type(None)))
            or (isinstance(value, torch.Tensor) and value.numel() == 1)
        }
        for group in optimizer.param_groups
    ]


def is_standard(state: object) -> bool:
    """Return whether a state dict has the form of torch's own optimizers."""
    return (
        isinstance(state, dict)
        and isinstance(state.get("state"), dict)
        and isinstance(state.get("param_groups"), list)
        and all(isinstance(g, dict) and "params" in g for g in state["param_groups"])
    )


def compare_groups(
    live: list[dict[str, Any]], stored: list[dict[str, Any]], path: Steps
) -> Iterator[Difference]:
    """Compare the groups: parameters, their names, and settings that cannot be taken away."""
    path = (*path, "param_groups")
    if len(live) != len(stored):
        yield Difference(path, f"{len(live)} groups", f"{len(stored)} groups")
        return
    for index, (mine, other) in enumerate(zip(live, stored, strict=True)):
        if mine["params"] != other["params"]:
            here, there = (f"{len(group['params'])} parameters" for group in (mine, other))
            yield Difference((*path, index, "params"), here, there)
        if mine.get("param_names") != other.get("param_names"):
            yield Difference((*path, index, "param_names"), "another list", "its own")
        for name in mine:
            if name not in other:  # such a setting would have to be taken away
                yield Difference((*path, index, name), describe(mine[name]), None)
            elif is_array(mine[name]) != is_array(other[name]) or (
                is_array(mine[name]) and mine[name] != other[name]
            ):
                place = (*path, index, name)
                yield Difference(place, describe(mine[name]), describe(other[name]))


def compare_entry(live: object, stored: object, path: Steps) -> Iterator[Difference]:
    """Compare the state of one parameter: what both sides have must be of the same form."""
    if not isinstance(live, dict) or not isinstance(stored, dict):
        return
    for name in live.keys() & stored.keys():
        ours, theirs = live[name], stored[name]
        if is_array(ours) and is_array(theirs) and ours != theirs:
            yield Difference((*path, name), str(ours), str(theirs))


COUNTER = "step"  # state of a parameter that is never sharded as it: how many steps were taken


def make_blanks(param: torch.Tensor, stored: Any, placed: Sequence[object] | None = None) -> Any:
    """Return a new DTensor for all stored state that is sharded as its parameter, nested as it is.

    ABSENT if there is none.
    """
    if fits_whole(param, stored):
        return make_blank(param, stored, placed)
    blanks = {key: make_blanks(param, item) for key, item in list_items(stored) or ()}
    return nest_present(blanks, stored)


def take_entry(live: dict[Any, Any], stored: Any, param: torch.Tensor, hosted: set[str]) -> Any:
    """Return the state of one parameter with the stored content; names in ``hosted`` stay on the host."""
    if not isinstance(stored, dict):
        return take_value(None, stored, param.device)
    if is_sharded(param):  # so is state of its shape
        stored = {
            name: value
            if name == COUNTER
            else map_tensors(
                value, lambda t: shard_like(param, t) if fits_whole(param, outline(t)) else t
            )
            for name, value in stored.items()
        }
    values = {
        name: take_value(live.get(name), value, None if name in hosted else param.device)
        for name, value in stored.items()
    }
    if type(live) is type(stored):
        live.clear()
        live.update(values)
        return live
    return values


def take_value(live: object, stored: Any, device: torch.device | None = None) -> Any:
    """Return the live tensor with the stored content, or the stored value on the device."""
    if not isinstance(stored, torch.Tensor):
        return map_tensors(stored, lambda t: t if device is None else t.to(device))
    if isinstance(live, torch.Tensor):
        if locate(live) == locate(stored) is not None:
            return live
        device = live.device
    return stored if device is None else stored.to(device)
