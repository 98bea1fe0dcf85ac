"""Shards that are read in order, as a map-style dataset.

A sample's number counts through all shards, so a loader's plan says which sample comes when, as for
any dataset. The plan keeps reads nearly in order: ``ShardedStream.order`` has the shards in a random
order and shuffles within blocks of consecutive records (``mvc.sampling.BlockOrder``).
"""

from __future__ import annotations

import glob
import os
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from torch.utils.data import Dataset

from mvc import FormatError, MvcError, NotFoundError, UnsupportedError, UsageError
from mvc.sampling import BlockOrder
from mvc_data.iterables import ReadAhead, gather
from mvc_data.readers.columns import ArrowRows, ParquetRows
from mvc_data.readers.files import (
    Reader,
    TarSamples,
    describe_fault,
    iterate_compressed_lines,
    open_bin,
    open_lines,
    open_mds,
    open_npy,
    parse_line,
    read_by_owner,
)
from mvc_data.shards import ShardCheck

if TYPE_CHECKING:
    from numpy.typing import NDArray


_LINES = (".jsonl", ".ndjson")
_COMPRESSED = tuple(f"{name}.{kind}" for name in _LINES for kind in ("zst", "zstd", "gz"))
_ARROW = (".arrow", ".arrows", ".feather")
FORMATS = (*_LINES, *_COMPRESSED, ".tar", ".parquet", *_ARROW, ".npy", ".bin", ".mds")
"""How the names of shards end that can be read without the user's help."""
_COUNTED_FAST = (".parquet", *_ARROW, ".npy", ".bin", ".mds")


@dataclass(frozen=True, slots=True)
class Format:
    """How shards are read."""

    # The user's own way: the path of a shard to an iterator of its samples.
    open_fn: Callable[[str], Iterator[Any]] | None
    tokens: int | None  # numbers in a record of a .bin file, or an .npy file of one dimension
    dtype: str | None  # type of the numbers in a .bin file
    block: int  # records that are shuffled together; twice as many are kept

    def open(self, path: str, expected: int | None) -> Reader:
        """Open a shard; ``expected`` is how many records it has, if that is known.

        Raises:
            NotFoundError: there is no such file.
            FormatError: the file is not what its name says.
        """
        keep = 2 * self.block
        if (open_fn := self.open_fn) is not None:
            return ReadAhead(path, lambda _: _gather(open_fn, path), expected, keep)
        try:
            if path.lower().endswith(_COMPRESSED):
                os.stat(path)
                lines = iterate_compressed_lines
                return ReadAhead(path, lambda _: lines(path), expected, keep, decode=parse_line)
            for suffixes, open_it in _OPENERS.items():
                if path.lower().endswith(suffixes):
                    return open_it(self, path)
        except FileNotFoundError:
            raise NotFoundError(f"shard {path} does not exist") from None
        raise UnsupportedError(
            f"shard {path} has a name that tells no known format",
            hint=f"open_fn=f, where f(path) yields its samples; known are {', '.join(FORMATS)}",
        )

    def count(self, path: str) -> int:
        """Return how many records a shard has, reading it all if its format does not tell."""
        reader = self.open(path, None)
        try:
            return reader.count_all() if isinstance(reader, ReadAhead) else int(reader.count or 0)
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


_MOST_OPEN = 256
_MAP = ".shards"


class ShardedStream(Dataset[Any]):
    """The samples of some shards, in the order of shards and records.

    Attributes:
        paths: the shards, in the order in which their records are numbered.
        order: the order in which a loader draws from it when it shuffles.
        shards: tree hash of the shard map, or None if there is none.
        check: how that map is checked before the first step, or None.

    Args:
        shards: the file of a shard map (``mvc data add`` makes it), a folder, a pattern like
            ``data/*.jsonl``, or a list of paths.
        open_fn: how to read a shard of another format: its path to an iterator of samples, the
            same each time. By default the name of the shard decides.
        root: the folder where the shards of a map are, if they were copied; by default that of the map.
        records: how many each shard has: a list in the order of the shards, a dict by path, or
            "count", which reads all shards once. A shard map tells, and so do Parquet, Arrow,
            npy, bin and MDS files themselves.
        shuffle_block: consecutive records that are shuffled together; 1: none.
        tokens: numbers in a record of a .bin file, or an .npy file of one dimension.
        dtype: type of the numbers in a .bin file, as ``uint16``.
        transform: what becomes of a sample that was read.
        on_open: is called with the path of a shard before it is opened, once in each process.

    Raises:
        NotFoundError: there is no such shard.
        UsageError: the number of records is not known, or the shards are at a URL, which only
            ``open_fn`` can read.
    """

    def __init__(
        self,
        shards: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
        open_fn: Callable[[str], Iterator[Any]] | None = None,
        *,
        root: str | os.PathLike[str] | None = None,
        records: Sequence[int] | Mapping[str, int] | str | None = None,
        shuffle_block: int = 4096,
        tokens: int | None = None,
        dtype: str | None = None,
        transform: Callable[[Any], Any] | None = None,
        on_open: Callable[[str], None] | None = None,
    ) -> None:
        self.check: ShardCheck | None = None
        if isinstance(shards, (str, os.PathLike)) and os.fspath(shards).endswith(_MAP):
            self.check = ShardCheck(os.fspath(shards), root)
        elif root is not None:
            raise UsageError("root is for the shards of a map", hint="pass the file of the map")
        if type(shuffle_block) is not int or shuffle_block < 1:
            raise UsageError(f"shuffle_block is {shuffle_block!r}, not a whole number of 1 or more")
        self.paths, self.shards, known = _find_shards(shards, self.check)
        if open_fn is None and "://" in self.paths[0]:
            raise UsageError(
                f"shard {self.paths[0]} is not a file here",
                hint="copy the shards and pass root=FOLDER, or open_fn= that reads them there",
            )
        self._format = Format(open_fn, tokens, dtype, shuffle_block)
        counts = _find_counts(self._format, self.paths, known if records is None else records)
        self.order = BlockOrder(np.array(counts, np.int64), shuffle_block)
        self._starts = np.cumsum([0, *counts])
        self._transform, self._on_open = transform, on_open
        self._open: OrderedDict[int, Reader] = OrderedDict()
        self._process = os.getpid()
        self._announced: set[int] = set()

    def __len__(self) -> int:
        return int(self._starts[-1])

    @property
    def records(self) -> list[int]:
        """How many records each shard has."""
        return [int(size) for size in self.order.sizes]

    def locate(self, number: int) -> tuple[str, int]:
        """Return the path of the shard that holds a sample, and which record of it."""
        at = int(number)
        if not 0 <= at < len(self):
            raise IndexError(f"sample {number} of {len(self)}")
        shard = int(np.searchsorted(self._starts, at, "right")) - 1
        return self.paths[shard], at - int(self._starts[shard])

    def __getitem__(self, number: int) -> Any:
        return self.__getitems__([number + len(self) if number < 0 else number])[0]

    def __getitems__(self, numbers: Sequence[int]) -> list[Any]:
        """Return some samples, shard by shard and each once."""
        wanted = np.asarray(numbers, np.int64)
        if wanted.size and not 0 <= int(wanted.min()) <= int(wanted.max()) < len(self):
            raise IndexError(f"samples {int(wanted.min())} to {int(wanted.max())} of {len(self)}")
        owners = np.searchsorted(self._starts, wanted, "right") - 1

        def read(shard: int, places: NDArray[np.int64]) -> list[Any]:
            return self._find_reader(shard).read((wanted[places] - self._starts[shard]).tolist())

        # In the order of asking: by number, two shards of a block would push out each other.
        samples = read_by_owner(owners, read)
        return samples if self._transform is None else list(map(self._transform, samples))

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_open": OrderedDict(), "_announced": set()}

    def close(self) -> None:
        """Close all shards; the next sample opens its shard again."""
        for reader in self._open.values():
            reader.close()
        self._open.clear()

    def _find_reader(self, shard: int) -> Reader:
        if self._process != os.getpid():
            # A fork shares the place in a file with its parent, so it opens its own.
            self._open, self._announced, self._process = OrderedDict(), set(), os.getpid()
        reader = self._open.get(shard)
        if reader is None:
            reader = self._open[shard] = self._open_shard(shard)
            # What two blocks may span stays open, and no more.
            sizes, most = self.order.sizes, 2 * self.order.block
            held = sum(int(sizes[other]) for other in list(self._open)[1:-1])
            while len(self._open) > _MOST_OPEN or (len(self._open) > 2 and held > most):  # noqa: PLR2004
                self._open.popitem(last=False)[1].close()
                held -= int(sizes[next(iter(self._open))])
        self._open.move_to_end(shard)
        return reader

    def _open_shard(self, shard: int) -> Reader:
        path, expected = self.paths[shard], int(self.order.sizes[shard])
        if self._on_open is not None and shard not in self._announced:
            self._on_open(path)
            self._announced.add(shard)
        reader = self._format.open(path, expected)
        if (count := reader.count) != expected:
            reader.close()
            raise FormatError(
                f"shard {path} has {count} records, and {expected} are expected",
                hint="look at `mvc data verify`, or count again",
            )
        return reader


def _find_shards(
    shards: Any, check: ShardCheck | None
) -> tuple[list[str], str | None, Mapping[str, int] | None]:
    """Return the paths, the tree hash of the map, and the records by path that a map tells."""
    if not isinstance(shards, (str, os.PathLike)):
        return _check_paths([os.fspath(path) for path in shards]), None, None
    if check is not None:
        opened = check.open("")
        root = os.path.abspath(opened.folder) if opened.folder else str(opened.url).rstrip("/")
        records = {f"{root}/{shard.path}": shard.records for shard in opened.map.shards}
        counts = {path: count for path, count in records.items() if count is not None}
        return _check_paths([*records]), opened.map.tree, counts
    place = os.fspath(shards)
    if os.path.isdir(place):
        names = sorted(os.listdir(place))
        paths = [os.path.join(place, name) for name in names if name.lower().endswith(FORMATS)]
    elif glob.has_magic(place):
        paths = sorted(glob.glob(place, recursive=True))
    else:
        paths = [place]
    if not paths:
        raise NotFoundError(f"no shards at {place}", hint=f"known are {', '.join(FORMATS)}")
    return _check_paths(paths), None, None


def _check_paths(paths: list[str]) -> list[str]:
    if not paths:
        raise UsageError("a stream without shards")
    if len(set(paths)) < len(paths):
        twice = next(path for path in paths if paths.count(path) > 1)
        raise UsageError(
            f"shard {twice} is given twice", hint="a mixture with weights repeats data"
        )
    return paths


def _find_counts(format_: Format, paths: list[str], records: Any) -> list[int]:
    if isinstance(records, str) and records != "count":
        raise UsageError(f"records={records!r} is neither numbers nor 'count'")
    if records is not None and not isinstance(records, (str, Mapping)):
        if len(records) != len(paths):
            raise UsageError(
                f"records are given for {len(records)} shards, and there are {len(paths)}"
            )
        return [_check_count(path, count) for path, count in zip(paths, records, strict=True)]
    known: Mapping[str, int] = records if isinstance(records, Mapping) else {}
    counts = []
    for path in paths:
        count = None if format_.is_cut(path) else known.get(path)
        if count is None and (records == "count" or format_.is_counted_fast(path)):
            count = format_.count(path)
        if count is None and format_.open_fn is None and not os.path.exists(path):
            raise NotFoundError(f"shard {path} does not exist")
        if count is None:
            raise UsageError(
                f"how many records shard {path} has is not known",
                hint="make a map of the shards with `mvc data add` and pass its file, or "
                "records='count', which reads them all once at every start",
            )
        counts.append(_check_count(path, count))
    return counts


def _check_count(path: str, count: Any) -> int:
    if isinstance(count, (bool, np.bool_)) or not isinstance(count, (int, np.integer)) or count < 0:
        raise UsageError(f"shard {path} is said to have {count!r} records")
    return int(count)
