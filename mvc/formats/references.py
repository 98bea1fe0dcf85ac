r"""The reference block: which other chunks a stored body needs to be decoded.

The bodies of the encodings from ``FIRST_REFERRING`` on begin with it, so that a pack can be
indexed, copied and swept by code that cannot decode what is in it:

    u8     number of bases n, 1 to ``MAX_BASES``
    u8     what the words are, as the encoding says
    u8     how the rest of the body is coded, as the encoding says
    u8     zero
    u32    CRC-32 of the other bytes of the block
    32 n   chunk ids of the bases

A base is named by its content, never by its place: it may move to another pack or be encoded
again. So the length of a chain of references is not written down; a reader follows at most
``MAX_DEPTH`` of them, and writers stay far below.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from zlib import crc32

from mvc.errors import FormatError
from mvc.ids import ID_BYTES, ChunkId

FIRST_REFERRING = 4
"""Tags of encodings from here on have a body that begins with a reference block."""
MAX_BASES = 2
MAX_DEPTH = 8
"""References between a chunk and bytes that need none, at most."""

_HEAD = struct.Struct("<BBBBI")
HEAD_BYTES = _HEAD.size
MAX_BLOCK_BYTES = HEAD_BYTES + MAX_BASES * ID_BYTES


@dataclass(frozen=True, slots=True)
class References:
    """What a body refers to.

    Attributes:
        bases: ids of the chunks it needs.
        words: what its words are; the encoding gives the number its meaning.
        coding: how the rest of the body is coded, as the encoding defines.
    """

    bases: tuple[ChunkId, ...]
    words: int
    coding: int

    @property
    def size_bytes(self) -> int:
        """Length of the block."""
        return HEAD_BYTES + ID_BYTES * len(self.bases)


def is_referring(encoding: int) -> bool:
    """Return whether bodies with this tag begin with a reference block."""
    return encoding >= FIRST_REFERRING


def encode_references(references: References) -> bytes:
    """Return the bytes of a block."""
    ids = b"".join(references.bases)
    front = bytes((len(references.bases), references.words, references.coding, 0))
    return _HEAD.pack(*front, crc32(ids, crc32(front))) + ids


def parse_references(body: bytes | memoryview) -> References:
    """Return the block at the start of a body; its first ``MAX_BLOCK_BYTES`` are enough.

    Raises:
        FormatError: no block, or a damaged one.
    """
    if len(body) < HEAD_BYTES:
        raise FormatError("body is shorter than its references")
    count, words, coding, zero, crc = _HEAD.unpack_from(body)
    end = HEAD_BYTES + ID_BYTES * count
    if not 0 < count <= MAX_BASES or zero or len(body) < end:
        raise FormatError("body has references that cannot be")
    ids = bytes(body[HEAD_BYTES:end])
    if crc32(ids, crc32(bytes(body[:4]))) != crc:
        raise FormatError("the references of a body are damaged")
    starts = range(0, len(ids), ID_BYTES)
    bases = tuple(ChunkId(ids[start : start + ID_BYTES]) for start in starts)
    return References(bases, words, coding)
