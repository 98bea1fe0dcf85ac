"""Arrays: .npy files, whose first dimension counts, and .bin files of numbers, whose type the user says."""

from __future__ import annotations

import math
import re
from difflib import get_close_matches
from typing import TYPE_CHECKING

from mvc.dtypes import DTYPES
from mvc.errors import FormatError, UsageError

if TYPE_CHECKING:
    from mvc.shards.records.stream import Stream

BIN_SUFFIX = ".bin"
_MAGIC = b"\x93NUMPY"
_MAX_HEADER_BYTES = 64 * 1024
_LONG_LENGTH = 2  # from this version on the length of the header has four bytes
# Not parsed as Python: what is not as NumPy writes it is not known.
_SHAPE = re.compile(rb"'shape': \(((?:[0-9]{1,18}(?:, |,|(?=\)))){0,64})\)")
_DTYPE = re.compile(rb"'descr': '[<>|=][a-zA-Z]([0-9]{1,9})'")


def count_rows(stream: Stream) -> int:
    """Return how many rows an array has."""
    head = stream.read(8)
    if head[:6] != _MAGIC:
        raise FormatError("it is not an .npy file")
    length = stream.read(2 if head[6] < _LONG_LENGTH else 4)
    header_bytes = int.from_bytes(length, "little")
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


def get_item_bytes(dtype: str) -> int:
    """Return the size of a number of a type with a NumPy name; UsageError if there is no such type."""
    sizes = {one.numpy_name: one.block_bytes for one in DTYPES.values() if one.numpy_name}
    if dtype not in sizes:
        similar = get_close_matches(dtype, sizes, 1)
        hint = f"did you mean {similar[0]}?" if similar else "such as uint16 or uint32"
        raise UsageError(f"{dtype!r} is not the dtype of numbers", hint=hint)
    return sizes[dtype]


def count_numbers(size_bytes: int, item_bytes: int) -> int:
    """Return how many numbers a .bin file holds; FormatError if its last one is cut off."""
    count, rest = divmod(size_bytes, item_bytes)
    if rest:
        raise FormatError(f"it has {size_bytes:,} bytes, not a multiple of {item_bytes}")
    return count
