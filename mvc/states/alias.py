"""Which arrays of a state share memory, and how the document says so.

Two entries of a state may be one array (tied embeddings), or views of one buffer (a flat parameter
and its pieces, a weight and its transpose). Restoring them as separate arrays would train another
model. So arrays whose elements overlap form a group, and a group becomes one *shared storage*:

* all members are the very same view: the storage is that array, every member is the whole of it;
* a member covers all bytes of the group: the storage is that array, each other member is a view
  of it, given by byte offset and byte strides;
* if neither holds, the bytes from the lowest to the highest become one more array in the file.

Only elements count. Columns cut from one matrix interleave in memory without sharing an element;
they are independent arrays. Deciding that exactly is NP-hard in general, so the work is bounded,
and what is not decided within the bound counts as shared: never wrong, only larger.

Every member stays in its file under its own name, whatever it shares, so that any tool finds it.
The chunk store keeps equal bytes once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from mvc.errors import UnsupportedError
from mvc.states.document import PART, Node
from mvc.states.elements import ElementType, get_numpy_element, get_torch_element
from mvc.states.encode import PlacedArray
from mvc.states.files import LiveArray
from mvc.states.memory import BYTE, MAX_SKEW, HostArray, Region, view_memory

if TYPE_CHECKING:
    from numpy.typing import NDArray


_MAX_PAIRS = 20_000
_MAX_WORK = 10_000


@dataclass(frozen=True, slots=True)
class SharedGroup:
    """Arrays whose memory overlaps."""

    members: tuple[int, ...]  # their indexes, ascending
    covering: tuple[int, ...]  # those of them that cover the group's bytes, each byte once
    low: int  # address of the group's lowest byte, and past its highest
    high: int
    is_tie: bool  # whether all members are the very same view


def find_shared(regions: Sequence[Region | None]) -> list[SharedGroup]:
    """Return the groups of regions that share elements; None stands for an array that cannot."""
    spans = [(*region.span, index) for index, region in enumerate(regions) if region is not None]
    return find_groups({index: regions[index] for index in find_crowded(spans)})  # type: ignore[misc]  # spans are of regions


def find_crowded(spans: Iterable[tuple[int, int, int]]) -> list[int]:
    """Return, ascending, which of (low, high, index) meet the address range of another."""
    crowded: list[int] = []
    cluster: list[int] = []
    end = -1
    for low, high, index in sorted(spans):
        if low < end:
            cluster.append(index)
            end = max(end, high)
            continue
        if len(cluster) > 1:
            crowded += cluster
        cluster, end = [index], high
    return sorted(crowded + cluster if len(cluster) > 1 else crowded)


def find_groups(regions: Mapping[int, Region]) -> list[SharedGroup]:
    """Return the groups that share elements, by first member; no other region may share any."""
    unique: dict[Region, list[int]] = {}
    for index, region in regions.items():
        unique.setdefault(region, []).append(index)
    groups: dict[int, list[Region]] = {}
    ordered = sorted(unique, key=lambda region: (region.space, region.low, -region.high))
    roots = _join_overlapping(ordered)
    for position, region in enumerate(ordered):
        groups.setdefault(_find_root(roots, position), []).append(region)
    shared = []
    for group in groups.values():
        members = sorted(index for region in group for index in unique[region])
        if len(members) > 1:
            shared.append(_describe_group(members, group, unique))
    return sorted(shared, key=lambda group: group.members)


def _describe_group(
    members: list[int], group: list[Region], unique: dict[Region, list[int]]
) -> SharedGroup:
    low = min(region.low for region in group)
    high = max(region.high for region in group)
    if len(group) == 1:
        return SharedGroup(tuple(members), tuple(members), low, high, is_tie=True)
    covering = sorted(
        unique[region][0]
        for region in group
        if (region.low, region.high) == (low, high) and region.is_dense
    )
    return SharedGroup(tuple(members), tuple(covering), low, high, is_tie=False)


def _join_overlapping(ordered: list[Region]) -> list[int]:
    """Return a union-find forest over regions sorted by space and lowest address."""
    roots = list(range(len(ordered)))
    highs = [region.high for region in ordered]
    pairs = 0
    active: list[int] = []
    for index, region in enumerate(ordered):
        low, space = region.low, region.space
        active = [other for other in active if highs[other] > low and ordered[other].space == space]
        for other in active:
            first, second = _find_root(roots, other), _find_root(roots, index)
            if first == second:
                continue
            pairs += 1
            if pairs > _MAX_PAIRS or _overlap(ordered[other], region):
                roots[max(first, second)] = min(first, second)
        active.append(index)
    return roots


def _find_root(roots: list[int], index: int) -> int:
    while roots[index] != index:
        roots[index] = roots[roots[index]]
        index = roots[index]
    return index


def _overlap(first: Region, second: Region) -> bool:
    """Return whether two regions whose address ranges intersect share an element."""
    if first.is_dense and second.is_dense:
        return True
    try:
        return np.shares_memory(_probe(first), _probe(second), max_work=_MAX_WORK)  # type: ignore[arg-type]  # the stub knows only two of its values
    except np.exceptions.TooHardError:
        return True


def _probe(region: Region) -> NDArray[Any]:
    """Return an array at the addresses of a region; it is only asked for them, never read."""
    return view_memory(
        region.address, (*region.shape, region.size_bytes), (*region.strides, 1), BYTE, None
    )


def link_shared(placed: Sequence[PlacedArray], groups: Sequence[SharedGroup]) -> list[Node]:
    """Mark arrays that share memory in their nodes; return the nodes of the storages they share.

    A storage's node is an array's node plus ``skew``, the bytes to leave free in front of it so
    that every view is aligned. If no member covers a group, its bytes are added to the first
    member's file. Views that no alignment fits are an UnsupportedError.
    """
    storages = []
    for number, group in enumerate(groups):
        members = [placed[index] for index in group.members]
        storages.append(_make_storage(placed, group, members))
        for member in members:
            member.node.pop("strides", None)
            member.node["shared"] = number
            region = member.array.region
            if region is not None and not group.is_tie:
                member.node["offset"] = region.address - group.low
                member.node["byte_strides"] = list(region.strides)
    return storages


def _make_storage(
    placed: Sequence[PlacedArray], group: SharedGroup, members: list[PlacedArray]
) -> Node:
    has_torch = any(member.array.is_torch for member in members)
    covering = [placed[index] for index in group.covering]
    base = next((item for item in covering if item.array.is_torch == has_torch), None)
    if base is None:
        base = _add_union(group, members, is_torch=has_torch)
    kept = ("$", "in", "name", "dtype", "shape", "strides", PART)
    node = {name: base.node[name] for name in kept if name in base.node}
    skew = 0 if group.is_tie else _find_skew(group, members)
    return node | ({"skew": skew} if skew else {})


def _find_skew(group: SharedGroup, members: list[PlacedArray]) -> int:
    regions = [member.array.region for member in members if member.array.is_torch]
    for skew in range(MAX_SKEW):
        if all(
            (region.address - group.low + skew) % region.size_bytes == 0
            for region in regions
            if region is not None
        ):
            return skew
    raise UnsupportedError(
        f"tensors {members[0].node['name']!r} and {members[1].node['name']!r} are views of one "
        "memory with different alignments",
        hint="clone one of them",
    )


def _add_union(group: SharedGroup, members: list[PlacedArray], *, is_torch: bool) -> PlacedArray:
    """Add the bytes of a whole group to the file of its first member."""
    first = members[0]
    element = _find_union_element(group, members)
    if element is None:
        element = get_torch_element("uint8") if is_torch else get_numpy_element("|u1")
    shape = ((group.high - group.low) // element.size_bytes,)
    source = first.array.source
    if isinstance(source, HostArray):
        words = view_memory(group.low, shape, (element.size_bytes,), element, members)
        source = HostArray(words, source.check_alive)
    else:
        from mvc.states import torch_arrays as state_torch  # noqa: PLC0415  imports torch, which is loaded

        source = state_torch.span_storage(source, group.low, group.high - group.low)
    array = LiveArray(element, shape, source, None, None, is_torch)
    name = first.file.add(f"{first.node['name']}.storage", array)
    node: Node = {"$": "tensor" if is_torch else "ndarray", "in": first.file.path, "name": name}
    node |= {"dtype": element.name, "shape": list(shape)}
    return PlacedArray(array, node, first.file)


def _find_union_element(group: SharedGroup, members: list[PlacedArray]) -> ElementType | None:
    """Return the element type that all members share, if its elements line up."""
    regions: list[Region] = [member.array.region for member in members if member.array.region]
    element = members[0].array.element
    if len({region.element for region in regions}) != 1:
        return None
    if any((region.low - group.low) % element.size_bytes for region in regions):
        return None
    return None if (group.high - group.low) % element.size_bytes else element
