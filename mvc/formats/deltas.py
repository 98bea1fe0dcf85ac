"""Encoding a chunk as its difference from another one, if that is smaller.

A sample tells whether it is: the same places of the chunk and of its base, encoded both ways by the
compressors that would encode the whole. If the sample is clear, only the better way is tried; if
not, both, and the smaller result is kept. A difference must win by a margin, because a reader pays
for it with the base.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from mvc.formats.decoding import CODING_PLANES, CODING_ZSTD, DELTA_FLOATS, Buffer, Encoding
from mvc.formats.encoding import (
    EncodedChunk,
    EncodeScratch,
    copy_sample,
    encode_chunk,
    encode_nibbles,
    encode_plane,
    join_planes,
)
from mvc.formats.pack import References, encode_references
from mvc.formats.plane_kinds import (
    SMALLEST,
    WORDS_PER_EXCEPTION,
    count_tails,
    encode_list,
    encode_tails,
    list_nonzero,
    split_tails,
)
from mvc.formats.planes import PLANE_SCATTERED, PLANE_TAILS, Bytes, PlaneLayout

if TYPE_CHECKING:
    from mvc.dtypes import DType
    from mvc.formats.encoding import StoredParts
    from mvc.ids import ChunkId

MIN_DELTA_BYTES = 16 << 10
"""Shorter chunks are never stored as differences: a second read would cost more than they hold."""

_WORTHWHILE = 0.97
"""A difference is kept if it takes at most this share of the ordinary encoding."""
_DOUBT = 0.05
"""A sample that is further from the line than this is believed."""
_WORTHWHILE_PLANE = 0.9
"""A plane that would take more stays raw, which costs nothing to undo."""
_MOST_SCATTERED, _MOST_TAILS = 0.1, 0.06
"""Up to this share of a plane is listed; beyond it zstd is smaller, or faster to undo."""
_DIGIT_SAMPLE_BYTES = 16 << 10
ESTIMATE_BYTES = 64 << 10
"""How much of a chunk an estimate looks at, at most."""
_SAMPLE_PIECES = 16


def encode_delta(
    plain: memoryview,
    base: memoryview,
    base_id: ChunkId,
    dtype: DType | None,
    scratch: EncodeScratch,
    ordinary_share: float | None = None,
) -> EncodedChunk:
    """Encode a chunk as its difference from ``base``, or by itself if that takes no more.

    Chunks that differ in length, are below ``MIN_DELTA_BYTES``, opaque, or of a dtype that packs
    several elements into a block are never stored as differences. The result is valid until the
    next use of ``scratch``. ``ordinary_share`` is the share of such a chunk that its ordinary
    encoding takes, if that and a gain by the difference are known: then no sample is taken.
    """
    width = _find_width(plain, base, dtype)
    if dtype is None or not width:
        return encode_chunk(plain, dtype, scratch)
    if ordinary_share is not None:
        delta = _encode(plain, base, base_id, dtype, scratch)
        if delta.size_bytes <= (_WORTHWHILE - _DOUBT) * ordinary_share * plain.nbytes:
            return delta
    delta_bytes, ordinary_bytes = estimate_delta(plain, base, dtype, scratch)
    if delta_bytes > (_WORTHWHILE + _DOUBT) * ordinary_bytes:
        return encode_chunk(plain, dtype, scratch)
    # Near the line a sample cannot tell, so both are encoded and the real sizes compared.
    is_clear = delta_bytes < (_WORTHWHILE - _DOUBT) * ordinary_bytes
    expected_bytes = ordinary_bytes * plain.nbytes // min(plain.nbytes, ESTIMATE_BYTES)
    ordinary = None if is_clear else encode_chunk(plain, dtype, scratch)
    delta = _encode(plain, base, base_id, dtype, scratch)
    if ordinary is None and delta.size_bytes > (_WORTHWHILE - _DOUBT) * expected_bytes:
        ordinary = encode_chunk(plain, dtype, scratch)
    if ordinary is None or delta.size_bytes <= _WORTHWHILE * ordinary.size_bytes:
        return delta
    return ordinary


def estimate_delta(
    plain: memoryview, base: memoryview, dtype: DType | None, scratch: EncodeScratch
) -> tuple[int, int]:
    """Return the bytes that a sample takes as a difference (0: no difference at all) and without.

    The reference block is not counted. Two equal numbers mean that no difference can be taken.
    """
    width = _find_width(plain, base, dtype)
    if not width:
        return plain.nbytes, plain.nbytes
    minuend = _take_sample(np.frombuffer(plain, np.uint8))
    subtrahend = _take_sample(np.frombuffer(base, np.uint8))
    ordinary_bytes = encode_chunk(minuend.data, dtype, scratch).size_bytes
    if np.array_equal(minuend, subtrahend):
        return 0, ordinary_bytes
    _, parts = _encode_difference(minuend, subtrahend, width, scratch)
    return sum(len(part) for part in parts), ordinary_bytes


def _find_width(plain: memoryview, base: memoryview, dtype: DType | None) -> int:
    """Return the bytes of a word, or 0 if no difference should be taken."""
    if dtype is None or dtype.block_elements > 1 or plain.nbytes < MIN_DELTA_BYTES:
        return 0
    fits = plain.nbytes == base.nbytes and plain.nbytes % dtype.word_bytes == 0
    return dtype.word_bytes if fits else 0


def _take_sample(data: Bytes) -> Bytes:
    if data.size <= ESTIMATE_BYTES:
        return data
    sample = np.empty(ESTIMATE_BYTES, np.uint8)
    copy_sample(data, sample, _SAMPLE_PIECES)
    return sample


def _encode(
    plain: memoryview, base: memoryview, base_id: ChunkId, dtype: DType, scratch: EncodeScratch
) -> EncodedChunk:
    minuend, subtrahend = np.frombuffer(plain, np.uint8), np.frombuffer(base, np.uint8)
    coding, parts = _encode_difference(minuend, subtrahend, dtype.word_bytes, scratch)
    words = dtype.word_bytes | (DELTA_FLOATS if dtype.is_float else 0)
    block = encode_references(References((base_id,), words, coding))
    return EncodedChunk(Encoding.DELTA, (block, *parts), (base_id,))


def _encode_difference(
    plain: Bytes, base: Bytes, width: int, scratch: EncodeScratch
) -> tuple[int, tuple[Buffer, ...]]:
    planes = scratch.split_difference(plain, base, width)
    if width == 1:
        return CODING_ZSTD, (scratch.entropy.compress(planes[0].data),)
    stored = [_encode_digits(plane, scratch) for plane in planes]
    return CODING_PLANES, join_planes(PlaneLayout(width, rotated=False), stored)


def _encode_digits(plane: Bytes, scratch: EncodeScratch) -> StoredParts:
    """Encode one plane of a difference; overwrites it."""
    sample = plane
    if plane.size > _DIGIT_SAMPLE_BYTES:
        sample = scratch.take_sample(plane, _DIGIT_SAMPLE_BYTES)
    tails = count_tails(sample)
    encoded: StoredParts | None = None  # also if a list would be empty or too long
    if np.count_nonzero(sample) <= _MOST_SCATTERED * sample.size:
        listed = list_nonzero(plane, scratch.arena)
        if listed is not None:
            encoded = PLANE_SCATTERED, _compress_list(listed, scratch)
    elif tails <= sample.size // WORDS_PER_EXCEPTION and sample.min() != sample.max():
        encoded = encode_nibbles(plane, SMALLEST, scratch)
    elif tails <= _MOST_TAILS * sample.size:
        split = split_tails(plane, scratch.arena)
        if split is not None:
            frame = scratch.entropy.compress(split[0].data)
            encoded = PLANE_TAILS, encode_tails(frame, _compress_list(split[1], scratch))
    return encoded or encode_plane(plane, scratch, narrow=False, worthwhile=_WORTHWHILE_PLANE)


def _compress_list(listed: tuple[Bytes, Bytes], scratch: EncodeScratch) -> tuple[bytes, ...]:
    gaps, values = (scratch.entropy.compress(data.data) for data in listed)
    return encode_list(listed[0].size, gaps, values)
