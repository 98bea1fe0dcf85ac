"""The table of shared storages: which arrays of a walk are views of which memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mvc.errors import UnsupportedError
from mvc.states.elements import ElementType, get_numpy_element, get_torch_element
from mvc.states.encode import PlacedArray
from mvc.states.files import LiveArray
from mvc.states.memory import MAX_SKEW, HostArray, Region, view_memory

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mvc.states.alias import SharedGroup
    from mvc.states.document import Node


def link_shared(placed: Sequence[PlacedArray], groups: Sequence[SharedGroup]) -> list[Node]:
    """Mark arrays that share memory in their nodes; return the storages they share.

    A storage's node is an array's node plus ``skew``, the bytes to leave free in front of it so
    that every view is aligned. Arrays that no member covers are added to the first member's file.

    Args:
        placed: every array.
        groups: those that share memory; their members are indexes of ``placed``.

    Raises:
        UnsupportedError: views that no alignment fits.
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
    kept = ("$", "in", "name", "dtype", "shape", "strides")
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
        source = HostArray(words, source.is_alive)
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
