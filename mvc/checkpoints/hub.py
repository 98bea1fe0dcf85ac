"""Sharded models of the Hub: the index file that says which shard holds which tensor."""

from __future__ import annotations

import msgspec

from mvc.checkpoints.limits import check_limit
from mvc.errors import FormatError

MAX_INDEX_BYTES = 64 * 2**20
"""An index line takes some 100 bytes per tensor: room for 600,000."""

MAX_SHARD_NAME_BYTES = 255
"""Longest file name of the usual file systems."""


class _Index(msgspec.Struct):
    weight_map: dict[str, str]


_INDEX = msgspec.json.Decoder(_Index)


def find_shards(index_bytes: bytes) -> tuple[str, ...]:
    """Return the file names of the shards beside an index file, sorted.

    Raises:
        FormatError: it is not an index, or a shard is not a plain file name in the same folder.
    """
    check_limit("index has", len(index_bytes), "bytes", MAX_INDEX_BYTES)
    try:
        index = _INDEX.decode(index_bytes)
    except (ValueError, msgspec.MsgspecError, RecursionError) as error:
        raise FormatError(f"shard index is not valid: {error}") from error
    shards = tuple(sorted(set(index.weight_map.values())))
    for shard in shards:
        if not _is_plain_name(shard):
            raise FormatError(f"shard index names {shard[:80]!r}, which is not a plain file name")
    return shards


def _is_plain_name(name: str) -> bool:
    try:
        size_bytes = len(name.encode())
    except UnicodeEncodeError:
        return False
    if name in ("", ".", "..") or size_bytes > MAX_SHARD_NAME_BYTES:
        return False
    return name.isprintable() and not any(letter in name for letter in "/\\")
