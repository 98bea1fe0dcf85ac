"""Where the bytes of a live state go in its image, before anything is copied.

This is done while the training stands still. ``StateLayout.plan`` holds what can be used again for
the next state of the same form: names, headers, places and text (``plan``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from mvc.errors import MvcError
from mvc.sources import JoinedSource, MemorySource
from mvc.states.alias import find_crowded, find_groups
from mvc.states.document import STATE_FILE, Document, encode_document
from mvc.states.memory import HostRun
from mvc.states.plan import DiffersError, Follow, Recorder
from mvc.states.state import encode_walk

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from mvc.sources import ByteSource
    from mvc.states.alias import SharedGroup
    from mvc.states.memory import Region
    from mvc.states.plan import ArrayPlan, StatePart

PAGE_BYTES = 4096
_SMALL_BYTES = 2**20
"""Smaller neighbours are copied together; larger ones by all threads."""


@dataclass(frozen=True, slots=True)
class ImageFile:
    """The place of one file of a state in its image."""

    path: str
    offset: int
    size_bytes: int


@dataclass(frozen=True, slots=True, eq=False)
class ImagePart:
    """A run of bytes of the image, and the live bytes they are copied from."""

    offset: int
    source: ByteSource

    @property
    def size_bytes(self) -> int:
        """Its length."""
        return self.source.size_bytes

    def view(self) -> memoryview | None:
        """Return the live bytes if they are in host memory in one piece, or None."""
        return self.source.view(0, self.source.size_bytes)

    def find_device_words(self) -> Any:
        """Return a live tensor on a device as a contiguous tensor of integers.

        None means that the bytes are elsewhere, or have to be read through ``read_into``.
        """
        tensor = getattr(self.source, "tensor", None)
        if tensor is None or tensor.device.type == "cpu" or not tensor.is_contiguous():
            return None
        is_words = not tensor.is_floating_point() and not tensor.is_complex()
        return tensor if is_words else None  # values that are conjugated or negated lazily

    def copy_into(self, image: memoryview) -> None:
        """Copy the live bytes to their place."""
        self.source.read_into(0, image[self.offset : self.offset + self.size_bytes])


@dataclass(frozen=True, slots=True, eq=False)
class StateLayout:
    """What the image of a live state will hold, before anything is copied."""

    files: tuple[ImageFile, ...]  # in order, ``state.json`` at the end
    parts: tuple[ImagePart, ...]  # what has to be copied where
    size_bytes: int  # length of the image
    plan: LayoutPlan | None = None  # makes the next layout faster; None if it cannot


@dataclass(frozen=True, slots=True, eq=False)
class LayoutPlan:
    """What a layout keeps for the next one; no memory of the live state.

    ``root`` and ``arrays`` are forms, in the order of the walk; ``ties`` say which arrays share
    memory, and how; ``document`` lacks the state; ``pieces`` are what the image is made of.
    """

    root: StatePart
    arrays: tuple[ArrayPlan, ...]
    ties: tuple[object, ...]
    document: Document
    files: tuple[ImageFile, ...]
    pieces: tuple[ImagePart | _Piece, ...]
    text: bytes
    text_offset: int


@dataclass(frozen=True, slots=True, eq=False)
class _Piece:
    """Arrays that follow each other in the image from ``offset`` on, by index in the walk.

    ``starts`` counts from ``offset``, and also says where the last array ends.
    """

    offset: int
    indexes: tuple[int, ...]
    starts: tuple[int, ...]


def layout_state(state: Mapping[str, object], previous: LayoutPlan | None = None) -> StateLayout:
    """Return the image that a live state, as for ``Repo.commit_state``, would have.

    ``previous``, the plan of an earlier layout, saves most of the time if the state has the same
    form as then, and makes no other difference. A value that is not data is an UnsupportedError
    that names its path.
    """
    found = None if previous is None else _follow_plan(previous, state)
    return _layout_from_scratch(state) if found is None else found


def _layout_from_scratch(state: Mapping[str, object]) -> StateLayout:
    walk = Recorder()
    encoded = encode_walk(state, walk)
    files: list[ImageFile] = []
    parts: list[ImagePart] = []
    end = 0
    for file in encoded.files:
        start = _round_up(end)
        files.append(ImageFile(file.path, start, file.layout.size_bytes))
        parts.extend(ImagePart(start + offset, part) for offset, part in _split(file.source))
        end = start + file.layout.size_bytes
    text, start = encode_document(encoded.document), _round_up(end)
    plan = None
    if walk.is_complete and sum(len(file.arrays) for file in walk.files.values()) == len(
        walk.arrays
    ):  # else there are arrays that only exist because others overlap
        pieces = tuple(_plan_pieces(parts, walk))
        regions = {index: item.array.region for index, item in enumerate(walk.placed)}
        ties = _describe_groups(encoded.groups, regions)
        document = replace(encoded.document, state={})
        plan = LayoutPlan(
            walk.root, tuple(walk.arrays), ties, document, tuple(files), pieces, text, start
        )
    return _finish(files, parts, text, start, plan)


def _round_up(size_bytes: int) -> int:
    return -(-size_bytes // PAGE_BYTES) * PAGE_BYTES


def _split(source: ByteSource) -> Iterator[tuple[int, ByteSource]]:
    if isinstance(source, JoinedSource):
        yield from zip(source.starts, source.parts, strict=False)
    elif source.size_bytes:
        yield 0, source


def _finish(
    files: Iterable[ImageFile],
    parts: Iterable[ImagePart],
    text: bytes,
    start: int,
    plan: LayoutPlan | None,
) -> StateLayout:
    """Return a layout with the text after everything else."""
    size = len(text)
    return StateLayout(
        (*files, ImageFile(STATE_FILE, start, size)),
        (*parts, ImagePart(start, MemorySource(text))),
        start + size,
        plan,
    )


def _plan_pieces(parts: Iterable[ImagePart], walk: Recorder) -> Iterator[ImagePart | _Piece]:
    """Yield headers as they are, and arrays by index, small neighbours together."""
    index_of = {id(item.array.source): index for index, item in enumerate(walk.placed)}
    run: list[ImagePart] = []

    def end_run() -> Iterator[_Piece]:
        if run:
            offset = run[0].offset
            end = run[-1].offset + run[-1].size_bytes
            starts = tuple(place - offset for place in (*(part.offset for part in run), end))
            yield _Piece(offset, tuple(index_of[id(part.source)] for part in run), starts)
            run.clear()

    for part in parts:
        index = index_of.get(id(part.source))
        if index is None:
            yield from end_run()
            yield part
        elif walk.arrays[index].is_plain and part.size_bytes < _SMALL_BYTES:
            run.append(part)
        else:
            yield from end_run()
            yield _Piece(part.offset, (index,), (0, part.size_bytes))
    yield from end_run()


def _describe_groups(
    groups: Iterable[SharedGroup], regions: Mapping[int, Region | None]
) -> tuple[object, ...]:
    """Return all that ``link_shared`` makes of groups, apart from their addresses."""
    found = []
    for group in groups:
        views = [regions[index] for index in group.members]
        places = [(view.address - group.low, view.strides) for view in views if view is not None]
        size = group.high - group.low
        found.append((group.members, group.covering, group.is_tie, size, places))
    return tuple(found)


def _follow_plan(plan: LayoutPlan, state: object) -> StateLayout | None:
    """Return a state's layout, or None if it has another form than the plan."""
    if not isinstance(state, Mapping):
        return None
    walk = Follow()
    try:
        root = walk.follow(plan.root, state)
        ties = _find_ties(plan, walk)
        text = plan.text
        if root is not plan.root:
            text = encode_document(replace(plan.document, state=root.form))
    except (DiffersError, MvcError, RuntimeError, ValueError):
        return None  # the walk from the beginning says what is wrong, if anything is
    if ties != plan.ties:
        return None
    parts = [
        piece if isinstance(piece, ImagePart) else _make_part(piece, walk.sources)
        for piece in plan.pieces
    ]
    plan = replace(plan, root=root, text=text)
    return _finish(plan.files, parts, text, plan.text_offset, plan)


def _find_ties(plan: LayoutPlan, walk: Follow) -> tuple[object, ...]:
    crowded = find_crowded(walk.spans)
    regions = {index: walk.find_region(index, plan.arrays[index]) for index in crowded}
    return _describe_groups(find_groups(regions), regions)


def _make_part(piece: _Piece, sources: Sequence[ByteSource]) -> ImagePart:
    if len(piece.indexes) == 1:
        return ImagePart(piece.offset, sources[piece.indexes[0]])
    run = [sources[index] for index in piece.indexes]
    return ImagePart(piece.offset, HostRun(run, piece.starts))  # type: ignore[arg-type]  # plain arrays all, see ``_plan_pieces``
