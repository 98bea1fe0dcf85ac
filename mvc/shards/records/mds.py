"""MDS, the shards of mosaicml-streaming: the number of samples, then where each begins and the last ends.

All are little-endian uint32. Between them and the first sample is the configuration, as JSON. The
index beside the shards holds no samples itself.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from mvc.errors import FormatError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from mvc.shards.records.stream import Stream

_WORD = 4
_MAX_CONFIG_BYTES = 1 << 20
_LIST_OF_SHARDS = re.compile(rb'"shards"\s*:\s*\[')


def read_mds_head(stream: Stream) -> tuple[NDArray[np.int64], bytes]:
    """Return where each sample begins, and the last one ends, and the configuration.

    Raises:
        FormatError: it is not an MDS shard, or not as long as it says.
    """
    count = int.from_bytes(stream.read(_WORD), "little")
    offsets = np.frombuffer(stream.read(_WORD * (count + 1)), "<u4").astype(np.int64)
    config_bytes = int(offsets[0]) - stream.position
    if not 0 <= config_bytes <= _MAX_CONFIG_BYTES or np.any(np.diff(offsets) < 0):
        raise FormatError("it is not an MDS shard: its offsets are impossible")
    config = stream.read(config_bytes)
    stream.skip(int(offsets[-1]) - stream.position)
    if not stream.at_end():
        raise FormatError(f"it is not an MDS shard, or has more than {offsets[-1]:,} bytes")
    return offsets, config


def count_samples(stream: Stream) -> int:
    """Return how many samples an MDS shard has."""
    return len(read_mds_head(stream)[0]) - 1


def count_in_index(stream: Stream) -> int:
    """Return 0 for the index of MDS shards: the samples are elsewhere."""
    # Not parsed: many small values take twenty times the memory of their text.
    text = stream.read(stream.size_bytes or 0).strip()
    is_whole = text[:1] == b"{" and text.count(b"{") == text.count(b"}")
    if not (is_whole and _LIST_OF_SHARDS.search(text)):
        raise FormatError("it is not the index of MDS shards")
    return 0
