"""Parquet and Arrow files: a record is a dict of plain Python values."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Any

import numpy as np

from mvc import FormatError, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class ParquetRows:
    """The rows of a Parquet file; whole row groups are decoded, and the last ones kept."""

    def __init__(self, path: str, block: int) -> None:
        pa, parquet = _import("pyarrow"), _import("pyarrow.parquet")
        self._faults = (pa.ArrowException, OSError)
        self.path = path
        self._file = _try(path, self._faults, lambda: parquet.ParquetFile(path))
        meta = self._file.metadata
        rows = [meta.row_group(group).num_rows for group in range(meta.num_row_groups)]
        self._ends = np.cumsum(rows, dtype=np.int64)
        self._kept: OrderedDict[int, Any] = OrderedDict()
        self._most = 2 + -(-2 * block // max(1, min(rows, default=1)))

    @property
    def count(self) -> int:
        """How many rows there are."""
        return int(self._ends[-1]) if len(self._ends) else 0

    def read(self, numbers: Sequence[int]) -> list[Any]:
        """Return some rows."""
        return _take(numbers, self._ends, self._decode, self.path, self._faults)

    def close(self) -> None:
        """Close the file."""
        self._kept.clear()
        self._file.close()

    def _decode(self, group: int) -> Any:
        if group not in self._kept:
            # Threads of a worker would fight with those of the others for the same cores.
            self._kept[group] = self._file.read_row_group(group, use_threads=False).combine_chunks()
            while len(self._kept) > self._most:
                self._kept.popitem(last=False)
        return self._kept[group]


class ArrowRows:
    """The rows of an Arrow file or stream, mapped into memory."""

    def __init__(self, path: str) -> None:
        pa = _import("pyarrow")
        self._faults = (pa.ArrowException, OSError)
        self.path = path
        self._map = _try(path, self._faults, lambda: pa.memory_map(path))
        self._batches = _try(path, self._faults, lambda: _list_batches(pa, self._map))
        self._ends = np.cumsum([one.num_rows for one in self._batches], dtype=np.int64)

    @property
    def count(self) -> int:
        """How many rows there are."""
        return int(self._ends[-1]) if len(self._ends) else 0

    def read(self, numbers: Sequence[int]) -> list[Any]:
        """Return some rows."""
        return _take(numbers, self._ends, self._batches.__getitem__, self.path, self._faults)

    def close(self) -> None:
        """Close the file."""
        self._batches = []
        self._map.close()


def _list_batches(pa: Any, source: Any) -> list[Any]:
    if source.read(6) == b"ARROW1":
        file = pa.ipc.open_file(source)
        return [file.get_batch(number) for number in range(file.num_record_batches)]
    source.seek(0)
    return list(pa.ipc.open_stream(source))


def _take(
    numbers: Sequence[int],
    ends: Any,
    decode: Callable[[int], Any],
    path: str,
    faults: tuple[type[Exception], ...],
) -> list[Any]:
    wanted = np.asarray(numbers, np.int64)
    pieces = np.searchsorted(ends, wanted, "right")
    found: list[Any] = [None] * len(wanted)
    for piece in np.unique(pieces).tolist():
        places = np.flatnonzero(pieces == piece)
        first = int(ends[piece - 1]) if piece else 0
        rows = _try(
            path,
            faults,
            lambda piece=piece, places=places, first=first: (
                decode(piece).take(wanted[places] - first).to_pylist()
            ),
        )
        for place, row in zip(places.tolist(), rows, strict=True):
            found[place] = row
    return found


def _import(name: str) -> Any:
    try:
        return __import__(name, fromlist=["_"])
    except ImportError:
        raise UnsupportedError(
            "reading Parquet and Arrow files needs pyarrow", hint="pip install pyarrow"
        ) from None


def _try(path: str, faults: tuple[type[Exception], ...], read: Callable[[], Any]) -> Any:
    try:
        return read()
    except FileNotFoundError:
        raise
    except (*faults, ValueError, UnicodeDecodeError) as error:
        text = " ".join(str(error).split())[:200]
        raise FormatError(f"shard {path} cannot be read: {text}") from None
