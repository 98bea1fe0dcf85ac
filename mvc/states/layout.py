"""Where the bytes of a live state go in its image, before anything is copied.

This is done while the training stands still. ``StateLayout.plan`` holds what can be used again for
the next state of the same form: names, headers, places and text (``plan``).
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from mvc.errors import MvcError
from mvc.formats.manifest import DEFAULT_CHUNK_BYTES
from mvc.sources import ByteSource, JoinedSource, MemorySource
from mvc.states.alias import SharedGroup, find_crowded, find_groups
from mvc.states.cross_check import CHECK_ROUNDS
from mvc.states.document import STATE_FILE, Document, encode_document
from mvc.states.memory import HostRun, ImagePart, Region
from mvc.states.plan import ArrayPlan, DiffersError, Follow, Recorder, StatePart
from mvc.states.share import SharePlan, encode_share
from mvc.states.share_layout import ImageRun, form_state, list_checked_runs, list_kept_runs
from mvc.states.state import EncodedState, encode_walk, refuse_parts

if TYPE_CHECKING:
    from mvc.states.files import StateFile

PAGE_BYTES = 4096
RANKS_FOLDER = "ranks"
"""Where the own states of ranks are in a commit, each in a folder of its number."""
_SMALL_BYTES = 2**20
"""Smaller neighbours are copied together; larger ones by all threads."""


@dataclass(frozen=True, slots=True)
class ImageFile:
    """The place of one file of a state in its image."""

    path: str
    offset: int
    size_bytes: int


@dataclass(frozen=True, slots=True, eq=False)
class StateLayout:
    """What the image of a live state will hold, before anything is copied."""

    files: tuple[ImageFile, ...]  # in order, ``state.json`` at the end; none if there is a form
    parts: tuple[ImagePart, ...]  # what has to be copied where
    size_bytes: int  # length of the image
    plan: LayoutPlan | None = None  # makes the next layout faster; None if it cannot
    form: bytes | None = None  # of several ranks: what this one's image holds, for ``open_share``


@dataclass(frozen=True, slots=True, eq=False)
class LayoutPlan:
    """What a layout keeps for the next one; no memory of the live state.

    ``root`` and ``arrays`` are forms, in the order of the walk; ``ties`` say which arrays share
    memory, and how; ``document`` lacks the state; ``pieces`` are what the image is made of, and
    ``checked`` what comes besides in every round of the check.
    """

    root: StatePart
    arrays: tuple[ArrayPlan, ...]
    ties: tuple[object, ...]
    document: Document
    files: tuple[ImageFile, ...]
    pieces: tuple[ImagePart | _Piece, ...]
    text: bytes
    text_offset: int
    world: World
    form: bytes = b""
    checked: tuple[tuple[ImageRun, ...], ...] = ()
    own: LayoutPlan | None = None


@dataclass(frozen=True, slots=True)
class World:
    """Which of how many ranks lays out the state; the rest as for ``layout_state``.

    ``check_bytes`` is the length of chunks in which it checks others, or 0 if it does not.
    """

    rank: int = 0
    ranks: int = 1
    private: frozenset[str] = frozenset()
    first: frozenset[tuple[object, ...]] = frozenset()
    is_local: bool = False
    check_bytes: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class _Piece:
    """Ranges of arrays that follow each other in the image from ``offset`` on.

    ``starts`` counts from ``offset``, and also says where the last range ends.
    """

    offset: int
    ranges: tuple[ImageRun, ...]
    starts: tuple[int, ...]


def layout_state(
    state: Mapping[str, object],
    previous: LayoutPlan | None = None,
    *,
    rank: int = 0,
    ranks: int = 1,
    own: Mapping[str, object] | None = None,
    private: Collection[str] = (),
    first: Collection[Sequence[object]] = (),
    is_local: bool = False,
    check: tuple[int, int] = (-1, 0),
) -> StateLayout:
    """Return the image that a live state, as for ``Repo.commit_state``, would have.

    ``previous``, the plan of an earlier layout, saves most of the time if the state has the same
    form as then, and makes no other difference. A value that is not data is an UnsupportedError
    that names its path.

    With several ``ranks`` it is the image of one of them: what it keeps of the state, which is the
    same on every rank, apart from DTensors, where each has its part; and ``own``, a state that
    only this rank has. Scalars and texts of the state are those of rank 0. The caller names what ranks may have of their
    own in the state: ``private`` are top-level names that rank 0 alone has in it, and
    ``first`` paths, given alike on all ranks, at which the arrays of rank 0 count.

    ``check`` are a number that counts the commits, alike on all ranks, and the length of chunks
    (``Repo.chunk_bytes``): the image also holds what this rank is to check in that commit of what its
    replicas keep. Its length does not depend on the number.

    With ``is_local`` it is the whole state of one rank, and of DTensors the part that is here: not
    to be committed, but to be given back to the same rank.
    """
    number, check_bytes = check if ranks > 1 else (-1, 0)
    world = World(
        rank, ranks, frozenset(private), frozenset(map(tuple, first)), is_local, check_bytes
    )
    inner = None if previous is None else previous.own
    if previous is not None and previous.world == world:
        found = _follow_plan(previous, state, number)
    else:
        found = None
    layout = _layout_from_scratch(state, world, number) if found is None else found
    if ranks == 1:
        return layout
    own_layout = None if own is None else layout_state(own, inner)
    return _add_own(layout, world, own_layout, (number, check_bytes))


def _add_own(
    layout: StateLayout, world: World, own: StateLayout | None, check: tuple[int, int]
) -> StateLayout:
    """Return the layout of a rank, with its own files behind what it keeps, and its form."""
    start = _round_up(layout.size_bytes)
    folder = f"{RANKS_FOLDER}/{world.rank}/"
    inner = () if own is None else own.files
    files = [
        *((file.path, file.offset, file.size_bytes) for file in layout.files),
        *((folder + one.path, start + one.offset, one.size_bytes) for one in inner),
    ]
    parts = () if own is None else own.parts
    plan = layout.plan
    return StateLayout(
        (),
        (*layout.parts, *(ImagePart(start + part.offset, part.source) for part in parts)),
        layout.size_bytes if own is None else start + own.size_bytes,
        None if plan is None else replace(plan, own=None if own is None else own.plan),
        encode_share(world.rank, layout.form or b"", files, check),
    )


def _layout_from_scratch(state: Mapping[str, object], world: World, number: int) -> StateLayout:
    walk = Recorder(first=world.first, is_local=world.is_local)
    encoded = encode_walk(state, walk)
    if world.ranks > 1:
        return _layout_share(walk, encoded, world, number)
    if not world.is_local:
        refuse_parts(walk)
    files, parts, end = _place_files(encoded.files, 0)
    text, start = encode_document(encoded.document), _round_up(end)
    runs = _find_runs(parts, walk)
    pieces = list(_plan_pieces(parts, runs, walk)) if _is_followable(walk) else []
    plan = _make_plan(walk, encoded, pieces, text, start, world)
    plan = None if plan is None else replace(plan, files=tuple(files))
    return _finish(files, parts, text, start, plan)


def _place_files(
    stored: Iterable[StateFile], end: int
) -> tuple[list[ImageFile], list[ImagePart], int]:
    """Return whole files, one after the other, their bytes, and where they end."""
    files: list[ImageFile] = []
    parts: list[ImagePart] = []
    for file in stored:
        start = _round_up(end)
        files.append(ImageFile(file.path, start, file.layout.size_bytes))
        source = file.source
        if isinstance(source, JoinedSource):
            pairs = zip(source.starts, source.parts, strict=False)
            parts.extend(ImagePart(start + offset, part) for offset, part in pairs)
        elif source.size_bytes:
            parts.append(ImagePart(start, source))
        end = start + file.layout.size_bytes
    return files, parts, end


def _find_runs(parts: Iterable[ImagePart], walk: Recorder) -> dict[int, ImageRun]:
    """Return the whole arrays among parts, by ``id`` of their source."""
    indexes = {id(item.array.source): index for index, item in enumerate(walk.placed)}
    return {
        id(part.source): ImageRun(part.offset, indexes[id(part.source)], 0, part.size_bytes)
        for part in parts
        if id(part.source) in indexes
    }


def _layout_share(walk: Recorder, encoded: EncodedState, world: World, number: int) -> StateLayout:
    """Return what a rank keeps of a state; its text only if it is the first."""
    document = replace(encoded.document, folders=(RANKS_FOLDER,))
    encoded = replace(encoded, document=document)
    files = list(zip(encoded.files, walk.files.values(), strict=True))
    alone = [key in world.private for key in walk.files]
    shared = [file for file, is_private in zip(files, alone, strict=True) if not is_private]
    first = {id(walk.placed[number].array) for number in walk.placed_first}
    form, arrays = form_state(shared, world.ranks, first)
    indexes = {id(item.array): index for index, item in enumerate(walk.placed)}
    plan = SharePlan(form, world.check_bytes or DEFAULT_CHUNK_BYTES)
    runs = list(list_kept_runs(plan, arrays, indexes, world.rank))
    checked = list_checked_runs(plan, arrays, indexes, world.rank) if world.check_bytes else ()
    sources = [item.array.source for item in walk.placed]
    parts = [ImagePart(run.offset, run.open(sources[run.index])) for run in runs]
    ends = (one.offset + one.size_bytes for one in itertools.chain(runs, *checked))
    end = max(ends, default=0)
    by_source = {id(part.source): run for part, run in zip(parts, runs, strict=True)}
    private = (file for (file, _), is_private in zip(files, alone, strict=True) if is_private)
    own, own_parts, end = _place_files(private, end)
    parts, by_source = [*parts, *own_parts], by_source | _find_runs(own_parts, walk)
    text = encode_document(document) if world.rank == 0 else b""
    start = _round_up(end)
    pieces = list(_plan_pieces(parts, by_source, walk)) if _is_followable(walk) else []
    kept = _make_plan(walk, encoded, pieces, text, start, world)
    kept = None if kept is None else replace(kept, form=form, files=tuple(own), checked=checked)
    parts += _open_checked(checked, number, sources)
    return replace(_finish(own, parts, text, start, kept), form=form)


def _open_checked(
    checked: Sequence[Sequence[ImageRun]], number: int, sources: Sequence[ByteSource]
) -> Iterator[ImagePart]:
    for part in checked[number % CHECK_ROUNDS] if checked else ():
        yield ImagePart(part.offset, part.open(sources[part.index]))


def _is_followable(walk: Recorder) -> bool:
    """Return whether the form says all; arrays that only exist because others overlap are not in it."""
    named = sum(len(file.arrays) for file in walk.files.values())
    return walk.is_complete and named == len(walk.arrays)


def _make_plan(
    walk: Recorder,
    encoded: EncodedState,
    pieces: Sequence[ImagePart | _Piece],
    text: bytes,
    start: int,
    world: World,
) -> LayoutPlan | None:
    if not _is_followable(walk):
        return None
    regions = {index: item.array.region for index, item in enumerate(walk.placed)}
    ties = _describe_groups(encoded.groups, regions)
    document = replace(encoded.document, state={})
    return LayoutPlan(
        walk.root, tuple(walk.arrays), ties, document, (), tuple(pieces), text, start, world
    )


def _round_up(size_bytes: int) -> int:
    return -(-size_bytes // PAGE_BYTES) * PAGE_BYTES


def _finish(
    files: Iterable[ImageFile],
    parts: Iterable[ImagePart],
    text: bytes,
    start: int,
    plan: LayoutPlan | None,
) -> StateLayout:
    """Return a layout with the text, unless there is none, after everything else."""
    size = len(text)
    if not text:
        return StateLayout((), tuple(parts), start, plan)
    return StateLayout(
        (*files, ImageFile(STATE_FILE, start, size)),
        (*parts, ImagePart(start, MemorySource(text))),
        start + size,
        plan,
    )


def _plan_pieces(
    parts: Iterable[ImagePart], runs: Mapping[int, ImageRun], walk: Recorder
) -> Iterator[ImagePart | _Piece]:
    """Yield headers as they are, and ranges of arrays, small neighbours together.

    ``runs`` are the ranges by ``id`` of the source of their part.
    """
    found: list[ImageRun] = []

    def end_run() -> Iterator[_Piece]:
        if found:
            offset = found[0].offset
            end = found[-1].offset + found[-1].size_bytes
            starts = tuple(place - offset for place in (*(one.offset for one in found), end))
            yield _Piece(offset, tuple(found), starts)
            found.clear()

    for part in parts:
        run = runs.get(id(part.source))
        if run is None:
            yield from end_run()
            yield part
        elif walk.arrays[run.index].is_plain and part.size_bytes < _SMALL_BYTES:
            found.append(run)
        else:
            yield from end_run()
            yield _Piece(run.offset, (run,), (0, run.size_bytes))
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


def _follow_plan(plan: LayoutPlan, state: object, number: int) -> StateLayout | None:
    """Return a state's layout, or None if it has another form than the plan."""
    if not isinstance(state, Mapping):
        return None
    walk = Follow(is_local=plan.world.is_local)
    try:
        root = walk.follow(plan.root, state)
        crowded = find_crowded(walk.spans)
        regions = {index: walk.find_region(index, plan.arrays[index]) for index in crowded}
        ties = _describe_groups(find_groups(regions), regions)
        text = plan.text
        if root is not plan.root and text:
            text = encode_document(replace(plan.document, state=root.form))
    except (DiffersError, MvcError, RuntimeError, ValueError):
        return None  # the walk from the beginning says what is wrong, if anything is
    if ties != plan.ties:
        return None
    parts: list[ImagePart] = []
    for piece in plan.pieces:
        if isinstance(piece, ImagePart):
            parts.append(piece)
            continue
        run = [kept.open(walk.sources[kept.index]) for kept in piece.ranges]
        # Several are plain arrays all, see ``_plan_pieces``.
        source = run[0] if len(run) == 1 else HostRun(run, piece.starts)  # type: ignore[arg-type]
        parts.append(ImagePart(piece.offset, source))
    parts += _open_checked(plan.checked, number, walk.sources)
    plan = replace(plan, root=root, text=text)
    layout = _finish(plan.files, parts, text, plan.text_offset, plan)
    return replace(layout, form=plan.form) if plan.form else layout
