"""Which samples a torch DataLoader hands out: iterators that note the indices of each batch.

An iterator asks its sampler for batches ahead of their use. Here it keeps what it asked for by the
number of the task, and tells it once the batch of that task is handed out, so what was only prefetched
does not count. Nothing is asked for, drawn or sent that would not be without it.
"""

from __future__ import annotations

import sys
from functools import cache
from typing import TYPE_CHECKING, Any

from torch.utils.data import DataLoader
from torch.utils.data.dataloader import (
    _BaseDataLoaderIter,
    _DatasetKind,
    _MultiProcessingDataLoaderIter,
    _SingleProcessDataLoaderIter,
)

if TYPE_CHECKING:
    from collections.abc import Callable

_ONLY = -1
"""Number of the one task of an iterator without workers."""


class TellingIterator(_BaseDataLoaderIter):
    """What an iterator of a DataLoader does besides: it tells the indices of the batches it hands out.

    Attributes:
        tell: gets the indices of a batch when it is handed out; None: not yet.
    """

    tell: Callable[[Any], None] | None = None
    _asked: dict[int, Any]

    def __init__(self, loader: Any, *args: Any) -> None:
        self._asked = {}
        super().__init__(loader, *args)

    def _reset(self, loader: Any, *args: Any, **options: Any) -> None:
        self._asked.clear()
        super()._reset(loader, *args, **options)

    def _next_index(self) -> Any:
        index = super()._next_index()  # type: ignore[no-untyped-call]
        if self._dataset_kind == _DatasetKind.Map:
            self._asked[getattr(self, "_send_idx", _ONLY)] = index
        return index

    def _next_data(self) -> Any:
        try:
            data: Any = self._make_batch()
        except BaseException:
            self._take()
            raise
        found = self._take()
        if self.tell is not None:
            for indices in found:
                self.tell(indices)
        return data

    def _make_batch(self) -> Any:
        return super()._next_data()

    def _take(self) -> list[Any]:
        """Return what was asked for by tasks that are over."""
        tasks, sent = getattr(self, "_task_info", ()), getattr(self, "_send_idx", 0)
        over = [number for number in self._asked if number < sent and number not in tasks]
        return [self._asked.pop(number) for number in over]


@cache
def telling(kind: type[_BaseDataLoaderIter]) -> type[TellingIterator]:
    """Return a class of iterators that does so besides."""
    return type(kind.__name__, (TellingIterator, kind), {})


def make_iterator(loader: Any) -> Any:
    """Return a new iterator of a loader; one of torch or torchdata will tell what it hands out."""
    make = type(loader)._get_iterator  # noqa: SLF001  how a loader makes them
    if make is DataLoader._get_iterator:  # noqa: SLF001
        if loader.num_workers == 0:
            return telling(_SingleProcessDataLoaderIter)(loader)
        loader.check_worker_number_rationality()
        return telling(_MultiProcessingDataLoaderIter)(loader)
    torchdata: Any = sys.modules.get("torchdata.stateful_dataloader.stateful_dataloader")
    if torchdata is None or make is not torchdata.StatefulDataLoader._get_iterator:  # noqa: SLF001
        return make(loader)
    kind = torchdata._StatefulSingleProcessDataLoaderIter  # noqa: SLF001
    if loader.num_workers:
        loader.check_worker_number_rationality()
        kind = torchdata._StatefulMultiProcessingDataLoaderIter  # noqa: SLF001
    state, loader.next_iter_state = loader.next_iter_state, None
    return telling(kind)(loader, state)
