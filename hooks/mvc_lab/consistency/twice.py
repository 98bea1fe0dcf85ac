"""A whole step done twice from the same state: do the bits come out the same?

Replicas cannot see what one of them gets wrong before the gradients are averaged, since all of them take
the same wrong average. The step that is done again does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from mvc_hooks.parts.data import DataPart
from mvc_hooks.parts.restoring import capture_parts, from_values, restore_parts
from mvc_hooks.parts.tree import find_changes, format_path, map_tensors, to_local, walk_leaves
from mvc_lab.consistency.bits import compare_bits, find_index
from mvc_lab.consistency.reports import ConsistencyReport, Deviation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from mvc_hooks.parts.part import Part
    from mvc_hooks.parts.tree import Steps
    from mvc_hooks.ranks.group import Ranks
    from mvc_lab.consistency.reports import Cause


def compare_twice(
    step: Callable[[], object],
    parts: Mapping[str, Part],
    ranks: Ranks,
    number: int,
    tolerance: float,
) -> ConsistencyReport | None:
    """Do a step, put the state back, do it again; return a report if that gave other bits on a rank."""
    kept = {name: part for name, part in parts.items() if not isinstance(part, DataPart)}
    start = _copy(kept)
    step()
    first = _copy(kept)
    restore_parts(from_values(start), kept)
    step()
    changes = list(find_changes(capture_parts(kept), first))
    mine = list(_describe(changes, ranks.rank))
    found = [one for said in ranks.exchange(mine) for one in said]
    if not found:
        return None
    is_exact = _is_deterministic(kept)
    reason = "the same step, done again from the same state, gave other bits"
    if not is_exact:
        reason += (
            "; kernels of the device need not be deterministic (torch.use_deterministic_algorithms)"
        )
    names = tuple(dict.fromkeys(one.tensor for one in found))
    cause: Cause = "compute" if is_exact else "unknown"
    return ConsistencyReport(number, cause, reason, "report", tuple(found), names, tolerance)


def _copy(parts: Mapping[str, Part]) -> dict[str, Any]:
    return map_tensors(capture_parts(parts), lambda one: one.detach().clone())  # type: ignore[no-any-return]


def _describe(changes: list[tuple[Steps, Any, Any]], rank: int) -> Iterator[Deviation]:
    for path, live, before in changes:
        name = format_path(path)
        if not isinstance(live, torch.Tensor) or not isinstance(before, torch.Tensor):
            yield Deviation(name, (rank,), None, (), 0.0, 0, 0)
            continue
        ours, theirs = to_local(live.detach()).cpu(), to_local(before.detach()).cpu()
        found = compare_bits(ours, theirs)
        index = () if found.first is None else find_index(found.first, ours.shape)
        yield Deviation(name, (rank,), None, index, found.max_delta, found.bits, found.elements)


def _is_deterministic(parts: Mapping[str, Part]) -> bool:
    leaves = (leaf for _, leaf in walk_leaves(capture_parts(parts)))
    on_host = all(one.device.type == "cpu" for one in leaves if isinstance(one, torch.Tensor))
    return on_host or torch.are_deterministic_algorithms_enabled()
