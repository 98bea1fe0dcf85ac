"""Parquet and Arrow files: a record is a dict of plain Python values."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from torch.utils.data import get_worker_info

from mvc import FormatError, UnsupportedError
from mvc_data.readers.files import read_by_owner

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    _Taker: TypeAlias = Callable[[NDArray[np.int64]], list[Any]]

_MOST_CELLS = 1 << 20
"""Values of a table that become Python's, of 32 to 56 bytes each beside their content."""


class ParquetRows:
    """The rows of a Parquet file; whole row groups are decoded, and the last ones kept.

    Row groups that are asked for together are decoded together, into one table, because taking
    rows costs the same for one as for many. Where most of its rows will be asked for, a table of plain
    values becomes Python's at once: that costs a third of taking them batch by batch.
    """

    def __init__(self, path: str, block: int) -> None:
        pa, parquet = _import("pyarrow"), _import("pyarrow.parquet")
        self._faults = (pa.ArrowException, OSError, ValueError)
        self.path, self._keep = path, 2 * block
        self._file = _try(path, self._faults, lambda: parquet.ParquetFile(path))
        meta = self._file.metadata
        sizes = [meta.row_group(group).num_rows for group in range(meta.num_row_groups)]
        self._ends = np.cumsum(sizes, dtype=np.int64)
        self._tables: list[tuple[int, _Taker]] = []  # rows, and what takes some
        self._table_of = np.full(len(sizes), -1)
        self._begin_of = np.zeros(len(sizes), np.int64)
        self._dropped = 0

    @property
    def count(self) -> int:
        """How many rows there are."""
        return int(self._ends[-1]) if len(self._ends) else 0

    def read(self, numbers: Sequence[int]) -> list[Any]:
        """Return some rows."""
        return _try(self.path, self._faults, lambda: self._read(np.asarray(numbers, np.int64)))  # type: ignore[no-any-return]

    def close(self) -> None:
        """Close the file."""
        self._tables.clear()
        self._file.close()

    def _read(self, wanted: NDArray[np.int64]) -> list[Any]:
        groups = np.searchsorted(self._ends, wanted, "right")
        missing = groups[self._table_of[groups] < self._dropped]
        if len(missing):
            groups_to_read = np.unique(missing)
            # Threads of a worker would fight with those of the others for the same cores.
            table = self._file.read_row_groups(groups_to_read.tolist(), use_threads=False)
            sizes = np.diff(self._ends, prepend=0)[groups_to_read]
            self._table_of[groups_to_read] = self._dropped + len(self._tables)
            self._begin_of[groups_to_read] = self._ends[groups_to_read] - np.cumsum(sizes)
            self._tables.append((table.num_rows, _make_taker(table.combine_chunks())))

        def take(owner: int, places: NDArray[np.int64]) -> list[Any]:
            within = wanted[places] - self._begin_of[groups[places]]
            return self._tables[owner - self._dropped][1](within)

        rows = read_by_owner(self._table_of[groups], take)
        held = sum(size for size, _ in self._tables[1:])
        while len(self._tables) > 1 and held >= self._keep:
            self._tables.pop(0)
            self._dropped += 1
            held -= self._tables[0][0]
        return rows


class ArrowRows:
    """The rows of an Arrow file or stream, mapped into memory."""

    def __init__(self, path: str) -> None:
        pa = _import("pyarrow")
        self._faults = (pa.ArrowException, OSError, ValueError)
        self.path, self._make_array = path, pa.array
        self._map = _try(path, self._faults, lambda: pa.memory_map(path))

        def list_batches() -> list[Any]:
            if self._map.read(6) == b"ARROW1":
                file = pa.ipc.open_file(self._map)
                return [file.get_batch(number) for number in range(file.num_record_batches)]
            self._map.seek(0)
            return list(pa.ipc.open_stream(self._map))

        self._batches = _try(path, self._faults, list_batches)
        self._ends = np.cumsum([batch.num_rows for batch in self._batches], dtype=np.int64)
        self._valid: set[int] = set()

    @property
    def count(self) -> int:
        """How many rows there are."""
        return int(self._ends[-1]) if len(self._ends) else 0

    def read(self, numbers: Sequence[int]) -> list[Any]:
        """Return some rows."""
        return _try(self.path, self._faults, lambda: self._read(np.asarray(numbers, np.int64)))  # type: ignore[no-any-return]

    def close(self) -> None:
        """Close the file."""
        self._batches = []
        self._map.close()

    def _read(self, wanted: NDArray[np.int64]) -> list[Any]:
        # Batch by batch: taking from all of them together would copy the whole file.
        def take(number: int, places: NDArray[np.int64]) -> list[Any]:
            batch = self._batches[number]
            if number not in self._valid:
                # Arrow trusts offsets, and a damaged one would end the process.
                batch.validate(full=True)
                self._valid.add(number)
            rows = wanted[places] - (int(self._ends[number]) - batch.num_rows)
            return batch.take(self._make_array(rows)).to_pylist()  # type: ignore[no-any-return]

        return read_by_owner(np.searchsorted(self._ends, wanted, "right"), take)


def _make_taker(table: Any) -> _Taker:
    """Return what makes a list of some rows of a table."""
    names, worker = table.column_names, get_worker_info()
    is_mostly_asked_for = worker is None or worker.num_workers <= 2  # noqa: PLR2004  others take the rest
    is_small = 0 < table.num_rows * len(names) <= _MOST_CELLS
    types = import_module("pyarrow").types
    # Small values, which cannot be changed by whoever gets them.
    kinds = types.is_string, types.is_large_string, types.is_binary, types.is_large_binary
    is_plain = all(
        any(is_kind(column) for is_kind in (types.is_primitive, *kinds))
        for column in table.schema.types
    )
    if not (is_mostly_asked_for and is_small and is_plain):
        return lambda rows: table.take(rows).to_pylist()
    columns = [column.to_pylist() for column in table.columns]

    def take(rows: NDArray[np.int64]) -> list[Any]:
        chosen = rows.tolist()
        picked = [[column[row] for row in chosen] for column in columns]
        return [dict(zip(names, row, strict=True)) for row in zip(*picked, strict=True)]

    return take


def _import(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError:
        raise UnsupportedError(
            "reading Parquet and Arrow files needs pyarrow", hint="pip install pyarrow"
        ) from None


def _try(path: str, faults: tuple[type[Exception], ...], read: Callable[[], Any]) -> Any:
    try:
        return read()
    except FileNotFoundError:
        raise
    except faults as error:
        text = " ".join(str(error).split())[:200]
        raise FormatError(f"shard {path} cannot be read: {text}") from None
