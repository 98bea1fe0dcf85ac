"""From a stored body back to a chunk's plain bytes: the part that is fixed forever.

docs/format.md, section 3, says what the bodies are. The tag is stored with the body. Bodies are
hostile: every size is checked against the plain size, which the caller knows, before memory is
taken for it.
"""

from __future__ import annotations

import enum

import numpy as np
import zstandard

from mvc.errors import FormatError
from mvc.formats.pack import References, parse_references
from mvc.formats.plane_kinds import (
    Positions,
    find_places,
    join_tails,
    parse_list,
    parse_nibbles,
    parse_tails,
    unpack_nibbles,
)
from mvc.formats.planes import (
    ARENA_BYTES,
    PLANE_CONSTANT,
    PLANE_NIBBLES,
    PLANE_SCATTERED,
    PLANE_TAILS,
    PLANE_ZSTD,
    Bytes,
    StoredPlane,
    add_difference,
    merge_planes,
    parse_header,
)

Buffer = bytes | bytearray | memoryview

CODING_ZSTD, CODING_PLANES = 1, 2
"""The ``coding`` byte of a delta's reference block: what follows it."""
DELTA_FLOATS = 0x10
"""Added to the width in the ``words`` byte of a delta whose words are floats."""

_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"


class Encoding(enum.IntEnum):
    """The tag stored beside a body."""

    RAW = 0
    ZSTD = 1
    PLANES = 2
    DELTA = 4
    CAST = 5


class DecodeScratch:
    """Memory and the decompressor for decoding; one per worker, not thread-safe.

    With the planes that are being merged it stays below the chunk's size and 8 MiB; with those of
    a difference, below twice the chunk's size and 8 MiB.
    """

    __slots__ = ("arena", "decompressor")

    def __init__(self) -> None:
        self.arena: Bytes = np.empty(ARENA_BYTES, np.uint8)
        self.decompressor = zstandard.ZstdDecompressor()


def decode_chunk(
    encoding: int, body: memoryview, plain: memoryview, scratch: DecodeScratch
) -> None:
    """Fill ``plain``, which is as long as the chunk, from a stored body that needs no other chunk.

    The caller hashes the result: nothing here proves it right. ``plain`` is undefined after an
    error.
    """
    if encoding == Encoding.RAW:
        if body.nbytes != plain.nbytes:
            raise FormatError(f"raw body of {body.nbytes} bytes for {plain.nbytes} plain bytes")
        _fill(plain, body)
    elif encoding == Encoding.ZSTD:
        _fill(plain, _decompress(body, plain.nbytes, scratch))
    elif encoding == Encoding.PLANES:
        layout, entries, start = parse_header(body, plain.nbytes)
        planes = _decode_planes(body[start:], entries, plain.nbytes // layout.word_bytes, scratch)
        merge_planes(planes, layout, np.frombuffer(plain, np.uint8), scratch.arena)
    elif encoding in (Encoding.DELTA, Encoding.CAST):
        name = Encoding(encoding).name.lower()
        raise FormatError(f"a {name} body needs its bases")
    else:
        raise FormatError(f"unknown encoding {encoding}")


def apply_delta(body: memoryview, plain: memoryview, scratch: DecodeScratch) -> None:
    """Turn a base into the chunk that a delta body makes of it, in place.

    An error leaves it unchanged. The body begins with its reference block; the caller hashes the
    last result.
    """
    references = parse_references(body)
    if len(references.bases) != 1 or not plain.nbytes:
        raise FormatError(f"delta of {plain.nbytes} bytes has {len(references.bases)} bases")
    width = references.words & ~DELTA_FLOATS
    payload, target = body[references.size_bytes :], np.frombuffer(plain, np.uint8)
    if references.coding == CODING_ZSTD and width == 1:
        difference = np.frombuffer(_decompress(payload, target.size, scratch), np.uint8)
        add_difference([difference], target, scratch.arena)
    elif references.coding == CODING_PLANES:
        _apply_planes(payload, width, target, scratch)
    else:
        raise FormatError(f"delta of {width}-byte words has unknown coding {references.coding}")


def _apply_planes(payload: memoryview, width: int, target: Bytes, scratch: DecodeScratch) -> None:
    layout, entries, start = parse_header(payload, target.size, last_kind=PLANE_TAILS)
    if layout.word_bytes != width or layout.rotated:
        raise FormatError("planes of a delta are not those of its words")
    words, stored = target.size // width, payload[start:]
    if width == 2 and _apply_lists(stored, entries, target, scratch):  # noqa: PLR2004  two bytes
        return
    top = None
    if entries[0].kind == PLANE_SCATTERED:
        # What the top plane adds depends on no other, so it needs no pass over all words.
        top = _decode_list(stored[: entries[0].size_bytes], words, scratch)
        stored, entries = stored[entries[0].size_bytes :], entries[1:]
    planes = _decode_planes(stored, entries, words, scratch)
    # A constant plane is a broadcast one: one byte tells whether it is all zeros.
    nonzero = [None if plane.strides == (0,) and not plane[0] else plane for plane in planes]
    add_difference(nonzero if top is None else [None, *nonzero], target, scratch.arena)
    if top is not None:
        positions, values = top
        highest = target[width - 1 :: width]
        highest[positions] += values


def _apply_lists(
    stored: memoryview, entries: tuple[StoredPlane, ...], target: Bytes, scratch: DecodeScratch
) -> bool:
    """Add what changes few words of two bytes, without a pass over all; False if it is not that."""
    lists: list[tuple[int, memoryview]] = []
    for weight, entry in zip((256, 1), entries, strict=True):
        part, stored = stored[: entry.size_bytes], stored[entry.size_bytes :]
        if entry.kind == PLANE_SCATTERED:
            lists.append((weight, part))
        elif entry.kind != PLANE_CONSTANT or part[0]:
            return False
    words = target.view(np.uint16)
    decoded = [(weight, *_decode_list(part, words.size, scratch)) for weight, part in lists]
    for weight, positions, values in decoded:
        words[positions] += values.view(np.int8).astype(np.uint16) * np.uint16(weight)
    return True


def parse_cast(body: memoryview) -> References:
    """Return what a cast body refers to; ``words`` is the kind of the rounding."""
    references = parse_references(body)
    if references.coding or len(body) != references.size_bytes:
        raise FormatError("cast has more than its references")
    return references


def _fill(plain: memoryview, source: Buffer) -> None:
    # np.copyto releases the GIL, assigning to a memoryview does not.
    if plain.nbytes:
        np.copyto(np.frombuffer(plain, np.uint8), np.frombuffer(source, np.uint8))


def _decode_planes(
    stored: memoryview, entries: tuple[StoredPlane, ...], words: int, scratch: DecodeScratch
) -> list[Bytes]:
    planes = []
    for entry in entries:
        planes.append(_decode_plane(entry.kind, stored[: entry.size_bytes], words, scratch))
        stored = stored[entry.size_bytes :]
    return planes


def _decode_plane(kind: int, stored: memoryview, words: int, scratch: DecodeScratch) -> Bytes:
    if kind == PLANE_ZSTD:
        return np.frombuffer(_decompress(stored, words, scratch), np.uint8)
    if kind == PLANE_NIBBLES:
        base, positions, values, frame = parse_nibbles(stored, words)
        packed = np.frombuffer(_decompress(frame, -(-words // 2), scratch), np.uint8)
        plane = np.empty(words, np.uint8)
        unpack_nibbles(packed, base, positions, values, plane)
        return plane
    if kind == PLANE_TAILS:
        return _decode_tails(stored, words, scratch)
    if kind == PLANE_SCATTERED:
        plane = np.zeros(words, np.uint8)
        positions, values = _decode_list(stored, words, scratch)
        plane[positions] = values
        return plane
    plane = np.frombuffer(stored, np.uint8)
    return np.broadcast_to(plane, words) if kind == PLANE_CONSTANT else plane


def _decode_tails(stored: memoryview, words: int, scratch: DecodeScratch) -> Bytes:
    frame, stored = parse_tails(stored)
    packed = np.frombuffer(_decompress(frame, -(-words // 2), scratch), np.uint8)
    positions, values = _decode_list(stored, words, scratch)
    plane = np.empty(words, np.uint8)
    join_tails(packed, plane)
    plane[positions] += values
    return plane


def _decode_list(stored: memoryview, words: int, scratch: DecodeScratch) -> tuple[Positions, Bytes]:
    count, *frames = parse_list(stored, words)
    gaps, values = (np.frombuffer(_decompress(f, count, scratch), np.uint8) for f in frames)
    return find_places(gaps, words), values


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
