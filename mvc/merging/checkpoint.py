"""The merge of one checkpoint by its tensors: planned from manifests, then written as a new one.

A tensor that is taken from a side keeps its chunks and is never read; one that a method computes goes
through the ``Cutter`` like any new file. Where the tensors are follows the side that changed it;
if both did, the order of the safetensors library.

Files of other formats hold more around their tensors than can be made anew. They are merged where
all sides have their tensors at the same places, and at most one side changed what is around them.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TYPE_CHECKING, TypeAlias

from blake3 import blake3

from mvc.checkpoints.safetensors import (
    DTYPES,
    LENGTH_BYTES,
    MAX_HEADER_BYTES,
    METADATA_KEY,
    encode_header,
    read_metadata,
)
from mvc.errors import UnsupportedError, UsageError
from mvc.formats.layout import FileLayout, single_tensor
from mvc.formats.manifest import Manifest, StoredSegment, cut_run
from mvc.formats.manifest_lines import encode_manifest
from mvc.merging.rules import SIDES
from mvc.merging.table import Outcome, Row, decide, merge_names
from mvc.sources import JoinedSource, MemorySource
from mvc.workspace.models import read_tree_model
from mvc.workspace.tensors import ModelTensor

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from mvc.history.values import TreeEntry
    from mvc.ids import ChunkId
    from mvc.sources import ByteSource
    from mvc.workspace.context import Context
    from mvc.workspace.files import Cutter

    Tensors: TypeAlias = Mapping[str, ModelTensor]
    Metadata: TypeAlias = Mapping[str, str] | None

Resolve: TypeAlias = Callable[[str, str, Row[ModelTensor]], ModelTensor]
"""(strategy, path, row) → the tensor that a method makes of a conflict; it is not read yet."""
_READ_BYTES = 2**22
_BY_METHOD = (Outcome.MODIFY_MODIFY, Outcome.ADD_ADD)


@dataclass(frozen=True, slots=True)
class CheckpointMerge:
    """What becomes of one checkpoint.

    Attributes:
        path: its name.
        tensors: the tensors of the result by name, in order; ours where there is a conflict.
        header: what begins the file, or None if all around the tensors is as in ``like``.
        like: the manifest that the result takes after.
        conflicts: (tensor, what happened) of those that nothing decides.
        taken: how many tensors came ``ours``, ``theirs``, from ``base``, or were ``merged``.
    """

    path: str
    tensors: Mapping[str, ModelTensor]
    header: bytes | None
    like: Manifest
    conflicts: tuple[tuple[str, str], ...]
    taken: Mapping[str, int]

    @property
    def fresh_bytes(self) -> int:
        """Bytes of the tensors that have to be computed."""
        return sum(one.size_bytes for one in self._fresh().values())

    def _fresh(self) -> dict[str, ModelTensor]:
        cut = self.like.chunk_bytes
        return {name: one for name, one in self.tensors.items() if not _is_cut_at(one, cut)}

    def write(self, open_cutter: Callable[[int], Cutter]) -> bytes:
        """Store what is new, and return the manifest of the result.

        ``open_cutter`` returns what cuts files at multiples of a length; it is asked if anything is
        new.
        """
        like, fresh = self.like, self._fresh()
        gaps, chunks = like.gaps, {name: one.chunks or () for name, one in self.tensors.items()}
        if fresh or self.header is not None:
            stored = _store_new(self.path, self.header or b"", fresh, open_cutter(like.chunk_bytes))
            gaps = gaps if self.header is None else stored.gaps
            names = (one.segment.tensors[0].name for one in stored.segments)
            chunks |= {name: one.chunks for name, one in zip(names, stored.segments, strict=True)}
        if self.header is None:
            segments = tuple(
                replace(one, chunks=chunks[one.segment.tensors[0].name]) for one in like.segments
            )
            return encode_manifest(replace(like, segments=segments))
        start = len(self.header)
        placed = []
        for name, one in self.tensors.items():
            segment = single_tensor(name, one.view.dtype, one.view.shape, start)
            placed.append(StoredSegment(segment, chunks[name]))
            start = segment.end
        return encode_manifest(Manifest(like.format, start, like.chunk_bytes, gaps, tuple(placed)))


def _store_new(path: str, header: bytes, fresh: Tensors, cutter: Cutter) -> Manifest:
    """Store a header and some tensors as if they were a file; return its manifest."""
    sizes = [len(header), *(one.size_bytes for one in fresh.values())]
    starts = list(accumulate(sizes, initial=0))
    segments = tuple(
        single_tensor(name, one.view.dtype, one.view.shape, start)
        for (name, one), start in zip(fresh.items(), starts[1:-1], strict=True)
    )
    sources: list[ByteSource] = [MemorySource(header), *(one.source for one in fresh.values())]
    parts = [
        (source, start)
        for source, size, start in zip(sources, sizes, starts[:-1], strict=True)
        if size
    ]
    joined = JoinedSource([one for one, _ in parts], [*(start for _, start in parts), starts[-1]])
    return cutter.store(joined, FileLayout("safetensors", starts[-1], segments), path)


def _is_cut_at(tensor: ModelTensor, chunk_bytes: int) -> bool:
    """Return whether a tensor is stored, in chunks of that length."""
    if tensor.chunks is None:
        return False
    return tensor.chunk_bytes == chunk_bytes or tensor.segment.size_bytes <= min(
        tensor.chunk_bytes, chunk_bytes
    )


def merge_checkpoint(
    context: Context,
    path: str,
    base: TreeEntry | None,
    sides: Sequence[TreeEntry],
    find_strategy: Callable[[str], str | None],
    resolve: Resolve,
) -> CheckpointMerge | str:
    """Plan the merge of one checkpoint, or return in words why its tensors cannot be merged."""
    entries = [base, *sides]
    manifests = [None if one is None else context.manifests.read(one.blob) for one in entries]
    layout = _Layout(context, manifests[0], [one for one in manifests[1:] if one is not None])
    fault = layout.find_fault()
    if fault is not None:
        return fault
    tensors = [_read_tensors(context, path, one) for one in entries]
    result: dict[str, ModelTensor] = {}
    conflicts: list[tuple[str, str]] = []
    taken: Counter[str] = Counter()
    is_cut_alike = len({one.chunk_bytes for one in manifests if one is not None}) == 1
    version = _version if is_cut_alike else _version_by_bytes
    for row in merge_names(tensors[0], tensors[1:], version, lambda one: one.elements > 1):
        source, tensor = _decide(path, row, find_strategy, resolve)
        if source == "conflict":
            conflicts.append((row.name, row.outcome.value + _describe(row)))
        taken[source] += 1
        if tensor is not None:
            result[row.name] = tensor
    metadata = layout.merge_metadata(find_strategy(METADATA_KEY))
    conflicts += [(f"{METADATA_KEY}.{key}", Outcome.MODIFY_MODIFY.value) for key in metadata[1]]
    ordered, header, like = layout.place(result, metadata[0])
    return CheckpointMerge(path, ordered, header, like, tuple(conflicts), taken)


def _read_tensors(context: Context, path: str, entry: TreeEntry | None) -> dict[str, ModelTensor]:
    """Return name → tensor; segments of several tensors go by the first."""
    if entry is None:
        return {}
    found: dict[int, ModelTensor] = {}
    for one in read_tree_model(context, {path: entry}, path).tensors:
        found.setdefault(id(one.segment), one)
    return {one.name: one for one in found.values()}


def _version(tensor: ModelTensor) -> Hashable:
    segment = tensor.segment
    shapes = tuple(replace(view, name="") for view in segment.tensors)
    return segment.dtype, shapes, segment.size_bytes, tensor.chunks


def _version_by_bytes(tensor: ModelTensor) -> Hashable:
    """Return what makes two versions equal that are not cut alike: the hash of all bytes."""
    read, digest = tensor.source.read_into, blake3()
    for start in range(0, tensor.segment.size_bytes, _READ_BYTES):
        piece = bytearray(min(_READ_BYTES, tensor.segment.size_bytes - start))
        read(tensor.start + start, memoryview(piece))
        digest.update(piece)
    return (*_version(replace(tensor, chunks=None)), digest.digest())  # type: ignore[misc]


def _describe(row: Row[ModelTensor]) -> str:
    """Return how the dtypes or shapes of a conflict differ, if they do."""
    kinds = dict.fromkeys(
        f"{one.view.dtype}[{','.join(map(str, one.view.shape))}]" for one in row.sides if one
    )
    return f" ({' and '.join(kinds)})" if len(kinds) > 1 else ""


def _decide(
    path: str,
    row: Row[ModelTensor],
    find_strategy: Callable[[str], str | None],
    resolve: Resolve,
) -> tuple[str, ModelTensor | None]:
    """Return where the result of a row comes from, and the tensor."""
    if not row.outcome.is_conflict:
        side = row.decision.side or 0
        is_new = row.outcome in (Outcome.THEIRS, Outcome.REMOVE) and side > 0
        word = "theirs" if is_new else "kept" if row.outcome is Outcome.KEEP else "ours"
        return word, row.result
    strategy = find_strategy(row.name)
    if strategy in SIDES:
        if strategy == "theirs" and len(row.sides) > 2:  # noqa: PLR2004  ours and theirs
            raise UsageError(
                f'"theirs" does not say which of {len(row.sides) - 1} branches to take '
                f"{row.name!r} from",
                hint="merge them one after another",
            )
        versions = {"ours": row.sides[0], "theirs": row.sides[-1], "base": row.base}
        return strategy, versions[strategy]
    if strategy is not None and row.outcome in _BY_METHOD and all(_is_plain(row)):
        with contextlib.suppress(UnsupportedError):  # whole numbers have no mean
            return "merged", resolve(strategy, path, row)
    return "conflict", row.sides[0]


def _is_plain(row: Row[ModelTensor]) -> Iterable[bool]:
    return (one.segment.is_plain for one in (row.base, *row.sides) if one is not None)


class _Layout:
    """Where the tensors of the result are, and what is around them."""

    def __init__(self, context: Context, base: Manifest | None, sides: Sequence[Manifest]) -> None:
        self._context = context
        self._base = base
        self._sides = sides
        self._all = [base, *sides]
        self._read: dict[tuple[ChunkId, ...], Metadata] = {}

    @property
    def _is_safetensors(self) -> bool:
        return all(one.format == "safetensors" for one in self._sides)

    def find_fault(self) -> str | None:
        """Return why the tensors cannot be merged, or None."""
        if self._is_safetensors:
            return None
        first = self._sides[0]
        places = [stored.segment for stored in first.segments]
        if any(
            (one.format, [stored.segment for stored in one.segments]) != (first.format, places)
            for one in self._sides
        ):
            return f"its tensors are not at the same places in both ({first.format})"
        if self._find_around() is None:
            return f"what is around its tensors differs too ({first.format})"
        return None

    def _find_around(self) -> int | None:
        """Return the side whose gaps the result has, or None."""
        base = None if self._base is None else self._base.gaps
        return decide(base, [one.gaps for one in self._sides]).side

    def merge_metadata(self, strategy: str | None) -> tuple[Metadata, list[str]]:
        """Return the metadata of the result, and the keys that both sides changed."""
        if not self._is_safetensors or len({one.gaps for one in self._sides}) == 1:
            return None, []
        base, *sides = map(self._read_metadata, self._all)
        result: dict[str, str] = {}
        conflicts: list[str] = []
        for key in dict.fromkeys(key for one in (*sides, base or {}) for key in one or {}):
            versions = [(one or {}).get(key) for one in (base, *sides)]
            side = decide(versions[0], versions[1:]).side
            place = side if side is not None else {"theirs": -1, "base": -2}.get(strategy or "", 0)
            if side is None and strategy is None:
                conflicts.append(key)
            value = versions[0] if place == -2 else versions[1:][place]  # noqa: PLR2004  as above
            if value is not None:
                result[key] = value
        return result if any(one is not None for one in sides) else None, conflicts

    def _read_metadata(self, manifest: Manifest | None) -> Metadata:
        if manifest is None or manifest.format != "safetensors":
            return None
        if manifest.gap_bytes > MAX_HEADER_BYTES + LENGTH_BYTES:
            return None
        if manifest.gaps in self._read:
            return self._read[manifest.gaps]
        data = bytearray(manifest.gap_bytes)
        runs = cut_run(manifest.gap_bytes, manifest.gaps, manifest.chunk_bytes)
        for offset, chunk, size in runs:
            self._context.store.read_into(chunk, memoryview(data)[offset : offset + size])
        found = self._read[manifest.gaps] = read_metadata(bytes(data[LENGTH_BYTES:]))
        return found

    def place(self, tensors: Tensors, metadata: Metadata) -> tuple[Tensors, bytes | None, Manifest]:
        """Return the tensors in order, the header if it is a new one, and what it takes after."""
        if not self._is_safetensors:
            side = self._find_around()
            assert side is not None
            return tensors, None, self._sides[side]
        if len({one.gaps for one in self._sides}) == 1 and _fits(self._sides[0], tensors):
            return tensors, None, self._sides[0]
        ordered = self._order(tensors)
        for one in self._sides:
            if (
                _names(one) == tuple(ordered)
                and _fits(one, ordered)
                and self._read_metadata(one) == metadata
            ):
                return ordered, None, one
        if metadata is None and len({one.gaps for one in self._sides}) == 1:
            metadata = self._read_metadata(self._sides[0])
        table = [
            (name, one.view.dtype, one.view.shape, one.size_bytes) for name, one in ordered.items()
        ]
        return ordered, encode_header(table, metadata), self._sides[0]

    def _order(self, tensors: Tensors) -> dict[str, ModelTensor]:
        orders = [_names(one) for one in self._all]
        side = decide(orders[0] or None, orders[1:]).side
        names = () if side is None else orders[1:][side]
        if not tensors.keys() <= set(names):
            # As the library writes files: wide elements first, for alignment, then by name.
            return dict(
                sorted(tensors.items(), key=lambda one: (-DTYPES[one[1].view.dtype], one[0]))
            )
        return {name: tensors[name] for name in names if name in tensors}


def _names(manifest: Manifest | None) -> tuple[str, ...]:
    if manifest is None:
        return ()
    return tuple(stored.segment.tensors[0].name for stored in manifest.segments)


def _fits(manifest: Manifest, tensors: Tensors) -> bool:
    """Return whether a file has exactly these tensors, by name, dtype and shape."""
    found = {view.name: (view.dtype, view.shape) for view, _ in manifest.tensors()}
    return found == {name: (one.view.dtype, one.view.shape) for name, one in tensors.items()}
