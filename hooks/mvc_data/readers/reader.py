"""What a reader of a shard is, and what is common to those that know where each record is."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from mvc import FormatError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray


class Reader(Protocol):
    """The records of one shard."""

    @property
    def count(self) -> int | None:
        """How many there are, or None if only reading them all can tell."""

    def read(self, numbers: Sequence[int]) -> list[Any]:
        """Return some records, in the order of ``numbers``, which are within the shard.

        Raises:
            FormatError: the shard does not hold what its format demands.
        """

    def close(self) -> None:
        """Close the file."""


class SlicedFile:
    """A file of which each record is one run of bytes, read alone.

    Nothing is kept but offsets, 16 bytes a record: the page cache of the machine, which all workers
    and ranks share, holds the rest.
    """

    def __init__(
        self,
        path: str,
        begins: NDArray[np.int64],
        ends: NDArray[np.int64],
        decode: Callable[[bytes], Any],
    ) -> None:
        self.path, self._begins, self._ends, self._decode = path, begins, ends, decode
        self._file = os.open(path, os.O_RDONLY)

    @property
    def count(self) -> int:
        """How many records there are."""
        return len(self._begins)

    def read(self, numbers: Sequence[int]) -> list[Any]:
        """Return some records."""
        chosen = np.asarray(numbers, np.int64)
        places = zip(self._begins[chosen].tolist(), self._ends[chosen].tolist(), strict=True)
        return [self._read(number, *place) for number, place in zip(numbers, places, strict=True)]

    def _read(self, number: int, begin: int, end: int) -> Any:
        data = os.pread(self._file, end - begin, begin)
        if len(data) != end - begin:
            raise FormatError(f"shard {self.path} became shorter: record {number} is cut off")
        try:
            return self._decode(data)
        except ValueError as error:
            raise describe_fault(self.path, number, error) from None

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)


def read_by_owner(
    owners: NDArray[np.int64], read: Callable[[int, NDArray[np.int64]], Sequence[Any]]
) -> list[Any]:
    """Return what several owners have, in the order of ``owners``, which says whose each place is.

    ``read`` is called once for each owner, with it and its places, in the order in which they come first.
    """
    places_of: dict[int, list[int]] = {}
    for place, owner in enumerate(owners.tolist()):
        places_of.setdefault(owner, []).append(place)
    found: list[Any] = [None] * len(owners)
    for owner, places in places_of.items():
        for place, one in zip(places, read(owner, np.array(places)), strict=True):
            found[place] = one
    return found


def describe_fault(path: str, number: int, error: Exception) -> FormatError:
    """Return the error of a record that cannot be read."""
    text = str(error) or type(error).__name__
    return FormatError(
        f"record {number} of shard {path} cannot be read: {text.splitlines()[0][:200]}"
    )


@contextmanager
def naming_shard(path: str) -> Iterator[None]:
    """Say of a FormatError of the shard's format which shard it is."""
    try:
        yield
    except FormatError as error:
        raise FormatError(f"shard {path} cannot be read: {error.message}") from None
