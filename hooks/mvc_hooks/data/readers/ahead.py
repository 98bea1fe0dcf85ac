"""Shards that can only be read from their start: compressed files, and those of the user's own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mvc import FormatError, MvcError
from mvc_hooks.data.readers.reader import describe_fault
from mvc_hooks.run.log import log

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

_END = object()
_TOLD_AFTER = 8


class ReadAhead:
    """The records of a shard, read in order; the last ``keep`` are kept as they came.

    A record before those is found by reading the shard from its start again.
    """

    def __init__(
        self,
        path: str,
        open_records: Callable[[str], Iterator[Any]],
        decode: Callable[[Any], Any] | None,
        expected: int | None,
        keep: int,
    ) -> None:
        self.path, self.count = path, expected
        self._open, self._decode, self._keep = open_records, decode, keep
        self._kept: dict[int, Any] = {}
        self._records: Iterator[Any] = iter(())
        self._at, self._opened = -1, 0

    def read(self, numbers: Sequence[int]) -> list[Any]:
        """Return some records."""
        kept = self._kept
        raw: dict[int, Any] = {}
        for number in sorted(set(numbers)):
            if number not in kept:
                self._advance(number)
            raw[number] = kept[number]  # may not be kept up to the end of this call
        if self._decode is None:
            return [raw[number] for number in numbers]
        return [self._decode_one(number, raw[number]) for number in numbers]

    def close(self) -> None:
        """Close the file, as far as the iterator knows how to."""
        close = getattr(self._records, "close", None)
        if close is not None:
            close()
        self._kept.clear()
        self._at = -1

    def count_all(self) -> int:
        """Read the shard once and return how many records it has."""
        self._start()
        count = 0
        while self._next() is not _END:
            count += 1
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
        self._at = 0
        try:
            self._records = iter(self._open(self.path))
        except (MvcError, OSError):
            raise
        except Exception as error:
            raise describe_fault(self.path, 0, error) from error

    def _advance(self, number: int) -> None:
        if self._at < 0 or number < self._at:
            self._start()
        while self._at <= number:
            record = self._next()
            if record is _END:
                told = "" if self.count is None else f", and {self.count} are expected"
                raise FormatError(f"shard {self.path} ends after {self._at} records{told}")
            self._kept[self._at] = record
            self._at += 1
            if len(self._kept) > self._keep:
                del self._kept[next(iter(self._kept))]
        if self._at == self.count and self._next() is not _END:
            raise FormatError(f"shard {self.path} has more records than the {self.count} expected")

    def _next(self) -> Any:
        try:
            return next(self._records, _END)
        except (MvcError, OSError):
            raise
        except Exception as error:  # the user's reader, whatever it raises
            raise describe_fault(self.path, max(self._at, 0), error) from error
