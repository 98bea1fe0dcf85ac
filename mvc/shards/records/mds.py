"""MDS, the shards of mosaicml-streaming: the number of samples, then where each begins and the last ends.

All are little-endian uint32. Between them and the first sample is the configuration, as JSON. The
index beside the shards holds no samples itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np

from mvc.errors import FormatError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from mvc.shards.records.stream import Stream

_WORD = 4
_MAX_CONFIG_BYTES = 1 << 20


class _Index(msgspec.Struct):
    """What an index has; not made into values, which take twenty times the memory of their text."""

    shards: msgspec.Raw


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
    text = stream.read(stream.size_bytes or 0)
    try:
        shards = bytes(msgspec.json.decode(text, type=_Index).shards)
    except (msgspec.MsgspecError, RecursionError):
        shards = b""
    if not shards.startswith(b"["):
        raise FormatError("it is not the index of MDS shards")
    return 0
