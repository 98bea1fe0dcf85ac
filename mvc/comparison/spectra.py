"""Spectra of the differences of matrices: streamed in two passes, on all threads, and kept by ids."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from mvc.chunkstore.parallel import for_each
from mvc.dtypes import get_dtype, size_in_bytes
from mvc.formats.manifest import DEFAULT_CHUNK_BYTES
from mvc.numbers.elements import is_readable, read_values, widen
from mvc.numbers.spectral import Spectrum, find_spectrum
from mvc.progress import announce, report

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from mvc.comparison.pairs import TensorChange
    from mvc.workspace.context import Context
    from mvc.workspace.tensors import ModelTensor, Reader

SPECTRUM = b"spectrum"
"""The kind of kept spectra; their key is that of the statistics."""
_PASSES = 2
_MOST_COLUMNS = 2**16
"""Of more than two dimensions: stacked experts are no kernel, and a sketch of them takes gigabytes."""


def add_spectra(
    context: Context | None, changes: Sequence[TensorChange], *, threads: int
) -> list[TensorChange]:
    """Return changes with the spectrum of each matrix whose values differ; their models are open."""
    added = list(changes)
    wanted = [place for place, change in enumerate(changes) if _has_spectrum(change)]
    kept = None if context is None else context.kept
    keys = [key for place in wanted if (key := changes[place].key) is not None]
    stored = {} if kept is None else kept.get_many(SPECTRUM, keys)
    for place in wanted:
        with suppress(KeyError, msgspec.MsgspecError):  # not kept, or not in this version
            value = msgspec.msgpack.decode(stored[changes[place].key or b""], type=Spectrum)
            added[place] = replace(changes[place], spectrum=value)
    left = [place for place in wanted if added[place].spectrum is None]

    def compute(place: int, _: None) -> int:
        change = changes[place]
        rows, columns = _matrix_shape(change)
        old, new = (_Rows(side, columns) for side in _sides(change))
        spectrum = find_spectrum(
            lambda first, count: new.read(first, count) - old.read(first, count), rows, columns
        )
        added[place] = replace(change, spectrum=spectrum)
        return _PASSES * _count_bytes(change)

    announce(_PASSES * sum(_count_bytes(changes[place]) for place in left))
    for_each(left, lambda: None, compute, threads=threads, progress=report)
    if kept is not None:
        fresh = {added[place].key: added[place].spectrum for place in left}
        named = {key: msgspec.msgpack.encode(one) for key, one in fresh.items() if key is not None}
        kept.put_many(SPECTRUM, named)
    return added


def _matrix_shape(change: TensorChange) -> tuple[int, int]:
    """Return rows and columns: the kernel of a convolution has one row for each output, as it is applied."""
    first, *others = change.compared_shape or (0,)
    return first, math.prod(others)


def _has_spectrum(change: TensorChange) -> bool:
    """Return whether a difference is a matrix of known values that is not zero."""
    (rows, columns), found = _matrix_shape(change), change.statistics
    if found is None or min(rows, columns) < 2:  # noqa: PLR2004
        return False
    if len(change.compared_shape or ()) > 2 and columns > _MOST_COLUMNS:  # noqa: PLR2004
        return False
    dtypes = [get_dtype(side.view.dtype) for side in _sides(change)]
    # A complex matrix would need other arithmetic; rows of packed types must be whole blocks.
    return (
        bool(found.sum_sq_difference)
        and all(map(is_readable, dtypes))
        and not any("complex" in dtype.numpy_name or dtype.name == "C32" for dtype in dtypes)
        and not any(columns % dtype.block_elements for dtype in dtypes)
    )


def _sides(change: TensorChange) -> tuple[ModelTensor, ModelTensor]:
    assert change.pair.old is not None
    assert change.pair.new is not None
    return change.pair.old, change.pair.new


def _count_bytes(change: TensorChange) -> int:
    shape = change.compared_shape or ()
    return sum(size_in_bytes(get_dtype(side.view.dtype), shape) for side in _sides(change))


class _Rows:
    """Rows of a tensor as float64; of a stored one, each chunk is decoded once in a pass."""

    def __init__(self, tensor: ModelTensor, columns: int) -> None:
        self._dtype, self._columns = get_dtype(tensor.view.dtype), columns
        self._row_bytes = size_in_bytes(self._dtype, (columns,))
        self._chunk_bytes = tensor.chunk_bytes or DEFAULT_CHUNK_BYTES
        self._end = tensor.size_bytes
        self._read: Reader = tensor.open()
        self._window, self._begin = self._read(0, 0), 0

    def read(self, first: int, count: int) -> NDArray[np.float64]:
        begin, end = first * self._row_bytes, (first + count) * self._row_bytes
        if begin < self._begin:  # the second pass
            self._window, self._begin = self._window[:0], begin
        known = self._begin + self._window.size
        if end > known:
            stop = min(-(-end // self._chunk_bytes) * self._chunk_bytes, self._end)
            more = self._read(known, stop - known)
            self._window = np.concatenate([self._window[begin - self._begin :], more])
            self._begin = begin
        raw = self._window[begin - self._begin : end - self._begin]
        values = read_values(raw, self._dtype)
        assert values is not None  # see ``_has_spectrum``
        return widen(values).reshape(count, self._columns)
