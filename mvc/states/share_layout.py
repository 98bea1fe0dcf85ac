"""Where the boxes that a rank keeps of a live state go in its image."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mvc.errors import UnsupportedError
from mvc.numbers.boxes import flatten_box, whole_box
from mvc.sources import read_bytes
from mvc.states.cross_check import CHECK_ROUNDS, list_checked
from mvc.states.files import Spread
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
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from mvc.numbers.boxes import Shape
    from mvc.sources import ByteSource
    from mvc.states.cross_check import CheckedPart
    from mvc.states.encode import FileDraft
    from mvc.states.files import LiveArray, StateFile
    from mvc.states.keepers import KeptBox


@dataclass(frozen=True, slots=True)
class KeptRun:
    """Bytes of an array that go to the image: its number in the walk, where they begin, how many."""

    offset: int
    index: int
    start: int
    size_bytes: int

    def open(self, source: ByteSource) -> ByteSource:
        """Return the bytes, given those of the array that are here."""
        return cut_source(source, self.start, self.size_bytes)


def form_state(
    files: Iterable[tuple[StateFile, FileDraft]], ranks: int, first: Collection[int] = ()
) -> tuple[bytes, list[LiveArray]]:
    """Return the form of the files of a sharded state, and their arrays in the form's order.

    Of arrays whose ``id`` is in ``first``, which are whole on every rank, the first rank has the ones
    that count.

    UnsupportedError: an array is not all on these ranks, or of elements of an odd length.
    """
    found: list[LiveArray] = []
    spreads: dict[Spread, int] = {}
    words = [
        _form_file(file, dict(draft.arrays), ranks, spreads, found, first) for file, draft in files
    ]
    form = StateForm(ranks, tuple(words), tuple(map(_spell_spread, spreads)))
    return encode_form(form), found


def _form_file(
    file: StateFile,
    arrays: Mapping[str, LiveArray],
    ranks: int,
    spreads: dict[Spread, int],
    found: list[LiveArray],
    first: Collection[int],
) -> FileWords:
    rows = []
    segments = file.layout.segments
    head = read_bytes(file.source, 0, segments[0].start if segments else file.source.size_bytes)
    for segment in segments:
        view = segment.tensors[0]
        array = arrays[view.name]
        found.append(array)
        shape, item_bytes = array.shape, array.element.size_bytes
        if item_bytes not in ITEM_BYTES:
            shape, item_bytes = (segment.size_bytes,), 1
        spread = array.spread
        if spread is None and id(array) in first:
            spread = Spread(shape, (0,), (whole_box(shape),), whole_box(shape))
        number = -1 if spread is None else _number_spread(spread, ranks, view.name, spreads)
        rows.append(ArrayWords(view.name, view.dtype, view.shape, shape, item_bytes, number))
    return FileWords(file.path, head, tuple(rows))


def _number_spread(spread: Spread, ranks: int, name: str, spreads: dict[Spread, int]) -> int:
    here = [box for rank, box in zip(spread.ranks, spread.boxes, strict=True) if 0 <= rank < ranks]
    elements = sum(box.elements for box in dict.fromkeys(here))
    if elements != math.prod(spread.shape):
        raise UnsupportedError(
            f"tensor {name!r} is spread over other processes than those that commit",
            hint="every rank that holds a part of the state has to take part in its commits",
        )
    return spreads.setdefault(spread.without_mine(), len(spreads))


def _spell_spread(spread: Spread) -> SpreadWords:
    return SpreadWords(
        spread.ranks,
        tuple(box.offsets for box in spread.boxes),
        tuple(box.sizes for box in spread.boxes),
    )


def keep_runs(
    plan: SharePlan, arrays: list[LiveArray], indexes: Mapping[int, int], rank: int
) -> Iterator[KeptRun]:
    """Yield what a rank keeps; ``indexes`` are ``id`` of array → its number in the walk."""
    rows = zip(
        arrays, plan.arrays, plan.keepers.divisions, iterate_places(plan.keepers, rank), strict=True
    )
    for array, form, division, places in rows:
        for number, offset in places.items():
            kept = division.kept[number]
            start = _locate_kept(kept, form.shape, array.spread) * form.item_bytes
            size = kept.box.elements * form.item_bytes
            yield KeptRun(offset, indexes[id(array)], start, size)


def check_runs(
    plan: SharePlan, arrays: list[LiveArray], indexes: Mapping[int, int], rank: int
) -> tuple[tuple[KeptRun, ...], ...]:
    """Return for every round what a rank checks; ``indexes`` as for ``keep_runs``."""
    start = plan.find_kept_end(rank)
    places: dict[tuple[int, int], int] = {}

    def locate(part: CheckedPart) -> KeptRun:
        form, array = plan.arrays[part.array], arrays[part.array]
        box = part.array, part.number
        if box not in places:
            kept = plan.keepers.divisions[part.array].kept[part.number]
            places[box] = _locate_kept(kept, form.shape, array.spread) * form.item_bytes
        return KeptRun(part.offset, indexes[id(array)], places[box] + part.start, part.size_bytes)

    return tuple(
        tuple(locate(part) for part in list_checked(plan.keepers, rank, start, number))
        for number in range(CHECK_ROUNDS)
    )


def _locate_kept(kept: KeptBox, shape: Shape, spread: Spread | None) -> int:
    """Return where what a rank keeps begins among the elements that it has of an array."""
    before = 0
    for mine in (whole_box(shape),) if spread is None else (spread.mine, *spread.more):
        seen, flat = flatten_box(shape, mine)
        start = kept.box.offsets[0] - flat.offsets[0]
        columns = kept.box.offsets[1:] == flat.offsets[1:] and kept.box.sizes[1:] == flat.sizes[1:]
        is_within = 0 <= start <= flat.sizes[0] - kept.box.sizes[0]
        if columns and is_within and seen == kept.shape:
            return before + start * math.prod(flat.sizes[1:])
        before += mine.elements
    raise AssertionError
