"""What one rank keeps of a sharded state: its image, and the form that says what is in it.

The files of the state are as long as all ranks together; an image holds only the boxes that its rank keeps
(``keepers``), one after the other, behind them what it checks in this commit (``cross_check``), and then the
rank's own state. The form is the same on every rank except for where its own state is, and so is the
digest of the rest.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

import msgspec
from blake3 import blake3

from mvc.dtypes import get_dtype, size_in_bytes
from mvc.errors import FormatError
from mvc.formats.layout import FileLayout, single_tensor
from mvc.formats.manifest import DEFAULT_CHUNK_BYTES
from mvc.numbers.boxes import Box, find_fault, locate_part, whole_box
from mvc.states.cross_check import Check
from mvc.states.keepers import ArrayForm, Holders, Keepers, list_holders, round_up

MAX_FORM_BYTES = 2**28
ITEM_BYTES = (1, 2, 4, 8, 16)


class ArrayWords(msgspec.Struct, frozen=True, array_like=True):
    """A tensor of a file, and how it is spread: the number of a spread, or -1 for whole everywhere."""

    name: str
    dtype: str
    shape: tuple[int, ...]  # as its file says
    dims: tuple[int, ...]  # as boxes count it
    item_bytes: int
    spread: int


class FileWords(msgspec.Struct, frozen=True, array_like=True):
    """A file of the state: what comes before its tensors, and these, end to end."""

    path: str
    head: bytes
    arrays: tuple[ArrayWords, ...]


class SpreadWords(msgspec.Struct, frozen=True, array_like=True):
    """Which ranks hold which boxes: offsets and sizes of all boxes, one after the other."""

    ranks: tuple[int, ...]
    offsets: tuple[tuple[int, ...], ...]
    sizes: tuple[tuple[int, ...], ...]


class StateForm(msgspec.Struct, frozen=True, array_like=True):
    """The form of a sharded state, the same on every rank."""

    ranks: int
    files: tuple[FileWords, ...]
    spreads: tuple[SpreadWords, ...]


class ShareForm(msgspec.Struct, frozen=True, array_like=True):
    """A form as one rank has it: ``own`` are path, offset and length in the image of its own files.

    ``check`` are the round and the length of chunks of what the rank checks, or (-1, 0) for nothing.
    """

    rank: int
    state: msgspec.Raw
    own: tuple[tuple[str, int, int], ...]
    check: tuple[int, int] = (-1, 0)


encode_form = msgspec.msgpack.Encoder().encode
_parse_share = msgspec.msgpack.Decoder(ShareForm).decode
_parse_state = msgspec.msgpack.Decoder(StateForm).decode


def encode_share(
    rank: int, state: bytes, own: Iterable[tuple[str, int, int]], check: tuple[int, int] = (-1, 0)
) -> bytes:
    """Return the form of a share, given that of the state, and where the rank's own files are."""
    return encode_form(ShareForm(rank, msgspec.Raw(state), tuple(own), check))


class Peers(Protocol):
    """The other ranks of a run, as the one that stores its share sees them.

    Both methods wait until the other rank has its share, may be called from many threads, and raise
    StorageError, which names the rank, if it is gone.
    """

    def find_image(self, rank: int) -> memoryview | None:
        """Return the image of a rank whose memory this process can see, or None."""
        ...

    def fetch_part(self, rank: int, array: int, chunk: int) -> bytes | memoryview:
        """Return what a rank keeps of a chunk, from the process that has it."""
        ...


class CheckPeers(Peers, Protocol):
    """They also give what they check of chunks that others keep."""

    def fetch_checked(self, rank: int, array: int, chunk: int) -> bytes | memoryview:
        """Return what a rank checks of a chunk, from the process that has it."""
        ...


class SharePlan:
    """A form with all that follows from it; kept as long as the form stays the same."""

    def __init__(self, text: bytes, chunk_bytes: int = DEFAULT_CHUNK_BYTES) -> None:
        """Check a form, and divide its arrays."""
        self.text, self.chunk_bytes = text, chunk_bytes
        self.digest = blake3(text).digest()
        form = _parse(_parse_state, text)
        self.ranks = form.ranks
        holders = [_read_spread(spread, form.ranks) for spread in form.spreads]
        everyone = tuple(range(form.ranks))
        self.arrays: list[ArrayForm] = []
        self.layouts: list[tuple[str, bytes, FileLayout]] = []
        self.first_arrays: dict[str, int] = {}
        whole: dict[tuple[int, ...], Holders] = {}
        checked: set[ArrayForm] = set()
        for file in form.files:
            self.first_arrays[file.path] = len(self.arrays)
            segments, start = [], len(file.head)
            for one in file.arrays:
                segments.append(single_tensor(one.name, one.dtype, one.shape, start))
                start += segments[-1].size_bytes
                if one.spread < 0 and one.dims not in whole:
                    boxes = (whole_box(one.dims),)
                    whole[one.dims] = (
                        Holders(boxes, (everyone,)) if all(one.dims) else Holders((), ())
                    )
                if one.spread >= len(holders):
                    raise FormatError("the form of a state lacks a spread")
                found = whole[one.dims] if one.spread < 0 else holders[one.spread]
                array = ArrayForm(one.dims, one.item_bytes, found)
                self.arrays.append(array)
                _check_size(one, array)
                if array not in checked and find_fault(one.dims, found.boxes) is not None:
                    raise FormatError(
                        f"tensor {one.name!r}: the ranks do not hold every element once"
                    )
                checked.add(array)
            self.layouts.append(
                (file.path, file.head, FileLayout("safetensors", start, tuple(segments)))
            )
        self.keepers = Keepers(self.arrays, form.ranks, chunk_bytes)
        self._places: dict[int, list[dict[int, int]]] = {}

    def places_of(self, rank: int) -> list[dict[int, int]]:
        """Return for every array: number of a box that a rank keeps → its offset in the rank's image."""
        if rank not in self._places:
            self._places[rank] = list(iterate_places(self.keepers, rank))
        return self._places[rank]

    def find_kept_end(self, rank: int) -> int:
        """Return where what a rank keeps ends in its image, and what it checks begins."""
        ends = (
            places[number]
            + self.keepers.divisions[array].kept[number].box.elements * form.item_bytes
            for array, (form, places) in enumerate(
                zip(self.arrays, self.places_of(rank), strict=True)
            )
            for number in places
        )
        return round_up(max(ends, default=0))


def iterate_places(keepers: Keepers, rank: int) -> Iterator[dict[int, int]]:
    """Yield for every array: number of a box that a rank keeps → its offset in the rank's image."""
    end = 0
    for form, division in zip(keepers.forms, keepers.divisions, strict=True):
        places: dict[int, int] = {}
        for number in division.numbers_of(rank):
            places[number] = end
            size = division.kept[number].box.elements * form.item_bytes
            end = round_up(end + size)
        yield places


def _parse(parse: object, data: bytes) -> StateForm:
    if len(data) > MAX_FORM_BYTES:
        raise FormatError(f"the form of a state of {len(data):,} bytes is over the limit")
    try:
        return parse(data)  # type: ignore[operator,no-any-return]  # a decoder of msgspec
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise FormatError(f"not the form of a state: {error}") from None


def _read_spread(words: SpreadWords, ranks: int) -> Holders:
    if not all(0 <= rank < ranks for rank in words.ranks):
        raise FormatError("the form of a state names ranks that there are not")
    if not len(words.ranks) == len(words.offsets) == len(words.sizes):
        raise FormatError("the form of a state does not say which boxes the ranks hold")
    boxes = [Box(*pair) for pair in zip(words.offsets, words.sizes, strict=True)]
    return list_holders(words.ranks, boxes)


def _check_size(words: ArrayWords, form: ArrayForm) -> None:
    size_bytes = size_in_bytes(get_dtype(words.dtype), words.shape)
    is_whole = form.item_bytes in ITEM_BYTES and form.elements * form.item_bytes == size_bytes
    if not is_whole or min(form.shape, default=0) < 0:
        raise FormatError(f"tensor {words.name!r} does not have the bytes of its elements")


@dataclass(frozen=True, eq=False)
class Share:
    """An opened image of a rank; ``plan`` may be used again for the next one.

    ``check`` is None if the rank checks nothing of what others keep.
    """

    rank: int
    plan: SharePlan
    image: memoryview
    own: tuple[tuple[str, int, int], ...]
    check: Check | None = None

    @property
    def ranks(self) -> int:
        """Number of ranks of the run."""
        return self.plan.ranks

    @property
    def digest(self) -> bytes:
        """Hash of the form of the state; ranks whose digests differ hold different states."""
        return self.plan.digest

    def own_files(self) -> dict[str, memoryview]:
        """Return name → bytes of the files that belong to this rank alone."""
        return {path: self.image[start : start + size] for path, start, size in self.own}

    def read_part(self, array: int, chunk: int) -> memoryview:
        """Return what this rank keeps of a chunk: its boxes' parts, one after the other."""
        if not 0 <= array < len(self.plan.arrays):
            raise FormatError(f"there is no array {array}")
        parts = [*list_parts(self.plan, self.rank, self.image, array, chunk)]
        return parts[0] if len(parts) == 1 else memoryview(b"".join(parts))

    def read_checked(self, array: int, chunk: int) -> memoryview:
        """Return what this rank checks of a chunk: its boxes' parts, one after the other."""
        parts = [*self.list_checked_parts(self.rank, self.image, array, chunk).values()]
        return parts[0] if len(parts) == 1 else memoryview(b"".join(parts))

    def list_checked_parts(
        self, rank: int, image: memoryview, array: int, chunk: int
    ) -> dict[int, memoryview]:
        """Return number of the box → bytes of the parts of a chunk that a rank checks."""
        if self.check is None:
            return {}
        parts = self.check.parts_of(rank).get((array, chunk), ())
        return {part.number: image[part.offset : part.offset + part.size_bytes] for part in parts}


def open_share(
    image: memoryview, form: bytes, chunk_bytes: int, previous: Share | None = None
) -> Share:
    """Return the share of a rank in its image; FormatError if its form is not one.

    ``previous``, the share of an earlier commit, saves planning if the form is the same.
    """
    try:
        words = _parse_share(form)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise FormatError(f"not the form of a share: {error}") from None
    text = bytes(words.state)
    plan = None if previous is None else previous.plan
    if plan is None or plan.text != text or plan.chunk_bytes != chunk_bytes:
        plan = SharePlan(text, chunk_bytes)
    if not 0 <= words.rank < plan.ranks:
        raise FormatError(f"there is no rank {words.rank} of {plan.ranks}")
    number, cut_bytes = words.check
    # Another length of chunks, set while the run goes on, leaves nothing that can be checked.
    check = None
    if number >= 0 and cut_bytes == chunk_bytes:
        check = Check(plan.keepers, number, plan.find_kept_end)
    return Share(words.rank, plan, image.toreadonly(), words.own, check)


def list_parts(
    plan: SharePlan, rank: int, image: memoryview, array: int, chunk: int
) -> Iterator[memoryview]:
    """Yield a rank's parts of a chunk, in the order of its boxes."""
    places = plan.places_of(rank)[array]
    for number, count in plan.keepers.divisions[array].find_parts(chunk):
        if number in places:
            yield find_part(plan, array, number, chunk, count, image[places[number] :])


def find_part(
    plan: SharePlan, array: int, number: int, chunk: int, count: int, data: memoryview
) -> memoryview:
    """Return a box's part of a chunk, which has ``count`` elements, given the bytes from the box on."""
    division, item_bytes = plan.keepers.divisions[array], plan.arrays[array].item_bytes
    kept, (first, _) = division.kept[number], division.run_of(chunk)
    start = locate_part(kept.shape, kept.box, first) * item_bytes
    return data[start : start + count * item_bytes]
