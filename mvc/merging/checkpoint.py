"""The merge of one checkpoint by its tensors: planned from manifests, then written as a new one.

A tensor that is taken from a side keeps its chunks and is never read; one that a method computes goes
through the ``Cutter`` like any new file. What a zip archive says of its tensors' bytes is written again
(``zip_frame``).
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import TYPE_CHECKING, TypeAlias

from mvc.checkpoints.safetensors import (
    DTYPES,
    LENGTH_BYTES,
    MAX_HEADER_BYTES,
    METADATA_KEY,
    encode_header,
    read_metadata,
)
from mvc.checkpoints.zip_frame import GapBytes, ZipFrame, join_crc32
from mvc.errors import FormatError, UnsupportedError
from mvc.formats.layout import FileLayout, Segment, single_tensor
from mvc.formats.manifest import Manifest, StoredSegment, cut_run
from mvc.formats.manifest_lines import encode_manifest
from mvc.merging.decided import decide_tensors, find_shape, read_tensors
from mvc.merging.table import Outcome, decide
from mvc.sources import ByteSource, JoinedSource, MemorySource

if TYPE_CHECKING:
    from mvc.history.values import TreeEntry
    from mvc.ids import ChunkId
    from mvc.merging.decided import DecidedTensors, Fit, Resolve, Tensors
    from mvc.workspace.context import Context
    from mvc.workspace.files import Cutter
    from mvc.workspace.tensors import ModelTensor

    Metadata: TypeAlias = Mapping[str, str] | None

_READ_BYTES = 2**22


@dataclass(frozen=True, slots=True)
class CheckpointMerge:
    """The planned merge of one checkpoint."""

    path: str
    # the tensors of the result by name, in order; ours where there is a conflict
    tensors: Mapping[str, ModelTensor]
    # what begins the file, or None if all around the tensors is as in ``like``
    header: bytes | None
    like: Manifest  # the manifest that the result takes after
    conflicts: tuple[tuple[str, str], ...]  # (tensor, what happened) of those that nothing decides
    # how many tensors came ``ours``, ``theirs``, from ``base``, or were ``merged``
    taken: Mapping[str, int]
    frame: ZipFrame | None = None  # the zip archive around the tensors of ``like``, or None
    # chunks of a tensor → the CRC-32 of its bytes, in zip archives
    crc32s: Mapping[tuple[ChunkId, ...], int] = field(default_factory=dict)

    @property
    def fresh_bytes(self) -> int:
        """Bytes of the tensors that have to be computed."""
        return sum(one.size_bytes for one in self._fresh().values())

    def _fresh(self) -> dict[str, ModelTensor]:
        cut = self.like.chunk_bytes
        return {
            name: tensor
            for name, tensor in self.tensors.items()
            if not _is_cut_at(tensor, cut) or (self.frame and tensor.chunks not in self.crc32s)
        }

    def write(self, open_cutter: Callable[[int], Cutter]) -> bytes:
        """Store what is new, and return the manifest of the result.

        ``open_cutter`` returns what cuts files at multiples of a length; it is asked if anything is
        new.
        """
        like, fresh = self.like, self._fresh()
        summed = {name: _Summed(one.source) for name, one in fresh.items() if self.frame}
        chunks = {name: tensor.chunks or () for name, tensor in self.tensors.items()}
        gaps = like.gaps
        if fresh or self.header is not None:
            new = {summed.get(name, one.source): one.segment for name, one in fresh.items()}
            stored = _store_new(self.path, self.header or b"", new, open_cutter(like.chunk_bytes))
            gaps = gaps if self.header is None else stored.gaps
            chunks |= {
                name: segment.chunks for name, segment in zip(fresh, stored.segments, strict=True)
            }
        if self.header is None:
            segments = tuple(
                replace(old, chunks=chunks[old.segment.tensors[0].name]) for old in like.segments
            )
            if self.frame is not None and segments != like.segments:
                known = {**self.crc32s} | {
                    chunks[name]: one.crc32() for name, one in summed.items()
                }
                data = self.frame.renew([known[segment.chunks] for segment in segments])
                gaps = _store_new(self.path, data, {}, open_cutter(like.chunk_bytes)).gaps
            return encode_manifest(replace(like, gaps=gaps, segments=segments))
        start = len(self.header)
        placed = []
        for name, tensor in self.tensors.items():
            segment = single_tensor(name, tensor.view.dtype, tensor.view.shape, start)
            placed.append(StoredSegment(segment, chunks[name]))
            start = segment.end
        return encode_manifest(Manifest(like.format, start, like.chunk_bytes, gaps, tuple(placed)))


class _Summed(ByteSource):
    """The bytes of a new tensor, whose CRC-32 is known once they were read."""

    def __init__(self, source: ByteSource) -> None:
        self._source = source
        self._pieces: dict[int, tuple[int, int]] = {}  # offset → CRC-32, length

    @property
    def size_bytes(self) -> int:
        """Bytes of the tensor."""
        return self._source.size_bytes

    def read_into(self, offset: int, buffer: memoryview) -> None:
        """Fill the buffer from that offset of the tensor."""
        self._source.read_into(offset, buffer)
        self._pieces[offset] = zlib.crc32(buffer), len(buffer)

    def crc32(self) -> int:
        """Return that of the tensor; what was not read yet is read now."""
        found = position = 0
        while position < self.size_bytes:
            if position not in self._pieces:
                piece = bytearray(min(_READ_BYTES, self.size_bytes - position))
                self.read_into(position, memoryview(piece))
            crc32, size = self._pieces[position]
            found, position = join_crc32(found, crc32, size), position + size
        return found


def _store_new(
    path: str, header: bytes, new: Mapping[ByteSource, Segment], cutter: Cutter
) -> Manifest:
    """Store a header and the segments of some tensors as if they were a file; return its manifest."""
    starts = [0, *accumulate((one.size_bytes for one in new.values()), initial=len(header))]
    placed = tuple(
        replace(one, start=start) for one, start in zip(new.values(), starts[1:-1], strict=True)
    )
    parts = [
        (source, start)
        for source, start in zip([MemorySource(header), *new], starts[:-1], strict=True)
        if source.size_bytes
    ]
    joined = JoinedSource([one for one, _ in parts], [*(start for _, start in parts), starts[-1]])
    return cutter.store(joined, FileLayout("safetensors", starts[-1], placed), path)


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
    fit: Fit | None = None,
) -> CheckpointMerge | str:
    """Plan the merge of one checkpoint, or return the reason why its tensors cannot be merged."""
    formats = list(dict.fromkeys(context.manifests.read(side.blob).format for side in sides))
    if len(formats) > 1:
        return f"it is {' here and '.join(formats)} there"
    versions = [base, *sides]
    tensors = [
        {} if version is None else read_tensors(context, {path: version}) for version in versions
    ]
    places = dict.fromkeys((name for version in tensors for name in version), path)
    decided = decide_tensors(tensors, places, lambda _, name: find_strategy(name), resolve, fit)[
        path
    ]
    strategy, must_fit = find_strategy(METADATA_KEY), fit is not None
    return place_tensors(context, path, versions, decided, strategy, must_fit=must_fit)


def place_tensors(
    context: Context,
    path: str,
    versions: Sequence[TreeEntry | None],
    decided: DecidedTensors,
    strategy: str | None,
    *,
    must_fit: bool = False,
) -> CheckpointMerge | str:
    """Plan a file of decided tensors, or return the reason why that is impossible.

    Of its ``versions``, the base first, one that lacks the file has no say in its layout. ``strategy`` decides
    about what both changed around the tensors. With ``must_fit``, UnsupportedError if the file of no side can
    hold a tensor of this shape.
    """
    base, *sides = (
        None if version is None else context.manifests.read(version.blob) for version in versions
    )
    layout = Around(context, base, [side for side in sides if side is not None])
    result, conflicts, taken = decided.result, decided.conflicts, decided.taken
    if not layout.is_safetensors:
        like, frame, crc32s, fault = layout.take_frame(strategy)
        if like.format in ZIPS and frame is None:
            return f"what is around its tensors cannot be made anew ({like.format})"
        misfit = find_misfit(like, result)
        if misfit is not None and must_fit:
            raise UnsupportedError(
                f"tensor {misfit!r} of {path} cannot get new rows: its file is not safetensors"
            )
        if misfit is not None:
            return f"{misfit!r} does not fit into the file of one side as it is ({like.format})"
        conflicts += [] if fault is None else [(METADATA_KEY, fault)]
        return CheckpointMerge(path, result, None, like, tuple(conflicts), taken, frame, crc32s)
    metadata, keys = layout.merge_metadata(strategy)
    conflicts += [(f"{METADATA_KEY}.{key}", Outcome.MODIFY_MODIFY.value) for key in keys]
    ordered, header, like = layout.place(result, metadata)
    return CheckpointMerge(path, ordered, header, like, tuple(conflicts), taken)


ZIPS = ("torch", "npz", "dcp")
"""Formats made of zip archives; several archives in one file, as DCP writes, cannot be rewritten."""
_MAX_FRAME_BYTES = 2**28
"""Held in memory of each side: directory, pickle, entries that are no tensors."""


class Around:
    """The places of the result's tensors, and the bytes around them."""

    def __init__(self, context: Context, base: Manifest | None, sides: Sequence[Manifest]) -> None:
        self._context = context
        self._base = base
        self._sides = sides
        self._all = [base, *sides]
        self._read: dict[tuple[ChunkId, ...], Metadata] = {}
        self.is_safetensors = all(side.format == "safetensors" for side in sides)

    def take_frame(
        self, strategy: str | None
    ) -> tuple[Manifest, ZipFrame | None, dict[tuple[ChunkId, ...], int], str | None]:
        """Return what the result takes after: a file, the archive that it is, all known CRC-32.

        The last is what both changed of it, if nothing decides that.
        """
        frames = [None if one is None else self._read_frame(one) for one in self._all]
        base, *versions = (
            None if one is None else one.gaps if frame is None else frame.version
            for one, frame in zip(self._all, frames, strict=True)
        )
        side, fault = decide(base, versions).side, None
        if side is None:
            side = {"theirs": len(versions) - 1, "base": -1}.get(strategy or "", 0)
            fault = _describe_frames(frames[1:]) if strategy is None else None
        like = self._all[side + 1] or self._sides[0]
        crc32s = {
            stored.chunks: crc32
            for one, frame in zip(self._all, frames, strict=True)
            if one is not None and frame is not None
            for stored, crc32 in zip(one.segments, frame.crc32s(), strict=True)
        }
        return like, frames[side + 1], crc32s, fault

    def _read_frame(self, manifest: Manifest) -> ZipFrame | None:
        """Return the zip archive around the tensors of a version, or None if it is none."""
        if manifest.format not in ZIPS or manifest.gap_bytes > _MAX_FRAME_BYTES:
            return None
        gaps = GapBytes([*manifest.gap_ranges()], self._read_gaps(manifest), manifest.size_bytes)
        try:
            return ZipFrame(gaps, [stored.segment for stored in manifest.segments])
        except FormatError:
            return None

    def _read_gaps(self, manifest: Manifest) -> bytearray:
        data = bytearray(manifest.gap_bytes)
        runs = cut_run(manifest.gap_bytes, manifest.gaps, manifest.chunk_bytes)
        for offset, chunk, size in runs:
            self._context.store.read_into(chunk, memoryview(data)[offset : offset + size])
        return data

    def merge_metadata(self, strategy: str | None) -> tuple[Metadata, list[str]]:
        """Return the metadata of the result, and the keys that both sides changed."""
        if len({one.gaps for one in self._sides}) == 1:
            return None, []
        base, *sides = map(self._read_metadata, self._all)
        result: dict[str, str] = {}
        conflicts: list[str] = []
        for key in dict.fromkeys(key for side in (*sides, base or {}) for key in side or {}):
            versions = [(side or {}).get(key) for side in (base, *sides)]
            side = decide(versions[0], versions[1:]).side
            place = side if side is not None else {"theirs": -1, "base": -2}.get(strategy or "", 0)
            if side is None and strategy is None:
                conflicts.append(key)
            value = versions[0] if place == -2 else versions[1:][place]  # noqa: PLR2004  as above
            if value is not None:
                result[key] = value
        return result if any(side is not None for side in sides) else None, conflicts

    def _read_metadata(self, manifest: Manifest | None) -> Metadata:
        if manifest is None or manifest.format != "safetensors":
            return None
        if manifest.gap_bytes > MAX_HEADER_BYTES + LENGTH_BYTES:
            return None
        if manifest.gaps in self._read:
            return self._read[manifest.gaps]
        data = self._read_gaps(manifest)
        metadata = self._read[manifest.gaps] = read_metadata(bytes(data[LENGTH_BYTES:]))
        return metadata

    def place(self, tensors: Tensors, metadata: Metadata) -> tuple[Tensors, bytes | None, Manifest]:
        """Return the tensors in order, the header if it is a new one, and what it takes after."""
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


def _describe_frames(frames: Sequence[ZipFrame | None]) -> str:
    """Describe which entries around the tensors several sides changed."""
    found = [dict(frame.version) for frame in frames if frame is not None]
    names = dict.fromkeys(name for one in found for name in one)
    differ = [name for name in names if len({one.get(name) for one in found}) > 1]
    entries = f" ({', '.join(differ[:3])})" if differ else ""
    return Outcome.MODIFY_MODIFY.value + entries


def find_misfit(manifest: Manifest, tensors: Tensors) -> str | None:
    """Return a tensor that cannot be put into a file in place of what is there, or None."""
    places = {
        stored.segment.tensors[0].name: find_shape(stored.segment) for stored in manifest.segments
    }
    found = {name: find_shape(tensor.segment) for name, tensor in tensors.items()}
    names = dict.fromkeys([*places, *found])
    return next((name for name in names if places.get(name) != found.get(name)), None)


def _names(manifest: Manifest | None) -> tuple[str, ...]:
    if manifest is None:
        return ()
    return tuple(stored.segment.tensors[0].name for stored in manifest.segments)


def _fits(manifest: Manifest, tensors: Tensors) -> bool:
    """Return whether a file has exactly these tensors, by name, dtype and shape."""
    found = {view.name: (view.dtype, view.shape) for view, _ in manifest.tensors()}
    return found == {
        name: (tensor.view.dtype, tensor.view.shape) for name, tensor in tensors.items()
    }
