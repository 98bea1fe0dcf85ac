"""What a rank has stored of a sharded state: ids and figures, small enough to travel."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from mvc.chunkstore.values import WriteCounts  # noqa: TC001  msgspec reads the annotations
from mvc.errors import FormatError
from mvc.numbers.figures import Health  # noqa: TC001  as above

ID_BYTES = 32
MAX_BYTES = 2**30


@dataclass(frozen=True, slots=True)
class StoredShare:
    """The chunks that a rank has stored, durable in its repository.

    Attributes:
        rank: which rank.
        digest: of the form of the state, see ``Share.digest``.
        chunk_bytes: where it cut the tensors.
        ids: of its chunks, 32 bytes each, in the order of the arrays and their chunks; before them,
            from the rank that has the headers, those of the gap streams, file by file.
        health: of what it measured of every file.
        files: path → content of the blob of every file that it alone has: the bytes of a small
            file, or the manifest of a larger one.
        counts: what it wrote.
    """

    rank: int
    digest: bytes
    chunk_bytes: int
    ids: bytes
    health: tuple[Health, ...]
    files: dict[str, bytes]
    counts: WriteCounts

    def encode(self) -> bytes:
        """Return it as bytes."""
        return _encode(self)


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(StoredShare).decode


def parse_stored_share(data: bytes) -> StoredShare:
    """Return what ``StoredShare.encode`` encoded; FormatError if it is not that."""
    if len(data) > MAX_BYTES:
        raise FormatError(f"the stored share of a rank has {len(data):,} bytes, over the limit")
    try:
        share = _decode(data)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise FormatError(f"not the stored share of a rank: {error}") from None
    if len(share.ids) % ID_BYTES:
        raise FormatError(f"the stored share of rank {share.rank} ends within an id")
    return share
