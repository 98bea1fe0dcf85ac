"""Where the parts of the arrays that one rank keeps, or checks, go in its image.

Ranks that commit one sharded state together divide its arrays among them (``keepers``). Each lays its
own boxes one after the other in an *image*, a run of bytes in memory that its writer process reads. This
module says, for one live state:

* ``form_state``: the form of the state, which all ranks must have alike: its files, the arrays in them,
  and which rank holds which box of each array;
* ``list_kept_runs``: which bytes of which live array this rank copies, and to where in its image;
* ``list_checked_runs``: the same of what it only checks for other ranks, for every round of the check.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mvc.errors import UnsupportedError
from mvc.numbers.boxes import Shape, flatten_box, whole_box
from mvc.sources import ByteSource, read_bytes
from mvc.states.cross_check import CHECK_ROUNDS, list_checked
from mvc.states.files import LiveArray, Spread, StateFile
from mvc.states.memory import cut_source
from mvc.states.share import (
    ITEM_BYTES,
    ArrayWords,
    FileWords,
    SharePlan,
    SpreadWords,
    StateForm,
    encode_form,
    iterate_places,
)

if TYPE_CHECKING:
    from mvc.states.encode import FileDraft
    from mvc.states.keepers import KeptBox


@dataclass(frozen=True, slots=True)
class ImageRun:
    """Bytes of one live array that are copied to the image."""

    offset: int  # where they go in the image
    index: int  # number of the array, in the order in which the walk over the state met it
    start: int  # where they begin among the bytes of the array that this rank has
    size_bytes: int  # how many they are

    def open(self, source: ByteSource) -> ByteSource:
        """Return these bytes, given all bytes of the array that this rank has."""
        return cut_source(source, self.start, self.size_bytes)


def form_state(
    files: Iterable[tuple[StateFile, FileDraft]], ranks: int, first: Collection[int] = ()
) -> tuple[bytes, list[LiveArray]]:
    """Return the encoded form of the files of a sharded state, and their arrays in the form's order.

    The ``files`` are as this rank would write them; arrays whose ``id`` is in ``first`` every rank has whole but
    with bytes of its own, and rank 0 keeps these. UnsupportedError: a part of an array is on a process that
    does not take part in the commit.
    """
    arrays: list[LiveArray] = []
    spreads: dict[
        Spread, int
    ] = {}  # each distinct spread and its number: arrays of a kind share one
    words: list[FileWords] = []
    for file, draft in files:
        by_name, segments = dict(draft.arrays), file.layout.segments
        head_bytes = segments[0].start if segments else file.source.size_bytes
        rows: list[ArrayWords] = []
        for segment in segments:
            view = segment.tensors[0]
            array = by_name[view.name]
            arrays.append(array)
            shape, item_bytes = array.shape, array.element.size_bytes
            if item_bytes not in ITEM_BYTES:  # such as text: it is divided by bytes
                shape, item_bytes = (segment.size_bytes,), 1
            spread, number = array.spread, -1
            if spread is None and id(array) in first:
                spread = Spread(shape, (0,), (whole_box(shape),), whole_box(shape))
            if spread is not None:
                _check_is_here(spread, ranks, view.name)
                number = spreads.setdefault(spread.without_mine(), len(spreads))
            rows.append(ArrayWords(view.name, view.dtype, view.shape, shape, item_bytes, number))
        words.append(FileWords(file.path, read_bytes(file.source, 0, head_bytes), tuple(rows)))
    holders = tuple(
        SpreadWords(
            spread.ranks,
            tuple(box.offsets for box in spread.boxes),
            tuple(box.sizes for box in spread.boxes),
        )
        for spread in spreads
    )
    return encode_form(StateForm(ranks, tuple(words), holders)), arrays


def _check_is_here(spread: Spread, ranks: int, name: str) -> None:
    """Check that the ranks that commit hold every element; replicas hold the same box."""
    pairs = zip(spread.ranks, spread.boxes, strict=True)
    boxes = dict.fromkeys(box for rank, box in pairs if 0 <= rank < ranks)
    if sum(box.elements for box in boxes) != math.prod(spread.shape):
        raise UnsupportedError(
            f"tensor {name!r} is spread over other processes than those that commit",
            hint="every rank that holds a part of the state has to take part in its commits",
        )


def list_kept_runs(
    plan: SharePlan, arrays: list[LiveArray], indexes: Mapping[int, int], rank: int
) -> Iterator[ImageRun]:
    """Yield what a rank keeps, in the order of its image; ``indexes`` are ``id`` of an array → its number in the walk."""
    rows = zip(
        arrays, plan.arrays, plan.keepers.divisions, iterate_places(plan.keepers, rank), strict=True
    )
    for array, form, division, places in rows:
        for number, offset in places.items():
            kept = division.kept[number]
            start = _locate(kept, form.shape, array.spread) * form.item_bytes
            size_bytes = kept.box.elements * form.item_bytes
            yield ImageRun(offset, indexes[id(array)], start, size_bytes)


def list_checked_runs(
    plan: SharePlan, arrays: list[LiveArray], indexes: Mapping[int, int], rank: int
) -> tuple[tuple[ImageRun, ...], ...]:
    """Return for every round what a rank checks; it lies behind what it keeps.

    The arguments are those of ``list_kept_runs``.
    """
    begin = plan.find_kept_end(rank)
    starts: dict[tuple[int, int], int] = {}  # of boxes, found once for all rounds
    rounds: list[tuple[ImageRun, ...]] = []
    for number in range(CHECK_ROUNDS):
        runs: list[ImageRun] = []
        for part in list_checked(plan.keepers, rank, begin, number):
            form, array, box = (
                plan.arrays[part.array],
                arrays[part.array],
                (part.array, part.number),
            )
            if box not in starts:
                kept = plan.keepers.divisions[part.array].kept[part.number]
                starts[box] = _locate(kept, form.shape, array.spread) * form.item_bytes
            start = starts[box] + part.start
            runs.append(ImageRun(part.offset, indexes[id(array)], start, part.size_bytes))
        rounds.append(tuple(runs))
    return tuple(rounds)


def _locate(kept: KeptBox, shape: Shape, spread: Spread | None) -> int:
    """Return where a box begins among the elements that this rank has of an array.

    A rank may have several boxes of one array, which lie one after the other. The box that it keeps is
    a run of whole rows of one of them, seen with as few dimensions as possible (``flatten_box``).
    """
    before = 0
    for mine in (whole_box(shape),) if spread is None else (spread.mine, *spread.more):
        seen, flat = flatten_box(shape, mine)
        row = kept.box.offsets[0] - flat.offsets[0]
        columns = kept.box.offsets[1:] == flat.offsets[1:] and kept.box.sizes[1:] == flat.sizes[1:]
        is_within = 0 <= row <= flat.sizes[0] - kept.box.sizes[0]
        if columns and is_within and seen == kept.shape:
            return before + row * math.prod(flat.sizes[1:])
        before += mine.elements
    raise AssertionError
