"""Encoding a chunk by itself, with the help of no other.

* A chunk that repeats one word (zeros, ones, fresh optimizer state) is stored as that word.
* The bytes of floats are cut into rotated planes (``mvc.formats.planes``). The exponent plane
  comes near its order-0 entropy, which is all there is to gain on weights; the others are noise
  and stay raw. A sample of each plane tells which it is.
* For everything else each candidate encodes a sample spread over the chunk, and the best one
  encodes the chunk. What saves less than 4 % is stored raw: a raw chunk costs nothing to read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from mvc.formats.compressing import (
    CHUNK_SAMPLE_BYTES,
    WORTHWHILE,
    EncodedChunk,
    EncodeScratch,
    encode_plane,
    join_planes,
)
from mvc.formats.decoding import Encoding
from mvc.formats.planes import (
    PLANE_CONSTANT,
    WORD_SIZES,
    Bytes,
    PlaneLayout,
    StoredPlane,
    encode_header,
)

if TYPE_CHECKING:
    from mvc.dtypes import DType

MIN_ENCODE_BYTES = 64
"""Shorter chunks stay raw: no header would pay."""

_TEXT_HANDICAP = 1.03  # it is several times slower both ways


@dataclass(frozen=True, slots=True)
class _Plan:
    """One way to encode: as planes where ``layout`` is set, else as one zstd frame."""

    layout: PlaneLayout | None = None
    text: bool = False


_TEXT, _ENTROPY = _Plan(text=True), _Plan()
_PLANES = {width: _Plan(PlaneLayout(width, rotated=False)) for width in WORD_SIZES}
_ROTATED = {width: _Plan(PlaneLayout(width, rotated=True)) for width in WORD_SIZES}


def encode_chunk(plain: memoryview, dtype: DType | None, scratch: EncodeScratch) -> EncodedChunk:
    """Encode a chunk in the smallest of the ways that suit its type; never longer than raw.

    Args:
        plain: the chunk, contiguous.
        dtype: what its words are, or None for opaque bytes. A guide only: bytes that are not
            whole words of it are encoded as opaque.
        scratch: reused memory; the result is valid until its next use.

    Returns:
        The tag and the body. They depend on the bytes, the dtype and the version of zstd only.
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
    """Return the plan that does best on a sample, or None where none is worthwhile."""
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
