"""Content ids: what a run of bytes or a tensor *is*.

A chunk's id is the BLAKE3-256 of its plain bytes, whatever their encoding on disk. A tensor's id
is the BLAKE3-256 over its dtype, shape and chunk ids, so equal ids mean equal bytes read the same
way. Git objects keep Git's own ids (40 hex digits), typed here as ``GitId``.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, NewType

from blake3 import blake3

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

ID_BYTES = 32
"""Length of a BLAKE3-256 digest."""

ChunkId = NewType("ChunkId", bytes)
PackId = NewType("PackId", str)
"""64 lower-case hex digits: the BLAKE3-256 of the whole pack file, as ``b3sum`` prints it."""
TensorId = NewType("TensorId", str)
GitId = NewType("GitId", str)
"""40 lower-case hex digits of a Git object."""

_GIT_ID_DIGITS = 40
_HEX = frozenset("0123456789abcdef")


def hash_chunk(plain: bytes | bytearray | memoryview) -> ChunkId:
    """Return the id of a chunk's plain bytes (releases the GIL on large buffers)."""
    return ChunkId(blake3(plain).digest())


def hash_tensor(dtype: str, shape: Sequence[int], chunks: Iterable[ChunkId]) -> TensorId:
    """Return the identity of a C-contiguous tensor.

    The hashed bytes are ``dtype SP d0,d1,.. LF`` in ASCII followed by the raw chunk ids.
    """
    head = f"{dtype} {','.join(map(str, shape))}\n".encode("ascii")
    return TensorId(blake3(head + b"".join(chunks)).hexdigest())


def hash_git_object(kind: str, data: bytes) -> GitId:
    """Return the id that Git gives to an object of these bytes (SHA-1 over a header and them)."""
    digest = hashlib.sha1(b"%s %d\0" % (kind.encode(), len(data)), usedforsecurity=False)
    digest.update(data)
    return GitId(digest.hexdigest())


def split_ids(data: bytes) -> list[ChunkId]:
    """Return the ids that lie one after another in some bytes."""
    return [ChunkId(data[at : at + ID_BYTES]) for at in range(0, len(data), ID_BYTES)]


def is_git_id(text: str) -> bool:
    """Return whether ``text`` is the whole id of a Git object."""
    return is_hex_id(text, _GIT_ID_DIGITS)


def is_hex_id(text: str, digits: int) -> bool:
    """Return whether ``text`` is exactly ``digits`` lower-case hex digits."""
    return len(text) == digits and _HEX.issuperset(text)
