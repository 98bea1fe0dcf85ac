"""Tensors whose elements only moved: transposed, or rows or columns permuted.

A tensor is read only if its figures allow it: the other shape turned around, or magnitudes that add
up alike on both sides though elements differ.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from mvc.dtypes import get_dtype
from mvc.mixing import STEP, mix_words

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from mvc.comparison.pairs import TensorChange
    from mvc.workspace.context import Context
    from mvc.workspace.tensors import ModelTensor

    Words = NDArray[np.uint64]

REARRANGED = b"rearranged"
"""The kind of kept answers; their key is that of the statistics."""
_BLOCK_BYTES = 2**20
_MAX_WIDTH = 8  # bytes of an element that is one word
_NEARLY = 1e-9  # what the order of adding may change in a sum


def find_rearranged(context: Context | None, changes: Iterable[TensorChange]) -> dict[str, str]:
    """Return name → "rows permuted" and the like, of open models; what is found is kept."""
    kept = None if context is None else context.kept
    wanted = [change for change in changes if change.status == "modified" and _may_be(change)]
    keys = [change.key for change in wanted if change.key is not None]
    known = {} if kept is None else kept.get_many(REARRANGED, keys)
    rearranged: dict[str, str] = {}
    fresh: dict[bytes, bytes] = {}
    for change in wanted:
        old, new = change.pair.old, change.pair.new
        assert old is not None
        assert new is not None
        if change.key in known:
            how = known[change.key].decode("utf-8", "replace")
        else:
            how = find_rearrangement(_take(old), _take(new)) or ""
            fresh |= {} if change.key is None else {change.key: how.encode()}
        if how:
            rearranged[change.name] = how
    if kept is not None:
        kept.put_many(REARRANGED, fresh)
    return rearranged


def _may_be(change: TensorChange) -> bool:
    old, new = change.pair.old, change.pair.new
    if old is None or new is None:
        return False
    dtype = get_dtype(old.view.dtype)
    if (
        old.view.dtype != new.view.dtype
        or dtype.block_elements > 1
        or dtype.block_bytes > _MAX_WIDTH
    ):
        return False
    shapes, found = (old.view.shape, new.view.shape), change.statistics
    if found is None:
        return len(shapes[0]) == 2 and shapes[0] == shapes[1][::-1] and old.elements > 1  # noqa: PLR2004
    return (
        shapes[0] == shapes[1]
        and found.changed > 1
        and (found.old.zeros, found.old.nan, found.old.inf, found.old.largest)
        == (found.new.zeros, found.new.nan, found.new.inf, found.new.largest)
        and math.isclose(found.old.sum_sq, found.new.sum_sq, rel_tol=_NEARLY)
        and (
            found.left_out > 0
            or math.isclose(found.sum_abs_old, found.sum_abs_new, rel_tol=_NEARLY)
        )
    )


def _take(tensor: ModelTensor) -> Fingerprints:
    shape = tensor.view.shape
    rows = shape[0] if shape else 1
    columns = tensor.elements // max(rows, 1)
    return take_fingerprints(_blocks(tensor, rows, columns), columns)


def _blocks(tensor: ModelTensor, rows: int, columns: int) -> Iterator[NDArray[np.unsignedinteger]]:
    width, read = get_dtype(tensor.view.dtype).block_bytes, tensor.open()
    step = max(1, _BLOCK_BYTES // (columns * width))
    for first in range(0, rows, step):
        count = min(step, rows - first)
        raw = read(first * columns * width, count * columns * width)
        yield raw.view(f"u{width}").reshape(count, columns)


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
