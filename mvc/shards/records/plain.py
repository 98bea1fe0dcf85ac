"""JSON Lines, arrays of numbers and MDS: the number of records, from lines or a header.

*JSON Lines*: a record is a line that is not empty. *Arrays*: ``.npy`` files, whose first dimension counts, and
``.bin`` files of numbers, whose type the user says. *MDS*, the shards of mosaicml-streaming: the number
of samples, then where each begins and the last ends, all little-endian uint32, then the configuration
as JSON, then the samples. The index beside MDS shards holds no samples itself.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from mvc.dtypes import DTYPES, numpy_dtype
from mvc.errors import FormatError, UsageError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from mvc.shards.records.stream import Piece, ShardBytes

EMPTY_LINES = (b"", b"\r")

BIN_SUFFIX = ".bin"
_NPY = b"\x93NUMPY"
_MAX_HEADER_BYTES = 64 * 1024
_LONG_LENGTH = 2  # from this version on the length of the header has four bytes
# Not parsed as Python: what is not as NumPy writes it is not known.
_SHAPE = re.compile(rb"'shape': \(((?:[0-9]{1,18}(?:, |,|(?=\)))){0,64})\)")
_DTYPE = re.compile(rb"'descr': '[<>|=][a-zA-Z]([0-9]{1,9})'")

_WORD = 4
_MAX_CONFIG_BYTES = 1 << 20


def count_lines(stream: ShardBytes) -> int:
    """Return how many lines are not empty; the last one needs no end."""
    count, is_open = 0, False
    for piece in stream.pieces():
        first = piece.find(b"\n")
        if first < 0:
            is_open |= piece not in EMPTY_LINES
            continue
        last = piece.rfind(b"\n")
        count += is_open or piece[:first] not in EMPTY_LINES
        count += _count_whole(piece, first + 1, last + 1)
        is_open = piece[last + 1 :] not in EMPTY_LINES
    return count + is_open


def _count_whole(piece: Piece, start: int, end: int) -> int:
    """Return how many lines are not empty in a range that begins and ends with one."""
    # The line break before the range is there, too: it shows whether the first line is empty.
    if piece.find(b"\n\n", start - 1, end) < 0 and piece.find(b"\n\r\n", start - 1, end) < 0:
        return piece.count(b"\n", start, end)
    lines: Sequence[Piece] = piece[start:end].split(b"\n")
    return len(lines) - sum(lines.count(empty) for empty in EMPTY_LINES)


def count_npy_rows(stream: ShardBytes) -> int:
    """Return how many rows an .npy file has."""
    head = stream.read(8)
    if head[:6] != _NPY:
        raise FormatError("it is not an .npy file")
    header_bytes = int.from_bytes(stream.read(2 if head[6] < _LONG_LENGTH else 4), "little")
    if header_bytes > _MAX_HEADER_BYTES:
        raise FormatError(f"it has a header of {header_bytes:,} bytes")
    header = stream.read(header_bytes)
    shape, dtype = _SHAPE.search(header), _DTYPE.search(header)
    if shape is None or dtype is None:
        raise FormatError("its dtype or shape is not plain")
    dims = [int(text) for text in re.findall(rb"[0-9]+", shape[1])]
    if not dims:
        raise FormatError("it holds one number, not rows")
    # A letter's size is in bytes, but of texts, whose characters have four.
    item_bytes = int(dtype[1]) * (4 if b"U" in dtype[0] else 1)
    expected = stream.position + math.prod(dims) * item_bytes
    if stream.size_bytes is not None and stream.size_bytes != expected:
        raise FormatError(f"it should have {expected:,} bytes")
    return dims[0]


def parse_number_dtype(dtype: str) -> np.dtype[Any]:
    """Return the type of the numbers of a .bin file by its name; UsageError if there is no such type."""
    known = {one.numpy_name: one for one in DTYPES.values() if one.numpy_name}
    if dtype in known and (kind := numpy_dtype(known[dtype])) is not None:
        return kind
    try:
        other = np.dtype(dtype)
    except TypeError:
        other = None
    if other is None or other.kind not in "iuf":
        similar = get_close_matches(dtype, known, 1)
        hint = f"did you mean {similar[0]}?" if similar else "such as uint16 or uint32"
        raise UsageError(f"{dtype!r} is not the dtype of numbers", hint=hint)
    return other


def count_numbers(size_bytes: int, item_bytes: int) -> int:
    """Return how many numbers a .bin file holds; FormatError if its last one is cut off."""
    count, rest = divmod(size_bytes, item_bytes)
    if rest:
        raise FormatError(f"it has {size_bytes:,} bytes, not a multiple of {item_bytes}")
    return count


def read_mds_head(stream: ShardBytes) -> tuple[NDArray[np.int64], bytes]:
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


def count_mds_samples(stream: ShardBytes) -> int:
    """Return how many samples an MDS shard has."""
    return len(read_mds_head(stream)[0]) - 1


class _Index(msgspec.Struct):
    """What an index has; not made into values, which take twenty times the memory of their text."""

    shards: msgspec.Raw


def count_in_mds_index(stream: ShardBytes) -> int:
    """Return 0 for the index of MDS shards: the samples are elsewhere."""
    text = stream.read(stream.size_bytes or 0)
    try:
        shards = bytes(msgspec.json.decode(text, type=_Index).shards)
    except (msgspec.MsgspecError, RecursionError):
        shards = b""
    if not shards.startswith(b"["):
        raise FormatError("it is not the index of MDS shards")
    return 0
