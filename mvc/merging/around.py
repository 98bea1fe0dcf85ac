"""What is around the tensors of a merged checkpoint: the header of safetensors, or the file of one side.

A safetensors header is made anew: where the tensors are follows the side that changed it; if several
did, the order of the safetensors library. Files of other formats hold more than that, so the result has
the file of one side, with the tensors of all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from mvc.checkpoints.safetensors import (
    DTYPES,
    LENGTH_BYTES,
    MAX_HEADER_BYTES,
    encode_header,
    read_metadata,
)
from mvc.checkpoints.zip_frame import GapBytes, ZipFrame
from mvc.errors import FormatError
from mvc.formats.manifest import cut_run
from mvc.merging.decided import find_shape
from mvc.merging.table import Outcome, decide

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mvc.formats.manifest import Manifest
    from mvc.ids import ChunkId
    from mvc.merging.decided import Tensors
    from mvc.workspace.context import Context
    from mvc.workspace.tensors import ModelTensor

    Metadata: TypeAlias = Mapping[str, str] | None

ZIPS = ("torch", "npz", "dcp")
"""What is made of zip archives; several in one file, as DCP writes, cannot be made anew."""
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
        self.is_safetensors = all(one.format == "safetensors" for one in sides)

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
            return ZipFrame(gaps, [one.segment for one in manifest.segments])
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
        data = self._read_gaps(manifest)
        found = self._read[manifest.gaps] = read_metadata(bytes(data[LENGTH_BYTES:]))
        return found

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
    told = f" ({', '.join(differ[:3])})" if differ else ""
    return Outcome.MODIFY_MODIFY.value + told


def find_misfit(manifest: Manifest, tensors: Tensors) -> str | None:
    """Return a tensor that cannot be put into a file in place of what is there, or None."""
    places = {one.segment.tensors[0].name: find_shape(one.segment) for one in manifest.segments}
    found = {name: find_shape(one.segment) for name, one in tensors.items()}
    names = dict.fromkeys([*places, *found])
    return next((one for one in names if places.get(one) != found.get(one)), None)


def _names(manifest: Manifest | None) -> tuple[str, ...]:
    if manifest is None:
        return ()
    return tuple(stored.segment.tensors[0].name for stored in manifest.segments)


def _fits(manifest: Manifest, tensors: Tensors) -> bool:
    """Return whether a file has exactly these tensors, by name, dtype and shape."""
    found = {view.name: (view.dtype, view.shape) for view, _ in manifest.tensors()}
    return found == {name: (one.view.dtype, one.view.shape) for name, one in tensors.items()}
