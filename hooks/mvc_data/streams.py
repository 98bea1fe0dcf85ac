"""Shards that are read in order, as a map-style dataset.

A sample's number counts through all shards, so a loader's plan says which sample comes when, as for
any dataset. That this is read in order all the same is up to the order: ``ShardedStream.order`` has the
shards in a random order and shuffles within blocks of consecutive records (``mvc.sampling.BlockOrder``).
"""

from __future__ import annotations

import glob
import os
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from torch.utils.data import Dataset

from mvc import FormatError, NotFoundError, UsageError
from mvc.sampling import BlockOrder
from mvc_data.readers.opening import FORMATS, Format
from mvc_data.readers.reader import read_by_owner
from mvc_data.shards import ShardCheck

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from mvc_data.readers.reader import Reader

_MOST_OPEN = 256
_MAP = ".shards"


class ShardedStream(Dataset[Any]):
    """The samples of some shards, in the order of shards and records.

    Attributes:
        paths: the shards, in the order in which their records are numbered.
        order: the order in which a loader draws from it when it shuffles.
        shards: tree hash of the shard map, or None if there is none.
        check: how that map is checked before the first step, or None.
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
        """Find the shards and how many records each has.

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
        self.check = _make_check(shards, root)
        self.paths, self.shards, known = _find_shards(shards, self.check)
        if open_fn is None and "://" in self.paths[0]:
            raise UsageError(
                f"shard {self.paths[0]} is not a file here",
                hint="copy the shards and pass root=FOLDER, or open_fn= that reads them there",
            )
        self._format = Format(open_fn, tokens, dtype, _check_block(shuffle_block))
        counts = _find_counts(self._format, self.paths, known if records is None else records)
        self.order = BlockOrder(np.array(counts, np.int64), shuffle_block)
        self._starts = np.cumsum([0, *counts])
        self._transform, self._on_open = transform, on_open
        self._open: OrderedDict[int, Reader] = OrderedDict()
        self._process = os.getpid()
        self._told: set[int] = set()

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
        found = read_by_owner(owners, read)
        return found if self._transform is None else [self._transform(one) for one in found]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_open": OrderedDict(), "_told": set()}

    def close(self) -> None:
        """Close all shards; the next sample opens its shard again."""
        for reader in self._open.values():
            reader.close()
        self._open.clear()

    def _find_reader(self, shard: int) -> Reader:
        if self._process != os.getpid():
            # A fork shares the place in a file with its parent, so it opens its own.
            self._open, self._told, self._process = OrderedDict(), set(), os.getpid()
        reader = self._open.get(shard)
        if reader is None:
            reader = self._open_shard(shard)
            self._open[shard] = reader
            self._close_oldest()
        self._open.move_to_end(shard)
        return reader

    def _open_shard(self, shard: int) -> Reader:
        path, expected = self.paths[shard], int(self.order.sizes[shard])
        if self._on_open is not None and shard not in self._told:
            self._on_open(path)
            self._told.add(shard)
        reader = self._format.open(path, expected)
        if (count := reader.count) != expected:
            reader.close()
            raise FormatError(
                f"shard {path} has {count} records, and {expected} are expected",
                hint="look at `mvc data verify`, or count again",
            )
        return reader

    def _close_oldest(self) -> None:
        """Keep what two blocks may span, and no more."""
        sizes, most = self.order.sizes, 2 * self.order.block
        held = sum(int(sizes[shard]) for shard in list(self._open)[1:-1])
        while len(self._open) > _MOST_OPEN or (len(self._open) > 2 and held > most):  # noqa: PLR2004
            _, reader = self._open.popitem(last=False)
            reader.close()
            held -= int(sizes[next(iter(self._open))])


def _check_block(block: int) -> int:
    if type(block) is not int or block < 1:
        raise UsageError(f"shuffle_block is {block!r}, not a whole number of 1 or more")
    return block


def _make_check(shards: object, root: str | os.PathLike[str] | None) -> ShardCheck | None:
    if isinstance(shards, (str, os.PathLike)) and os.fspath(shards).endswith(_MAP):
        return ShardCheck(os.fspath(shards), root)
    if root is not None:
        raise UsageError("root is for the shards of a map", hint="pass the file of the map")
    return None


def _find_shards(
    shards: Any, check: ShardCheck | None
) -> tuple[list[str], str | None, Mapping[str, int] | None]:
    """Return the paths, the tree hash of the map, and the records by path that a map tells."""
    if not isinstance(shards, (str, os.PathLike)):
        return _check_paths([os.fspath(one) for one in shards]), None, None
    place = os.fspath(shards)
    if check is not None:
        return _read_map(check)
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
    twice = (
        next((one for one in paths if paths.count(one) > 1), None)
        if len(set(paths)) < len(paths)
        else None
    )
    if twice is not None:
        raise UsageError(
            f"shard {twice} is given twice", hint="a mixture with weights repeats data"
        )
    return paths


def _read_map(check: ShardCheck) -> tuple[list[str], str, Mapping[str, int] | None]:
    opened = check.open("")
    root = os.path.abspath(opened.folder) if opened.folder else str(opened.url).rstrip("/")
    paths = [f"{root}/{one.path}" for one in opened.map.shards]
    counts = {
        place: one.records
        for place, one in zip(paths, opened.map.shards, strict=True)
        if one.records is not None
    }
    return _check_paths(paths), opened.map.tree, counts


def _find_counts(format_: Format, paths: list[str], records: Any) -> list[int]:
    if isinstance(records, str) and records != "count":
        raise UsageError(f"records={records!r} is neither numbers nor 'count'")
    if records is not None and not isinstance(records, (str, Mapping)):
        return _check_listed(paths, records)
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


def _check_listed(paths: list[str], records: Any) -> list[int]:
    if len(records) != len(paths):
        raise UsageError(f"records are given for {len(records)} shards, and there are {len(paths)}")
    return [_check_count(path, count) for path, count in zip(paths, records, strict=True)]


def _check_count(path: str, count: Any) -> int:
    if isinstance(count, (bool, np.bool_)) or not isinstance(count, (int, np.integer)) or count < 0:
        raise UsageError(f"shard {path} is said to have {count!r} records")
    return int(count)
