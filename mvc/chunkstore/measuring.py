"""The health of chunks, measured while their bytes are at hand to be encoded.

A large chunk is measured only if it is new, so its health has to be kept. A model may have tens of
thousands of small ones: they are measured together, whether new or not, which costs less than to
keep a figure for each.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from mvc.numbers.figures import Health
from mvc.numbers.health import is_float, measure

if TYPE_CHECKING:
    from mvc.chunkstore.values import ChunkSpan
    from mvc.dtypes import DType

SMALL_BYTES = 2**19
"""Shorter chunks are measured every time."""
_CUT_BYTES = 16  # chunks are cut at multiples of this, so that no element of these types is cut


@dataclass(frozen=True, slots=True)
class BatchHealth:
    """What a batch of spans showed: all ``small`` ones, and dtype and health of new ``large`` ones."""

    small: Health
    large: Mapping[int, tuple[str, Health]]


def is_measured(dtype: DType | None, size_bytes: int) -> bool:
    """Return whether a chunk holds whole floats."""
    if dtype is None or not is_float(dtype):
        return False
    return _CUT_BYTES % dtype.block_bytes == 0 and size_bytes % dtype.block_bytes == 0


def measure_batch(
    spans: Sequence[ChunkSpan], plains: Sequence[memoryview], fresh: Collection[int]
) -> BatchHealth:
    """Measure the small spans of a batch, and those large ones that are new."""
    small: dict[DType, list[memoryview]] = {}
    large: dict[int, tuple[str, Health]] = {}
    for number, (span, plain) in enumerate(zip(spans, plains, strict=True)):
        dtype = span.dtype
        if dtype is None or not is_measured(dtype, span.size_bytes):
            continue
        if span.size_bytes < SMALL_BYTES:
            small.setdefault(dtype, []).append(plain)
        elif number in fresh:
            large[number] = dtype.name, measure_plain(plain, dtype)
    joined = (measure_plain(memoryview(b"".join(parts)), dtype) for dtype, parts in small.items())
    return BatchHealth(sum(joined, Health()), large)


def measure_plain(plain: memoryview, dtype: DType) -> Health:
    """Return the health of the plain bytes of a chunk, zeros not counted."""
    return measure(np.frombuffer(plain, np.uint8), dtype, zeros=False)
