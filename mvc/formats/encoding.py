"""Chunks → stored bodies, each chunk by itself. ``mvc.formats.decoding`` is the way back.

An encoding is never part of a chunk's identity: any body that decodes to the right bytes is right.
How bodies are decoded is fixed for ever; what is made here is a policy that a later mvc may change.

* A chunk that repeats one word (zeros, ones, fresh optimizer state) is stored as that word.
* The bytes of floats are cut into rotated planes (``mvc.formats.planes``). The exponent plane
  comes near its order-0 entropy, which is all there is to gain on weights; the others are noise
  and stay raw. A sample of each plane tells which it is.
* For everything else each candidate encodes a sample spread over the chunk, and the best one
  encodes the chunk. What saves less than 4 % is stored raw: a raw chunk costs nothing to read.

Two zstd settings are used. The *entropy* setting finds next to no matches and goes straight to
Huffman coding: on planes and quantised weights it is several times faster than the lowest stock
level, and smaller. Its target_length must stay 0; any other value silently turns Huffman coding
off. The *text* setting is a stock level, for headers, pickles and files mvc does not understand.

All heavy steps release the GIL.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import zstandard

from mvc.formats.decoding import Buffer, Encoding
from mvc.formats.pack import References, encode_references
from mvc.formats.plane_kinds import find_base, pack_nibbles
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
    split_difference,
    split_planes,
)

if TYPE_CHECKING:
    from mvc.dtypes import DType
    from mvc.ids import ChunkId

    StoredParts = tuple[int, tuple[Buffer, ...]]
    """The kind of a plane, and its body in pieces."""

WORTHWHILE = 0.96
"""A frame larger than this share of its plain bytes is not stored."""
MIN_ENCODE_BYTES = 64
"""Shorter chunks stay raw: no header would pay."""
PLANE_SAMPLE_BYTES = 16 << 10
CHUNK_SAMPLE_BYTES = 2 * PLANE_SAMPLE_BYTES
"""Of chunks: from this many on, their planes are not sampled again."""

_SAMPLE_PIECES = 8
_TEXT_HANDICAP = 1.03  # it is several times slower both ways


@dataclass(frozen=True, slots=True)
class EncodedChunk:
    """A chunk as it is stored: the tag, and the body in pieces, to be written one after another.

    The parts may be views into the scratch or into the plain bytes, valid until the scratch is used
    again. The ids of the bases are in the body.
    """

    encoding: int
    parts: tuple[Buffer, ...]
    bases: tuple[ChunkId, ...] = ()

    @property
    def size_bytes(self) -> int:
        """Length of the body."""
        return sum(len(part) for part in self.parts)


class EncodeScratch:
    """Memory and compressors that are reused, for one thread: fresh memory costs more than hashing.

    Grows to the largest chunk seen, and with the frames that a result holds stays below twice that
    chunk and 16 MiB; below three times that chunk if differences are taken.
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


@dataclass(frozen=True, slots=True)
class _Plan:
    """One way to encode: as planes if ``layout`` is set, else as one zstd frame."""

    layout: PlaneLayout | None = None
    text: bool = False


_TEXT, _ENTROPY = _Plan(text=True), _Plan()
_PLANES = {width: _Plan(PlaneLayout(width, rotated=False)) for width in WORD_SIZES}
_ROTATED = {width: _Plan(PlaneLayout(width, rotated=True)) for width in WORD_SIZES}


def encode_chunk(plain: memoryview, dtype: DType | None, scratch: EncodeScratch) -> EncodedChunk:
    """Encode a chunk in the smallest of the ways that suit its type; never longer than raw.

    The dtype is only a guide: bytes that are not whole words of it are encoded as opaque. The
    result is valid until the next use of ``scratch`` and depends on bytes, dtype and version of
    zstd only.
    """
    raw = EncodedChunk(Encoding.RAW, (plain,) if plain.nbytes else ())
    if plain.nbytes < MIN_ENCODE_BYTES:
        return raw
    data = np.frombuffer(plain, np.uint8)
    encoded = _encode_repeated(data)
    if encoded is None:
        plan = _choose_plan(data, dtype, scratch)
        if plan is None:
            return raw
        encoded = _encode(data, plan, scratch)
    return encoded if encoded.size_bytes <= WORTHWHILE * data.size else raw


def encode_cast(kind: int, masters: tuple[ChunkId, ...]) -> EncodedChunk:
    """Encode a chunk that is the rounding of others, one after another; the caller has compared."""
    return EncodedChunk(Encoding.CAST, (encode_references(References(masters, kind, 0)),), masters)


def _encode_repeated(data: Bytes) -> EncodedChunk | None:
    """Encode a chunk that is one word over and over, or return None."""
    head = data[:8].tobytes()
    tail = data.size % 8
    words = data[: data.size - tail].view("<u8")
    if not words[0] == words[words.size // 2] == words[-1]:
        return None
    width = next((n for n in WORD_SIZES if head == head[:n] * (8 // n)), 8)
    if data.size % width or data[data.size - tail :].tobytes() != head[:tail]:
        return None
    if words.min() != words.max():
        return None
    entries = [StoredPlane(PLANE_CONSTANT, 1)] * width
    header = encode_header(PlaneLayout(width, rotated=False), entries)
    return EncodedChunk(Encoding.PLANES, (header, head[:width][::-1]))


def _choose_plan(data: Bytes, dtype: DType | None, scratch: EncodeScratch) -> _Plan | None:
    """Return the plan that does best on a sample, or None if none is worthwhile."""
    plans = _list_plans(data.size, dtype)
    if len(plans) == 1:
        return plans[0]
    if data.size > CHUNK_SAMPLE_BYTES:
        data = scratch.take_sample(data, CHUNK_SAMPLE_BYTES)
    costs = [
        _encode(data, plan, scratch).size_bytes * (_TEXT_HANDICAP if plan.text else 1)
        for plan in plans
    ]
    best = min(range(len(plans)), key=costs.__getitem__)
    return plans[best] if costs[best] <= WORTHWHILE * data.size else None


def _list_plans(size_bytes: int, dtype: DType | None) -> tuple[_Plan, ...]:
    if dtype is None or size_bytes % dtype.word_bytes:
        # Unknown files often hold weights, at whatever alignment: plain planes show it.
        return (_TEXT, _ENTROPY, *(_PLANES[n] for n in (2, 4) if size_bytes % n == 0))
    if dtype.word_bytes == 1:
        return (_TEXT, _ENTROPY)
    if dtype.is_float:
        return (_ROTATED[dtype.word_bytes],)
    return (_TEXT, _ENTROPY, _PLANES[dtype.word_bytes])


def _encode(data: Bytes, plan: _Plan, scratch: EncodeScratch) -> EncodedChunk:
    if plan.layout is None:
        compressor = scratch.text if plan.text else scratch.entropy
        return EncodedChunk(Encoding.ZSTD, (compressor.compress(data.data),))
    planes = scratch.split(data, plan.layout)
    stored = [
        encode_plane(plane, scratch, narrow=plan.layout.rotated and place == 0)
        for place, plane in enumerate(planes)
    ]
    return EncodedChunk(Encoding.PLANES, join_planes(plan.layout, stored))


def encode_plane(
    plane: Bytes, scratch: EncodeScratch, *, narrow: bool, worthwhile: float = WORTHWHILE
) -> StoredParts:
    """Encode one plane in the smallest way; may overwrite it.

    ``narrow``: whether to check if its values are few and close together. A frame larger than the
    share ``worthwhile`` of the plane is not stored.
    """
    if plane[0] == plane[plane.size // 2] == plane[-1] and plane.min() == plane.max():
        return PLANE_CONSTANT, (plane[:1].tobytes(),)
    if plane.size > 2 * PLANE_SAMPLE_BYTES:
        sample = scratch.take_sample(plane, PLANE_SAMPLE_BYTES)
        base = find_base(sample) if narrow else None
        packed = None if base is None else encode_nibbles(plane, base, scratch)
        if packed is not None:
            return packed
        if len(scratch.entropy.compress(sample.data)) > worthwhile * sample.size:
            return PLANE_RAW, (plane.data,)
    frame = scratch.entropy.compress(plane.data)
    if len(frame) > worthwhile * plane.size:
        return PLANE_RAW, (plane.data,)
    return PLANE_ZSTD, (frame,)


def encode_nibbles(plane: Bytes, base: int, scratch: EncodeScratch) -> StoredParts | None:
    """Encode a plane two values to a byte; None if too many are not among those from ``base``."""
    packed = pack_nibbles(plane, base, scratch.arena)
    if packed is None:
        return None
    return PLANE_NIBBLES, (packed[0], scratch.entropy.compress(packed[1].data))


def join_planes(layout: PlaneLayout, stored: Sequence[StoredParts]) -> tuple[Buffer, ...]:
    """Return the pieces of a body: the header, then those of all planes."""
    entries = [StoredPlane(kind, sum(map(len, parts))) for kind, parts in stored]
    return encode_header(layout, entries), *(part for _, parts in stored for part in parts)


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
