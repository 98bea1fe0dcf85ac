"""What all encodings are made with: the compressors, reused memory, and the coding of one plane.

Two zstd settings are used. The *entropy* setting finds next to no matches and goes straight to
Huffman coding: on planes and quantised weights it is several times faster than the lowest stock
level, and smaller. Its target_length must stay 0; any other value silently turns Huffman coding
off. The *text* setting is a stock level, for headers, pickles and files mvc does not understand.

The scratch objects hold everything that can be reused, since touching fresh memory costs more than
hashing it. They are for one thread at a time; all heavy steps release the GIL.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import zstandard

from mvc.formats.differences import split_difference
from mvc.formats.nibbles import find_base, pack_nibbles
from mvc.formats.planes import (
    ARENA_BYTES,
    PLANE_CONSTANT,
    PLANE_NIBBLES,
    PLANE_RAW,
    PLANE_ZSTD,
    WORD_SIZES,
    Bytes,
    PlaneLayout,
    StoredPlane,
    encode_header,
    split_planes,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mvc.formats.decoding import Buffer, Encoding
    from mvc.ids import ChunkId

WORTHWHILE = 0.96
"""A frame larger than this share of its plain bytes is not stored."""
PLANE_SAMPLE_BYTES = 16 << 10
CHUNK_SAMPLE_BYTES = 2 * PLANE_SAMPLE_BYTES
"""Of chunks: so many that their planes are not sampled again."""

_SAMPLE_PIECES = 8


@dataclass(frozen=True, slots=True)
class EncodedChunk:
    """A chunk as it is stored.

    Attributes:
        encoding: the tag of the body.
        parts: the body in pieces, to be written one behind the other. They may be views into the
            scratch or into the plain bytes, valid until the scratch is used again.
        bases: chunks that the body refers to; their ids are in it.
    """

    encoding: Encoding
    parts: tuple[Buffer, ...]
    bases: tuple[ChunkId, ...] = ()

    @property
    def size_bytes(self) -> int:
        """Length of the body."""
        return sum(len(part) for part in self.parts)


class EncodeScratch:
    """Memory and compressors for ``encode_chunk``; one per worker, not thread-safe.

    Grows to the largest chunk seen, and with the frames that a result holds stays below twice that
    chunk and 16 MiB; below three times that chunk where differences are taken.
    """

    __slots__ = ("_difference", "_planes", "_sample", "_text", "arena", "entropy")

    def __init__(self) -> None:
        parameters = zstandard.ZstdCompressionParameters(
            strategy=zstandard.STRATEGY_FAST,
            min_match=7,
            hash_log=6,
            chain_log=6,
            search_log=1,
            target_length=0,
            window_log=17,
            write_content_size=True,
        )
        self.entropy = zstandard.ZstdCompressor(compression_params=parameters)
        self._text: zstandard.ZstdCompressor | None = None
        self.arena: Bytes = np.empty(ARENA_BYTES, np.uint8)
        self._planes: Bytes = np.empty(0, np.uint8)
        self._difference: Bytes = np.empty(0, np.uint8)
        self._sample: Bytes = np.empty(CHUNK_SAMPLE_BYTES, np.uint8)

    @property
    def text(self) -> zstandard.ZstdCompressor:
        """The compressor for text and unknown bytes."""
        if self._text is None:
            self._text = zstandard.ZstdCompressor(level=3)
        return self._text

    def split(self, plain: Bytes, layout: PlaneLayout) -> list[Bytes]:
        """Return the planes of ``plain``, valid until the next call."""
        if self._planes.size < plain.size:
            self._planes = np.empty(plain.size, np.uint8)
        planes = list(self._planes[: plain.size].reshape(layout.word_bytes, -1))
        split_planes(plain, layout, planes, self.arena)
        return planes

    def split_difference(self, plain: Bytes, base: Bytes, word_bytes: int) -> list[Bytes]:
        """Return the planes of ``plain - base``, valid until the next call (not of ``split``)."""
        if self._difference.size < plain.size:
            self._difference = np.empty(plain.size, np.uint8)
        planes = list(self._difference[: plain.size].reshape(word_bytes, -1))
        split_difference(plain, base, word_bytes, planes, self.arena)
        return planes

    def take_sample(self, data: Bytes, size_bytes: int) -> Bytes:
        """Return ``size_bytes`` taken from all over ``data``, valid until the next call."""
        sample = self._sample[:size_bytes]
        copy_sample(data, sample, _SAMPLE_PIECES)
        return sample


def copy_sample(data: Bytes, sample: Bytes, pieces: int) -> None:
    """Fill ``sample`` with pieces of equal length from all over ``data``.

    They begin at multiples of the largest word, at places that follow the golden ratio: even, yet
    in step with no row length of a tensor.
    """
    rows = sample.reshape(pieces, -1)
    span = data.size - rows.shape[1]
    for number, row in enumerate(rows):
        start = (number * 40503 % 65536 * span >> 16) & ~(max(WORD_SIZES) - 1)
        row[:] = data[start : start + row.size]


def encode_plane(
    plane: Bytes, scratch: EncodeScratch, *, narrow: bool, worthwhile: float = WORTHWHILE
) -> tuple[int, tuple[Buffer, ...]]:
    """Encode one plane in the smallest of the ways that ``mvc.formats.planes`` knows.

    Args:
        plane: its bytes; may be overwritten.
        scratch: reused memory, where ``plane`` may lie.
        narrow: whether it is worth looking if its values are few and close together.
        worthwhile: a frame larger than this share of the plane is not stored.

    Returns:
        The kind, and the body in pieces.
    """
    if plane[0] == plane[plane.size // 2] == plane[-1] and plane.min() == plane.max():
        return PLANE_CONSTANT, (plane[:1].tobytes(),)
    if plane.size > 2 * PLANE_SAMPLE_BYTES:
        sample = scratch.take_sample(plane, PLANE_SAMPLE_BYTES)
        base = find_base(sample) if narrow else None
        packed = None if base is None else pack_nibbles(plane, base, scratch.arena)
        if packed is not None:
            return PLANE_NIBBLES, (packed[0], scratch.entropy.compress(packed[1].data))
        if len(scratch.entropy.compress(sample.data)) > worthwhile * sample.size:
            return PLANE_RAW, (plane.data,)
    frame = scratch.entropy.compress(plane.data)
    if len(frame) > worthwhile * plane.size:
        return PLANE_RAW, (plane.data,)
    return PLANE_ZSTD, (frame,)


def join_planes(
    layout: PlaneLayout, stored: Sequence[tuple[int, tuple[Buffer, ...]]]
) -> tuple[Buffer, ...]:
    """Return the pieces of a body: the header, then those of all planes."""
    entries = [StoredPlane(kind, sum(map(len, parts))) for kind, parts in stored]
    return encode_header(layout, entries), *(part for _, parts in stored for part in parts)
