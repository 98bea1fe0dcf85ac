"""What a rank has stored of a sharded state: ids and figures, small enough to travel."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from mvc.chunkstore.values import WriteCounts  # noqa: TC001  msgspec reads the annotations
from mvc.errors import FormatError
from mvc.formats.manifest import is_manifest
from mvc.formats.manifest_lines import parse_manifest
from mvc.ids import PackId, is_hex_id
from mvc.numbers.figures import Health  # noqa: TC001  as above

if TYPE_CHECKING:
    from mvc.chunkstore.copies import Ids

ID_BYTES = 32
MAX_BYTES = 2**30


@dataclass(frozen=True, slots=True)
class StoredShare:
    """The chunks that a rank has stored, durable in its repository, and on the store if it sent them.

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
        own_health: path → health of those of ``files`` that were measured.
        packs: what has its chunks on the store, with lengths, if its repository is not that of rank 0.
        checked: ids of the chunks of other ranks that it has checked, 32 bytes each, in order; zeros
            for one that it could not check.
        check_round: in which round of the check; -1 if it has checked nothing.
    """

    rank: int
    digest: bytes
    chunk_bytes: int
    ids: bytes
    health: tuple[Health, ...]
    files: dict[str, bytes]
    counts: WriteCounts
    own_health: dict[str, Health] = field(default_factory=dict)
    packs: dict[PackId, int] = field(default_factory=dict)
    checked: bytes = b""
    check_round: int = -1

    def encode(self) -> bytes:
        """Return it as bytes."""
        return _encode(self)


def list_ids(share: StoredShare) -> Ids:
    """Return the ids of all chunks of a share, those of its own files too, each once."""
    manifests = (parse_manifest(data) for data in share.files.values() if is_manifest(data))
    ids = b"".join([share.ids, *(one for found in manifests for one in found.chunk_ids())])
    return np.unique(np.frombuffer(ids, "S32"))


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
    if len(share.ids) % ID_BYTES or len(share.checked) % ID_BYTES:
        raise FormatError(f"the stored share of rank {share.rank} ends within an id")
    if not all(is_hex_id(one, 2 * ID_BYTES) and size > 0 for one, size in share.packs.items()):
        raise FormatError(f"the stored share of rank {share.rank} names what is not a pack")
    return share
