"""Fingerprints of a matrix by which it is recognised with its rows or columns in another order.

Each element's bits are mixed to 64 bits. A row's *ordered* fingerprint weighs them by column, its
*unordered* one does not, and likewise for columns. Sums are modulo 2^64, so they are made block by
block; two different rows agree by chance once in 2^64.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from mvc.mixing import STEP, mix_words

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    Words = NDArray[np.uint64]


@dataclass(frozen=True, slots=True, eq=False)
class Fingerprints:
    """The fingerprints of all rows and columns, ordered and unordered."""

    rows: Words
    columns: Words
    loose_rows: Words
    loose_columns: Words


def take_fingerprints(blocks: Iterable[NDArray[np.unsignedinteger]], columns: int) -> Fingerprints:
    """Return the fingerprints of a matrix that comes in blocks of whole rows of words."""
    weights = _mix(np.arange(columns, dtype=np.uint64)) | np.uint64(1)
    by_column, loose_columns = np.zeros((2, columns), np.uint64)
    rows, loose_rows, seen = [np.zeros(0, np.uint64)], [np.zeros(0, np.uint64)], 0
    for block in blocks:
        mixed = _mix(block.astype(np.uint64))
        heights = np.arange(seen, seen + len(block), dtype=np.uint64)
        rows.append((mixed * weights).sum(axis=1))
        loose_rows.append(mixed.sum(axis=1))
        by_column += (mixed * (_mix(heights) | np.uint64(1))[:, None]).sum(axis=0)
        loose_columns += mixed.sum(axis=0)
        seen += len(block)
    return Fingerprints(np.concatenate(rows), by_column, np.concatenate(loose_rows), loose_columns)


def find_rearrangement(old: Fingerprints, new: Fingerprints) -> str | None:
    """Describe how the new matrix is the old one in another order, or return None."""
    if _equal(old.rows, new.columns) and _equal(old.columns, new.rows):
        return "transposed"
    if len(old.rows) != len(new.rows):
        return None
    if _equal(np.sort(old.rows), np.sort(new.rows)):
        return "rows permuted" if len(old.columns) > 1 else "elements permuted"
    if _equal(np.sort(old.columns), np.sort(new.columns)):
        return "columns permuted"
    loose = ((old.loose_rows, new.loose_rows), (old.loose_columns, new.loose_columns))
    if all(_equal(np.sort(one), np.sort(other)) for one, other in loose):
        return "rows and columns permuted"
    return "elements in another order" if old.loose_rows.sum() == new.loose_rows.sum() else None


def _equal(first: Words, second: Words) -> bool:
    return np.array_equal(first, second)


def _mix(words: Words) -> Words:
    return mix_words(words * STEP + STEP)
