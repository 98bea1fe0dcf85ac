"""From a stored body back to a chunk's plain bytes: the part that is fixed for ever.

A body is one of

* raw: the plain bytes;
* zstd: exactly one zstd frame, with its content size, without dictionary or checksum;
* planes: the header of ``mvc.formats.planes``, then the planes behind one another. A plane of w
  words is raw (w bytes), constant (1 byte), one zstd frame of w bytes as above, or packed as
  ``mvc.formats.nibbles`` says.

The tag is stored beside the body; 4 and 5 are promised to encodings that refer to another chunk.
Bodies are hostile: every size is checked against the plain size, which the caller knows, before
memory is taken for it.
"""

from __future__ import annotations

import enum

import numpy as np
import zstandard

from mvc.errors import FormatError, UnsupportedError
from mvc.formats.nibbles import parse_packed, unpack_nibbles
from mvc.formats.planes import (
    ARENA_BYTES,
    PLANE_CONSTANT,
    PLANE_NIBBLES,
    PLANE_ZSTD,
    Bytes,
    merge_planes,
    parse_header,
)

Buffer = bytes | bytearray | memoryview

_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"


class Encoding(enum.IntEnum):
    """The tag stored beside a body."""

    RAW = 0
    ZSTD = 1
    PLANES = 2
    DELTA = 4
    CAST = 5


class DecodeScratch:
    """Memory and the decompressor for ``decode_chunk``; one per worker, not thread-safe.

    With the planes that are being merged it stays below the chunk's size and 8 MiB.
    """

    __slots__ = ("arena", "decompressor")

    def __init__(self) -> None:
        self.arena: Bytes = np.empty(ARENA_BYTES, np.uint8)
        self.decompressor = zstandard.ZstdDecompressor()


def decode_chunk(
    encoding: int, body: memoryview, plain: memoryview, scratch: DecodeScratch
) -> None:
    """Fill ``plain`` from a stored body. The caller hashes it: nothing here proves it right.

    Args:
        encoding: the stored tag.
        body: the stored bytes, trusted in nothing.
        plain: where the chunk goes; its length is the chunk's.
        scratch: reused memory.

    Raises:
        FormatError: the body is not one of exactly ``len(plain)`` bytes; ``plain`` is then
            undefined.
        UnsupportedError: an encoding that only a newer mvc reads.
    """
    if encoding == Encoding.RAW:
        if body.nbytes != plain.nbytes:
            raise FormatError(f"raw body of {body.nbytes} bytes for {plain.nbytes} plain bytes")
        _fill(plain, body)
    elif encoding == Encoding.ZSTD:
        _fill(plain, _decompress(body, plain.nbytes, scratch))
    elif encoding == Encoding.PLANES:
        _decode_planes(body, plain, scratch)
    elif encoding in (Encoding.DELTA, Encoding.CAST):
        name = Encoding(encoding).name.lower()
        raise UnsupportedError(f"encoding {name} needs a newer mvc", hint="update mvc")
    else:
        raise FormatError(f"unknown encoding {encoding}")


def _fill(plain: memoryview, source: Buffer) -> None:
    # np.copyto releases the GIL, assigning to a memoryview does not.
    if plain.nbytes:
        np.copyto(np.frombuffer(plain, np.uint8), np.frombuffer(source, np.uint8))


def _decode_planes(body: memoryview, plain: memoryview, scratch: DecodeScratch) -> None:
    layout, entries, start = parse_header(body, plain.nbytes)
    words = plain.nbytes // layout.word_bytes
    planes = []
    for entry in entries:
        stored = body[start : start + entry.size_bytes]
        planes.append(_decode_plane(entry.kind, stored, words, scratch))
        start += entry.size_bytes
    merge_planes(planes, layout, np.frombuffer(plain, np.uint8), scratch.arena)


def _decode_plane(kind: int, stored: memoryview, words: int, scratch: DecodeScratch) -> Bytes:
    if kind == PLANE_ZSTD:
        return np.frombuffer(_decompress(stored, words, scratch), np.uint8)
    if kind == PLANE_NIBBLES:
        base, positions, values, frame = parse_packed(stored, words)
        packed = np.frombuffer(_decompress(frame, -(-words // 2), scratch), np.uint8)
        plane = np.empty(words, np.uint8)
        unpack_nibbles(packed, base, positions, values, plane)
        return plane
    plane = np.frombuffer(stored, np.uint8)
    return np.broadcast_to(plane, words) if kind == PLANE_CONSTANT else plane


def _decompress(frame: memoryview, size_bytes: int, scratch: DecodeScratch) -> bytes:
    """Decode exactly one zstd frame of exactly ``size_bytes``.

    zstandard allocates what the frame header claims, so the claim is checked before.
    """
    try:
        claim = zstandard.get_frame_parameters(frame)
        if (
            frame[:4] != _ZSTD_MAGIC
            or claim.content_size != size_bytes
            or claim.dict_id
            or claim.has_checksum
        ):
            raise FormatError(f"zstd frame is not a plain frame of {size_bytes} bytes")
        plain = scratch.decompressor.decompress(frame, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise FormatError(f"zstd frame cannot be decoded: {error}") from error
    if len(plain) != size_bytes:
        raise FormatError(f"zstd frame decodes to {len(plain)} of {size_bytes} bytes")
    return plain
