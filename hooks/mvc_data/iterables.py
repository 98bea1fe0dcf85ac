"""Any iterable as a source of a loader: its samples by their place in it.

Whatever can only be read from its start is read by every worker of every rank, which take their own
samples and drop the others: the whole stream is read as often as there are workers. What the
iterable does for a sample (not what ``transform`` does) is done as often.
"""

from __future__ import annotations

import logging
import os
from bisect import bisect_right
from collections import deque
from typing import TYPE_CHECKING, Any

import numpy as np
from torch.utils.data import Dataset

from mvc import FormatError, MvcError, NotFoundError, UsageError
from mvc.sampling import BlockOrder
from mvc_data.readers.files import describe_fault

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence


log = logging.getLogger("mvc_hooks")
_RUN = 64
_TOLD_AFTER = 8


class StreamEndedError(NotFoundError):
    """A source of unknown length ended before a sample that was asked for."""


class ReadAhead:
    """The records of a shard, read in order, some at a time; at least the last ``keep`` are kept.

    A record before those is found by reading the shard from its start again.

    Args:
        open_runs: reads the shard: yields runs of records, from the one with the number that it is
            given if ``can_start``, and from the first one otherwise.
        decode: what makes a sample of a record that is asked for; ValueError if it cannot.
        expected: how many records there have to be; None: as many as come.
        can_start: whether the shard can be read from anywhere.
        is_exact: whether more records than expected are a fault.
    """

    def __init__(
        self,
        path: str,
        open_runs: Callable[[int], Iterator[list[Any]]],
        expected: int | None,
        keep: int,
        *,
        decode: Callable[[Any], Any] | None = None,
        can_start: bool = False,
        is_exact: bool = True,
    ) -> None:
        self.path, self.count = path, expected
        self._open, self._decode, self._keep = open_runs, decode, keep
        self._can_start, self._is_exact = can_start, is_exact
        self._runs: deque[list[Any]] = deque()
        self._begins: deque[int] = deque()
        self._source: Iterator[list[Any]] = iter(())
        self._at, self._opened = -1, 0

    def read(self, numbers: Sequence[int]) -> list[Any]:
        """Return some records."""
        samples: list[Any] = [None] * len(numbers)
        for place in sorted(range(len(numbers)), key=numbers.__getitem__):
            number = numbers[place]
            if self._begins and number < self._begins[0]:
                self.close()
            if number >= self._at:
                self.reach(number)
            run = bisect_right(self._begins, number) - 1
            record = self._runs[run][number - self._begins[run]]
            try:
                samples[place] = record if self._decode is None else self._decode(record)
            except ValueError as error:
                raise describe_fault(self.path, number, error) from None
        return samples

    def close(self) -> None:
        """Close the file, as far as the iterator knows how to."""
        close = getattr(self._source, "close", None)
        if close is not None:
            close()
        self._runs.clear()
        self._begins.clear()
        self._at = -1

    def count_all(self) -> int:
        """Read the shard once and return how many records it has."""
        self._start(0)
        count = 0
        while (run := next(self._source, None)) is not None:
            count += len(run)
        self.close()
        return count

    def _start(self, begin: int) -> None:
        self.close()
        self._opened += 1
        if self._opened == _TOLD_AFTER:
            log.warning(
                "shard %s is read from its start for the %dth time: it is not asked for in the order "
                "of a stream; shuffle by its shuffle_block, or store it in a format with offsets",
                self.path,
                self._opened,
            )
        self._source, self._at = iter(self._open(begin)), begin

    def reach(self, number: int) -> None:
        """Read on until a record is there, or was.

        Raises:
            StreamEndedError: there is no such record, and it was not known how many there are.
            FormatError: there are fewer, or more, records than expected.
        """
        begin = max(0, number - self._keep) if self._can_start else 0
        if self._at < 0 or self._at + self._keep < begin:
            self._start(begin)
        while self._at <= number:
            run = next(self._source, None)
            if run is None and self.count is None:
                raise StreamEndedError(f"{self.path} ends after {self._at} samples")
            if run is None:
                raise FormatError(
                    f"shard {self.path} ends after {self._at} records, and {self.count} are expected"
                )
            if not run:
                continue
            self._runs.append(run)
            self._begins.append(self._at)
            self._at += len(run)
            while len(self._begins) > 1 and self._at - self._begins[1] >= self._keep:
                self._begins.popleft()
                self._runs.popleft()
        is_all = self._is_exact and self.count is not None and self._at >= self.count
        if is_all and (self._at != self.count or next(self._source, None)):
            raise FormatError(f"shard {self.path} has more than the {self.count} records expected")


def gather(samples: Iterable[Any], path: str, begin: int = 0) -> Iterator[list[Any]]:
    """Yield what an iterable of the user's yields, some at a time; FormatError where it fails."""
    done, run = begin, []
    try:
        for sample in samples:
            run.append(sample)
            if len(run) == _RUN:
                yield run
                done, run = done + len(run), []
    except (MvcError, GeneratorExit):
        raise
    except Exception as error:  # whatever it raises
        raise describe_fault(path, done + len(run), error) from error
    yield run


UNKNOWN_SIZE = 1 << 40  # places in an epoch of a source whose length is not known


class IterableSource(Dataset[Any]):
    """The samples that a function's iterator yields, which have to be the same ones each time.

    Attributes:
        order: the order in which a loader draws from it when it shuffles.
        is_endless: whether its length is not known.

    Args:
        make: returns an iterable of the samples, from the first one on.
        size: how many of them are an epoch; the iterable may have more. None: an epoch ends where the iterator does, before the first
            batch, or block, that it cannot fill.
        name: what messages call it.
        shuffle_block: consecutive samples that are shuffled together; 1: none.
        can_start: ``make(start)`` leaves out the first ``start`` samples faster than reading them.
        transform: what becomes of a sample that is taken.

    Raises:
        UsageError: ``make`` is an iterator, which cannot be read again, or a number is wrong.
    """

    def __init__(
        self,
        make: Callable[..., Iterable[Any]],
        size: int | None = None,
        *,
        name: str = "stream",
        shuffle_block: int = 1,
        can_start: bool = False,
        transform: Callable[[Any], Any] | None = None,
    ) -> None:
        if not callable(make):
            raise UsageError(
                f"{name} is a {type(make).__name__}, not a function that makes an iterable",
                hint="pass lambda: iterable, or the generator function itself",
            )
        if size is not None and (type(size) is not int or not 0 < size <= UNKNOWN_SIZE):
            raise UsageError(f"size is {size!r}, not a whole number of 1 or more")
        self.name, self.is_endless = name, size is None
        self._make, self._can_start, self._transform = make, can_start, transform
        self._size = UNKNOWN_SIZE if size is None else size
        self.order = BlockOrder(np.array([self._size]), shuffle_block)
        self._reader: ReadAhead | None = None
        self._process = os.getpid()
        self._last: Any = None

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, number: int) -> Any:
        return self.__getitems__([number])[0]

    def __getitems__(self, numbers: Sequence[int]) -> list[Any]:
        """Return some samples.

        Raises:
            StreamEndedError: the iterable is shorter, and its size was not given.
            FormatError: it is shorter than it was said to be, or fails.
        """
        samples = self._find_reader().read(numbers)
        return (
            samples if self._transform is None else [self._transform(sample) for sample in samples]
        )

    def check_reach(self, place: int) -> None:
        """Check that everything up to the block of some place is there: StreamEndedError if not.

        Every rank asks this for the last place of a global batch, so all end before the same one.
        """
        if self.is_endless:
            last = (place // self.order.block + 1) * self.order.block - 1
            self._find_reader().reach(last)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_reader": None, "_last": None}

    def _find_reader(self) -> ReadAhead:
        if self._reader is None or self._process != os.getpid():
            self._reader = ReadAhead(
                self.name,
                self._open,
                None if self.is_endless else self._size,
                2 * self.order.block,
                can_start=self._can_start,
                is_exact=False,
            )
            self._process = os.getpid()
        return self._reader

    def _open(self, start: int) -> Iterator[list[Any]]:
        try:
            samples = self._make(start) if self._can_start else self._make()
        except (MvcError, OSError):
            raise
        except Exception as error:  # whatever the user's function raises
            raise describe_fault(self.name, start, error) from error
        if iter(samples) is samples and samples is self._last:
            raise UsageError(
                f"{self.name} returns the same iterator each time, which cannot be read again",
                hint="make a new one in each call",
            )
        self._last = samples
        return gather(samples, self.name, start)
