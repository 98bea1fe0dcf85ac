"""Any iterable as a source of a loader: its samples by their place in it.

Whatever can only be read from its start is read by every worker of every rank, which take their own
samples and drop the others: the whole stream is read as often as there are workers. What the
iterable does for a sample (not what ``transform`` does) is done as often.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np
from torch.utils.data import Dataset

from mvc import MvcError, UsageError
from mvc.sampling import BlockOrder
from mvc_data.readers.ahead import ReadAhead, gather
from mvc_data.readers.files import describe_fault

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

UNKNOWN_SIZE = 1 << 40
"""Places in an epoch of a source whose length is not known."""


class IterableSource(Dataset[Any]):
    """The samples that a function's iterator yields, which have to be the same ones each time.

    Attributes:
        order: the order in which a loader draws from it when it shuffles.
        is_endless: whether its length is not known.
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
        """Take a function; nothing is read yet.

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
