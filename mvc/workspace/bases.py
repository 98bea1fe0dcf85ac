"""Which stored chunks the tensors of a file may resemble: the parent's, and the fp32 masters'.

The *base* of a chunk is the chunk at the same place of the tensor of the same name in the parent
commit: in the same file, or, if a run writes ``step-2000.pt`` beside ``step-1000.pt``, in the parent's
files in the same folder. A *master* is an fp32 tensor of the same commit whose rounding a bf16 or fp16
tensor may be; it is found by content (a few elements of each are compared), so the names need not
match.

These are hints: the chunk store verifies every one before it builds on it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from mvc.dtypes import get_dtype
from mvc.errors import MvcError
from mvc.formats.casts import find_cast, round_words
from mvc.formats.manifest import StoredSegment, cut_sizes
from mvc.formats.planes import ARENA_BYTES
from mvc.sources import ByteSource, FileSource
from mvc.workspace.manifests import find_manifest
from mvc.workspace.worktree import find_file_stat

if TYPE_CHECKING:
    from pathlib import Path

    from mvc.chunkstore.values import ChunkSpan
    from mvc.chunkstore.writer import ChunkWriter
    from mvc.formats.layout import FileLayout, Segment
    from mvc.history.values import Index, TreeEntry
    from mvc.ids import ChunkId, GitId
    from mvc.states.share import Share
    from mvc.workspace.context import Context


_MAX_RELATED_FILES = 16
_PROBES = 16
"""Elements at the start and in the middle that a rounding must share with its master."""
MIN_CAST_ELEMENTS = 4096
MAX_MASTERS = 64
"""How many tensors of one size are compared; a model has at most a hundred layers of a kind."""
_NO_DIGITS = str.maketrans("", "", "0123456789")
MIXED_DTYPES = ("BF16", "F16")
MASTER_DTYPE = "F32"


@dataclass(frozen=True, slots=True)
class Hint:
    """What a tensor may resemble: the parent's chunks (``bases``), and a rounding of ``masters``.

    These are (id, length) of the chunks of an fp32 tensor, and ``cast`` the kind of rounding.
    Tensors of one ``group`` change alike.
    """

    bases: tuple[ChunkId, ...] = ()
    masters: tuple[tuple[ChunkId, int], ...] = ()
    cast: int | None = None
    group: int = 0

    def masters_of(self, number: int) -> tuple[tuple[ChunkId, int], ...]:
        """Return what a chunk may be rounded from: twice as many bytes, so one or two chunks."""
        return self.masters[2 * number : 2 * number + 2]


@dataclass(frozen=True, slots=True)
class _Master:
    """A stored fp32 tensor, and where its bytes can be read cheaply."""

    chunks: tuple[tuple[ChunkId, int], ...]
    source: ByteSource
    start: int


class PathSource(ByteSource):
    """The bytes of a file that is opened again for every read."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @property
    def size_bytes(self) -> int:
        """Length of the file now."""
        with FileSource.open(self._path) as source:
            return source.size_bytes

    def read_into(self, offset: int, buffer: memoryview) -> None:
        """Fill the buffer from ``offset`` on."""
        with FileSource.open(self._path) as source:
            source.read_into(offset, buffer)


class Relatives:
    """What is known of the files that one session stores on top of a parent commit's ``tree``.

    ``sources`` is where the bytes of a file are if it is not in the worktree.
    """

    def __init__(
        self,
        context: Context,
        writer: ChunkWriter,
        tree: Mapping[str, TreeEntry],
        sources: Mapping[str, ByteSource] | None = None,
    ) -> None:
        self._context = context
        self._writer = writer
        self._tree = tree
        self._sources = sources or {}
        self._masters: dict[int, list[_Master]] = {}
        self._groups: dict[str, int] = {}
        self._index: Index | None = None

    def find_hints(self, path: str, layout: FileLayout) -> dict[Segment, Hint]:
        """Return what the segments of a file may resemble in the parent commit."""
        chunk_bytes = self._context.chunk_bytes
        segments = match_segments(self._context, self._tree, path, layout.segments, chunk_bytes)
        at_hand = {
            other for other in {other for other, _ in segments.values()} if self._is_there(other)
        }
        for other, stored in segments.values():
            if other in at_hand:
                source = PathSource(self._context.worktree / other)
                self.offer(stored.chunks, source, stored.segment.start)
        bases = {key: stored.chunks for key, (_, stored) in segments.items()}
        return {
            segment: Hint(
                bases=bases.get(segment_key(segment), ()),
                group=self._groups.setdefault(group_name(segment), len(self._groups)),
            )
            for segment in layout.segments
        }

    def offer(self, chunks: Sequence[ChunkId], source: ByteSource, start: int) -> None:
        """Tell the writer where the bytes of chunks can be read."""
        for number, chunk in enumerate(chunks):
            place = (source, start + number * self._context.chunk_bytes)
            self._writer.at_hand.setdefault(chunk, place)

    def offer_file(self, path: str, layout: FileLayout, source: ByteSource) -> None:
        """Tell the writer about a file of the parent commit whose bytes the caller still has."""
        entry = self._tree.get(path)
        with contextlib.suppress(MvcError):
            manifest = None if entry is None else find_manifest(self._context, entry.blob)
            if manifest is None or manifest.chunk_bytes != self._context.chunk_bytes:
                return
            stored = {segment_key(old.segment): old.chunks for old in manifest.segments}
            for segment in layout.segments:
                self.offer(stored.get(segment_key(segment), ()), source, segment.start)

    def _is_there(self, path: str) -> bool:
        """Return whether a file of the worktree is still what the parent commit has."""
        if self._index is None:
            self._index = self._context.history.read_index()
        entry, stat = self._index.entries.get(path), find_file_stat(self._context.worktree, path)
        if entry is None or stat is None:
            return False
        return entry.blob == self._tree[path].blob and entry.matches(stat)

    def split(self, segments: Sequence[Segment]) -> tuple[list[Segment], list[Segment]]:
        """Return the segments to store first, and those that may be roundings of them."""
        late = {segment: None for segment in segments if is_castable(segment)}
        return [segment for segment in segments if segment not in late], list(late)

    def note_masters(self, path: str, stored: Mapping[Segment, Sequence[ChunkId]]) -> None:
        """Remember the fp32 tensors of a stored file: others may be their roundings."""
        source = self._sources.get(path) or PathSource(self._context.worktree / path)
        for segment, chunks in stored.items():
            elements = segment.size_bytes // 4
            if segment.dtype == MASTER_DTYPE and elements >= MIN_CAST_ELEMENTS:
                sizes = cut_sizes(segment.size_bytes, self._context.chunk_bytes)
                pairs = tuple(zip(chunks, sizes, strict=True))
                master = _Master(pairs, source, segment.start)
                self._masters.setdefault(elements, []).append(master)

    def find_master(self, segment: Segment, source: ByteSource, hint: Hint) -> Hint:
        """Return the hint with the master of a tensor added, if a few elements match."""
        elements = segment.size_bytes // 2
        kind = find_cast(get_dtype(MASTER_DTYPE), get_dtype(segment.dtype))
        masters = self._masters.get(elements, ())
        if not masters or kind is None:
            return hint
        probe = _probe(source, segment.start, elements, 2)
        for master in masters[:MAX_MASTERS]:
            if round_probe(kind, _probe(master.source, master.start, elements, 4)) == probe:
                ids = [chunk for chunk, _ in master.chunks]
                self.offer(ids, master.source, master.start)
                return replace(hint, masters=master.chunks, cast=kind)
        return hint


def is_castable(segment: Segment) -> bool:
    """Return whether a tensor may be the rounding of another, which must then be stored first."""
    return segment.dtype in MIXED_DTYPES and segment.size_bytes // 2 >= MIN_CAST_ELEMENTS


def masters_first(paths: Sequence[str], layouts: Mapping[str, FileLayout]) -> list[str]:
    """Return paths in an order in which masters come before their roundings."""

    def has_roundings(path: str) -> bool:
        return path in layouts and any(map(is_castable, layouts[path].segments))

    return sorted(paths, key=has_roundings)


def segment_key(segment: Segment) -> tuple[str, str]:
    """Return what makes two segments versions of one tensor: its name and dtype."""
    return segment.tensors[0].name, segment.dtype


def group_name(segment: Segment) -> str:
    """Return what segments that change alike have in common.

    That is the dtype and the name without numbers: one role in all layers, as weight or moment.
    """
    return f"{segment.dtype} {segment.tensors[0].name.translate(_NO_DIGITS)}"


def match_segments(
    context: Context,
    tree: Mapping[str, TreeEntry],
    path: str,
    segments: Iterable[Segment],
    chunk_bytes: int,
) -> dict[tuple[str, str], tuple[str, StoredSegment]]:
    """Return key → (path, segment) of the version of each tensor in a parent commit's ``tree``.

    Versions that were cut elsewhere are left out: they have no chunk in common.
    """
    wanted = {segment_key(segment) for segment in segments}
    found: dict[tuple[str, str], tuple[str, StoredSegment]] = {}
    for other, blob in related_files(tree, path):
        if found.keys() >= wanted:
            break
        with contextlib.suppress(MvcError):  # a damaged parent must not stop a commit
            manifest = find_manifest(context, blob)
            if manifest is not None and manifest.chunk_bytes == chunk_bytes:
                for stored in manifest.segments:
                    key = segment_key(stored.segment)
                    if key in wanted:
                        found.setdefault(key, (other, stored))
    return found


def related_files(tree: Mapping[str, TreeEntry], path: str) -> Iterator[tuple[str, GitId]]:
    """Yield (path, blob) of a file in a parent commit, or of similar files in its folder."""
    entry = tree.get(path)
    if entry is not None:
        yield path, entry.blob
        return
    folder, suffix = path.rpartition("/")[0], path.rpartition(".")[2]
    like = [
        other
        for other in tree
        if other.rpartition("/")[0] == folder and other.rpartition(".")[2] == suffix
    ]

    def by_number(path: str) -> tuple[int, str]:  # ``step-1000`` after ``step-900``
        return int("".join(filter(str.isdigit, path))[-18:] or 0), path

    for other in sorted(like, key=by_number, reverse=True)[:_MAX_RELATED_FILES]:
        yield other, tree[other].blob


def _probe(source: ByteSource, start: int, elements: int, element_bytes: int) -> bytes:
    """Return some elements from the start and the middle of a tensor."""
    data = bytearray(2 * _PROBES * element_bytes)
    halves = memoryview(data)
    middle = _PROBES * element_bytes
    source.read_into(start, halves[:middle])
    source.read_into(start + elements // 2 * element_bytes, halves[middle:])
    return bytes(data)


def round_probe(kind: int, words: bytes) -> bytes:
    """Return a few elements rounded."""
    rounded = np.empty(len(words) // 2, np.uint8)
    round_words(kind, np.frombuffer(words, np.uint8), rounded, np.empty(ARENA_BYTES, np.uint8))
    return rounded.tobytes()


@dataclass(frozen=True, slots=True)
class _OwnMaster:
    """A tensor with the chunks of it that this rank has stored, by number."""

    path: str
    segment: Segment
    array: int
    chunks: Mapping[int, ChunkId]


class OwnMasters:
    """The fp32 tensors that a rank has stored in a session."""

    def __init__(self, share: Share, files: Mapping[str, ByteSource], chunk_bytes: int) -> None:
        self._share, self._files, self._chunk_bytes = share, files, chunk_bytes
        self._masters: dict[int, list[_OwnMaster]] = {}

    def note(self, path: str, segment: Segment, array: int, chunks: Mapping[int, ChunkId]) -> None:
        """Remember the chunks of a tensor that were stored, if others may be its roundings."""
        elements = segment.size_bytes // 4
        if segment.dtype == MASTER_DTYPE and elements >= MIN_CAST_ELEMENTS and chunks:
            master = _OwnMaster(path, segment, array, chunks)
            self._masters.setdefault(elements, []).append(master)

    def offer(
        self, segment: Segment, array: int, spans: Iterable[tuple[int, ChunkSpan]], writer: object
    ) -> Iterator[ChunkSpan]:
        """Yield numbered spans of a tensor, with the chunks that they may be the rounding of."""
        master = self._find(segment, array) if is_castable(segment) else None
        at_hand = getattr(writer, "at_hand", {})
        kind = find_cast(get_dtype(MASTER_DTYPE), get_dtype(segment.dtype))
        for number, span in spans:
            pairs = () if master is None else tuple(self._pairs(master, number))
            if master is None or not pairs:
                yield span
                continue
            for at, (chunk, _) in enumerate(pairs, 2 * number):
                place = master.segment.start + at * self._chunk_bytes
                at_hand.setdefault(chunk, (self._files[master.path], place))
            yield replace(span, masters=pairs, cast=kind)

    def _pairs(self, master: _OwnMaster, number: int) -> list[tuple[ChunkId, int]]:
        """Return (id, length) of the chunks that a chunk may be rounded from, if all are stored."""
        sizes = cut_sizes(master.segment.size_bytes, self._chunk_bytes)
        numbers = range(2 * number, min(2 * number + 2, len(sizes)))
        if not all(at in master.chunks for at in numbers):
            return []
        return [(master.chunks[at], sizes[at]) for at in numbers]

    def _find(self, segment: Segment, array: int) -> _OwnMaster | None:
        """Return the tensor that one may be the rounding of: a few elements of each agree."""
        kind = find_cast(get_dtype(MASTER_DTYPE), get_dtype(segment.dtype))
        probe = self._probe(array)
        if kind is None or probe is None:
            return None
        for master in self._masters.get(segment.size_bytes // 2, ())[:MAX_MASTERS]:
            if self._first_box(master.array) == self._first_box(array):
                words = self._probe(master.array)
                if words is not None and round_probe(kind, words) == probe:
                    return master
        return None

    def _first_box(self, array: int) -> object:
        division = self._share.plan.keepers.divisions[array]
        numbers = division.numbers_of(self._share.rank)
        return division.kept[numbers[0]] if numbers else None

    def _probe(self, array: int) -> bytes | None:
        """Return some elements from the start and the middle of the rank's first box."""
        plan, rank = self._share.plan, self._share.rank
        places = plan.places_of(rank)[array]
        if not places:
            return None
        number, start = next(iter(places.items()))
        item_bytes = plan.arrays[array].item_bytes
        elements = plan.keepers.divisions[array].kept[number].box.elements
        size = min(_PROBES, elements) * item_bytes
        middle = start + elements // 2 * item_bytes
        end = start + elements * item_bytes
        image = self._share.image
        return bytes(image[start : start + size]) + bytes(image[middle : min(middle + size, end)])
