"""MDS, the shards of mosaicml-streaming: the number of samples, then where each begins and the last ends.

All are little-endian uint32. The index beside the shards holds no samples itself.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from mvc.errors import FormatError

if TYPE_CHECKING:
    from mvc.shards.records.stream import Stream

_WORD = 4


def count_samples(stream: Stream) -> int:
    """Return how many samples an MDS shard has, if it is as long as it says."""
    count = _read_word(stream)
    first = _read_word(stream)
    stream.skip(_WORD * max(count - 1, 0))
    last = _read_word(stream) if count else first
    if first < stream.position or last < first:
        raise FormatError("it is not an MDS shard")
    stream.skip(last - stream.position)
    if not stream.at_end():
        raise FormatError(f"it is not an MDS shard, or has more than {last:,} bytes")
    return count


def _read_word(stream: Stream) -> int:
    return int.from_bytes(stream.read(_WORD), "little")


def count_in_index(stream: Stream) -> int:
    """Return 0 for the index of MDS shards: the samples are elsewhere."""
    found = json.loads(stream.read(stream.size_bytes or 0))
    if not isinstance(found, dict) or not isinstance(found.get("shards"), list):
        raise FormatError("it is not the index of MDS shards")
    return 0
