"""Shards that can only be read from their start: compressed files, and those of the user's own."""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections import deque
from typing import TYPE_CHECKING, Any

from mvc import FormatError, MvcError, NotFoundError
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
