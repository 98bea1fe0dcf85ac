"""A tensor given as boxes: some by this process, the others by other ranks of the run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mvc.errors import UnsupportedError
from mvc.numbers.boxes import Box, whole_box
from mvc.sources import JoinedSource, MemorySource
from mvc.states.elements import get_torch_element
from mvc.states.files import LiveArray, Spread
from mvc.states.refusals import format_path

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mvc.sources import ByteSource


@dataclass(frozen=True, eq=False)
class SpreadTensor:
    """A tensor of which every rank of a run has boxes, as one of these ranks sees it.

    Attributes:
        dtype: as torch spells it: ``bfloat16``.
        shape: of the whole.
        boxes: (rank, offsets, sizes) of every box; given alike, in this order, on every rank.
        mine: number of a box in ``boxes`` → the torch tensor that it is, of those on this rank.
    """

    dtype: str
    shape: Sequence[int]
    boxes: Sequence[tuple[int, Sequence[int], Sequence[int]]]
    mine: Mapping[int, Any]


def describe_spread(tensor: SpreadTensor, steps: Sequence[object]) -> LiveArray:
    """Return the array of a tensor given as boxes.

    UnsupportedError: what is here of it is of another form than its boxes say.
    """
    from mvc.states.torch_arrays import describe_tensor  # noqa: PLC0415  imports torch, which is loaded

    element, shape = get_torch_element(tensor.dtype), tuple(tensor.shape)
    boxes = [Box(tuple(offsets), tuple(sizes)) for _, offsets, sizes in tensor.boxes]
    held: list[tuple[Box, ByteSource]] = []
    for number, part in tensor.mine.items():
        _, array = describe_tensor(part, steps)
        box = boxes[number]
        if not isinstance(array, LiveArray) or (array.element, array.shape) != (element, box.sizes):
            raise UnsupportedError(
                f"{format_path(steps)} is {tensor.dtype} {list(box.sizes)} by its plan, and a "
                f"{str(part.dtype).removeprefix('torch.')} {list(part.shape)} in fact"
            )
        if box.elements:
            held.append((box, array.source))
    mine = [box for box, _ in held] or [Box((0,) * len(shape), (0,) * len(shape))]
    ranks = tuple(rank for rank, _, _ in tensor.boxes)
    spread = Spread(shape, ranks, tuple(boxes), mine[0], tuple(mine[1:]))
    if not boxes:  # an empty tensor that nobody has a part of
        spread = Spread(shape, (0,), (whole_box(shape),), whole_box(shape))
    source = _join([one for _, one in held])
    return LiveArray(element, shape, source, None, None, is_torch=True, spread=spread)


def _join(parts: Sequence[ByteSource]) -> ByteSource:
    if len(parts) < 2:  # noqa: PLR2004  nothing to join
        return parts[0] if parts else MemorySource(b"")
    starts = [0]
    for part in parts:
        starts.append(starts[-1] + part.size_bytes)
    return JoinedSource(parts, starts)
