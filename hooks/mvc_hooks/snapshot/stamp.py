"""A count at the end of shared memory: how often something else began to be written there (no torch, for the writer).

A process that holds memory for longer than it was lent compares the count with what it was then.
"""

from __future__ import annotations

import os
import struct

_COUNT = struct.Struct("=Q")
STAMP_BYTES = _COUNT.size


def read_stamp(descriptor: int, size_bytes: int) -> int:
    """Return the count in memory of that length; OSError if there is none."""
    stamp = os.pread(descriptor, STAMP_BYTES, size_bytes - STAMP_BYTES)
    if len(stamp) < STAMP_BYTES:
        raise OSError("the memory ends before its stamp")
    return int(_COUNT.unpack(stamp)[0])


def renew_stamp(memory: memoryview) -> None:
    """Say that what is in the memory is about to be overwritten."""
    at = len(memory) - STAMP_BYTES
    (count,) = _COUNT.unpack_from(memory, at)
    _COUNT.pack_into(memory, at, count + 1)
