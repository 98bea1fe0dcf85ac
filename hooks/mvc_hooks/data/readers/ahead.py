"""Shards that can only be read from their start: compressed files, and those of the user's own."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from typing import TYPE_CHECKING, Any

from mvc import FormatError, MvcError
from mvc_hooks.data.readers.reader import describe_fault
from mvc_hooks.run.log import log

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

_RUN = 64
_TOLD_AFTER = 8


class ReadAhead:
    """The records of a shard, read in order, some at a time; at least the last ``keep`` are kept.

    A record before those is found by reading the shard from its start again.
    """

    def __init__(
        self,
        path: str,
        open_runs: Callable[[str], Iterator[list[Any]]],
        decode: Callable[[Any], Any] | None,
        expected: int | None,
        keep: int,
    ) -> None:
        self.path, self.count = path, expected
        self._open, self._decode, self._keep = open_runs, decode, keep
        self._runs: deque[list[Any]] = deque()
        self._begins: deque[int] = deque()
        self._source: Iterator[list[Any]] = iter(())
        self._at, self._opened = -1, 0

    def read(self, numbers: Sequence[int]) -> list[Any]:
        """Return some records."""
        found: list[Any] = [None] * len(numbers)
        for place in sorted(range(len(numbers)), key=numbers.__getitem__):
            number = numbers[place]
            if not self._begins or not self._begins[0] <= number < self._at:
                self._advance(number)
            run = bisect_right(self._begins, number) - 1
            record = self._runs[run][number - self._begins[run]]
            found[place] = record if self._decode is None else self._decode_one(number, record)
        return found

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
        self._start()
        count = 0
        while (run := self._next()) is not None:
            count += len(run)
        self.close()
        return count

    def _decode_one(self, number: int, data: Any) -> Any:
        try:
            return self._decode(data)  # type: ignore[misc]
        except ValueError as error:
            raise describe_fault(self.path, number, error) from None

    def _start(self) -> None:
        self.close()
        self._opened += 1
        if self._opened == _TOLD_AFTER:
            log.warning(
                "shard %s is read from its start for the %dth time: it is not asked for in the order "
                "of a stream; shuffle by its shuffle_block, or store it in a format with offsets",
                self.path,
                self._opened,
            )
        self._source, self._at = iter(self._open(self.path)), 0

    def _advance(self, number: int) -> None:
        if self._at < 0 or number < self._at:
            self._start()
        while self._at <= number:
            run = self._next()
            if run is None:
                told = "" if self.count is None else f", and {self.count} are expected"
                raise FormatError(f"shard {self.path} ends after {self._at} records{told}")
            if run:
                self._append(run)
        if self._at == self.count:
            while (run := self._next()) is not None:
                self._at += len(run)
        if self.count is not None and self._at > self.count:
            raise FormatError(f"shard {self.path} has more than the {self.count} records expected")

    def _append(self, run: list[Any]) -> None:
        self._runs.append(run)
        self._begins.append(self._at)
        self._at += len(run)
        while len(self._begins) > 1 and self._at - self._begins[1] >= self._keep:
            self._begins.popleft()
            self._runs.popleft()

    def _next(self) -> list[Any] | None:
        return next(self._source, None)


def gather(open_fn: Callable[[str], Iterator[Any]], path: str) -> Iterator[list[Any]]:
    """Yield what the user's own reader yields, some at a time; FormatError where it fails."""
    done, run = 0, []
    try:
        for sample in open_fn(path):
            run.append(sample)
            if len(run) == _RUN:
                yield run
                done, run = done + len(run), []
    except (MvcError, GeneratorExit):
        raise
    except Exception as error:  # whatever it raises
        raise describe_fault(path, done + len(run), error) from error
    yield run
