"""Which reader a shard takes, by its name."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mvc import MvcError, NotFoundError, UnsupportedError
from mvc_data.readers.ahead import ReadAhead, gather
from mvc_data.readers.arrays import open_bin, open_npy
from mvc_data.readers.columns import ArrowRows, ParquetRows
from mvc_data.readers.lines import iterate_compressed_lines, open_lines, parse_line
from mvc_data.readers.mds import open_mds
from mvc_data.readers.reader import describe_fault
from mvc_data.readers.tars import TarSamples

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from mvc_data.readers.reader import Reader

_LINES = (".jsonl", ".ndjson")
_COMPRESSED = tuple(f"{name}.{kind}" for name in _LINES for kind in ("zst", "zstd", "gz"))
_ARROW = (".arrow", ".arrows", ".feather")
FORMATS = (*_LINES, *_COMPRESSED, ".tar", ".parquet", *_ARROW, ".npy", ".bin", ".mds")
"""How the names of shards end that can be read without the user's help."""
_COUNTED_FAST = (".parquet", *_ARROW, ".npy", ".bin", ".mds")


@dataclass(frozen=True, slots=True)
class Format:
    """How shards are read.

    Attributes:
        open_fn: the user's own way: the path of a shard to an iterator of its samples.
        tokens: numbers in a record of a .bin file, or an .npy file of one dimension.
        dtype: type of the numbers in a .bin file.
        block: records that are shuffled together, of which twice as many are kept.
    """

    open_fn: Callable[[str], Iterator[Any]] | None
    tokens: int | None
    dtype: str | None
    block: int

    def open(self, path: str, expected: int | None) -> Reader:
        """Open a shard of so many records, as far as they are known.

        Raises:
            NotFoundError: there is no such file.
            FormatError: the file is not what its name says.
        """
        if (open_fn := self.open_fn) is not None:
            return ReadAhead(path, lambda _: _gather(open_fn, path), expected, 2 * self.block)
        try:
            return self._open_known(path, expected)
        except FileNotFoundError:
            raise NotFoundError(f"shard {path} does not exist") from None

    def _open_known(self, path: str, expected: int | None) -> Reader:
        name = path.lower()
        if name.endswith(_COMPRESSED):
            os.stat(path)
            return ReadAhead(
                path,
                lambda _: iterate_compressed_lines(path),
                expected,
                2 * self.block,
                decode=parse_line,
            )
        for suffixes, open_it in _OPENERS.items():
            if name.endswith(suffixes):
                return open_it(self, path)
        raise UnsupportedError(
            f"shard {path} has a name that tells no known format",
            hint=f"open_fn=f, where f(path) yields its samples; known are {', '.join(FORMATS)}",
        )

    def count(self, path: str) -> int:
        """Return how many records a shard has, reading it all if its format does not tell."""
        reader = self.open(path, None)
        try:
            known = reader.count
            if known is None:
                assert isinstance(reader, ReadAhead)
                known = reader.count_all()
            return known
        finally:
            reader.close()

    def is_cut(self, path: str) -> bool:
        """Return whether what is a record is up to ``tokens``, so that no map tells how many there are."""
        return self.open_fn is None and path.lower().endswith((".npy", ".bin"))

    def is_counted_fast(self, path: str) -> bool:
        """Return whether ``count`` reads no more than the head or foot of the file."""
        return self.open_fn is None and path.lower().endswith(_COUNTED_FAST)


_OPENERS: dict[tuple[str, ...], Callable[[Format, str], Reader]] = {
    _LINES: lambda _, path: open_lines(path),
    (".tar",): lambda _, path: TarSamples(path),
    (".parquet",): lambda how, path: ParquetRows(path, how.block),
    _ARROW: lambda _, path: ArrowRows(path),
    (".npy",): lambda how, path: open_npy(path, how.tokens),
    (".bin",): lambda how, path: open_bin(path, how.tokens, how.dtype),
    (".mds",): lambda _, path: open_mds(path),
}


def _gather(open_fn: Callable[[str], Iterator[Any]], path: str) -> Iterator[list[Any]]:
    try:
        samples = open_fn(path)
    except (MvcError, OSError):
        raise
    except Exception as error:
        raise describe_fault(path, 0, error) from error
    return gather(samples, path)
