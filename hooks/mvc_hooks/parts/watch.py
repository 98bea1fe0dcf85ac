"""Watching torch DataLoaders: when their iterators and workers begin, and what those have drawn.

Workers that live for one pass begin again with the pass, and draw again what they drew. Two kinds
would draw something else:

* Persistent workers begin with the first pass. A later pass draws no seed for them, and they enter
  it with generators that all passes before have moved. So they say with their batches what has
  become of their generators, and a restore begins them with the seed and the generators of then.
* Those of torchdata's StatefulDataLoader begin where the pass was left, and draw nothing again.
  Their generators go through torchdata's own snapshots, as a state of the dataset.

What is done about both inside of a worker is in ``parts/workers.py``.

``TellingIterator`` also says which samples a loader hands out. An iterator asks its sampler for
batches ahead of their use. Here it keeps what it asked for by the
number of the task, and tells it once the batch of that task is handed out, so what was only prefetched
does not count. Nothing is asked for, drawn or sent that would not be without it.
"""

from __future__ import annotations

import sys
import weakref
from contextlib import contextmanager, nullcontext
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import (
    _BaseDataLoaderIter,
    _DatasetKind,
    _MultiProcessingDataLoaderIter,
    _SingleProcessDataLoaderIter,
)

from mvc import UsageError
from mvc_hooks.parts.rng import capture_rng, keep_rng, restore_rng
from mvc_hooks.parts.workers import Said, WorkerWatch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

_ONLY = -1  # number of the one task of an iterator without workers
WATCHED: weakref.WeakSet[Any] = weakref.WeakSet()
"""The iterators of all loaders that are part of a run."""
PASSES: list[type] = [_BaseDataLoaderIter]
"""Classes of iterators that feed a training, and count what they gave in ``_num_yielded``."""


class TellingIterator(_BaseDataLoaderIter):
    """What an iterator of a DataLoader does besides: it tells the indices of the batches it hands out."""

    # Gets the indices of a batch when it is handed out; None: not yet.
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
        handed_out = self._take()
        if self.tell is not None:
            for indices in handed_out:
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


class LoaderWatch:
    """One torch DataLoader among what a part iterates.

    Nothing here may hold the loader or the part: an iterator that is freed late, with a cycle of
    references, waits many seconds for each of its workers.
    """

    def __init__(self, loader: DataLoader[Any], part: Any, path: str = "") -> None:
        """Watch a loader for a part with ``note_begin()`` and ``epoch``, until ``remove``.

        One that has ``begins_within_pass`` says whether an iterator goes on with a pass.
        """
        self.path = path
        self._loader, self._part = weakref.ref(loader), weakref.ref(part)
        self._begun = 0
        self._rng: object = None
        self._again: Mapping[str, Any] = {}
        # Of persistent workers: seed and epoch of their first pass; generators as of the beginning
        # of this pass, and as of the last batch of each. Those that were not used are missing.
        self._base_seed: int | None = None
        self._epoch = 0
        self._entered_with: dict[str, Any] = {}
        self.now: dict[str, Any] = {}
        self._lived_before = False
        iterator = getattr(loader, "_iterator", None)
        if isinstance(iterator, _WatchedIterator):
            before, iterator.watch = iterator.watch, self
            self.now, self._base_seed, self._epoch = before.now, before.base_seed, before._epoch  # noqa: SLF001  its own class
        loader._get_iterator = self._make_iterator  # type: ignore[method-assign]  # noqa: SLF001  iter() looks only at the class, and calls this

    def remove(self) -> None:
        """Leave the loader as it was."""
        loader = self._loader()
        if loader is not None and loader.__dict__.get("_get_iterator") == self._make_iterator:
            del loader._get_iterator  # noqa: SLF001  as above

    # A pass of the part, in which a loader may begin more than once.

    def begin_pass(self) -> None:
        """Note whether workers go on from the pass before; UsageError if those were not watched."""
        loader = self._loader()
        live = getattr(loader, "_iterator", None)
        if has_own_workers(loader) and live is not None and not isinstance(live, _WatchedIterator):
            raise UsageError(
                "the persistent workers of this DataLoader began before the checkpointer",
                hint="make the checkpointer before anything iterates the loader",
            )
        is_restored = live is None and self._again.get("base_seed") is not None
        if not is_restored:
            self._again = {}
            if live is None:
                self._base_seed = None
        self._begun, self._lived_before = 0, self._base_seed is not None

    def begin(self) -> None:
        """Count that an iterator begins, with the generators that it had here if this was before."""
        part = self._part()
        if part is None or not part.note_begin():
            return
        self._begun += 1
        if self._begun == self._again.get("begun"):
            restore_rng(self._again["rng"])
        if self._begun > 1:
            self._rng = capture_rng()

    def enter(self) -> None:
        """Note what the workers have when the pass begins."""
        if self._begun <= 1:
            self._entered_with = dict(self.now)

    @property
    def base_seed(self) -> int | None:
        """The seed of the workers, once there are any."""
        return self._base_seed

    @base_seed.setter
    def base_seed(self, seed: int) -> None:
        if self._base_seed is None:
            self._base_seed = seed

    @property
    def is_persistent(self) -> bool:
        """Whether its workers live longer than a pass, and are torch's own."""
        return has_own_workers(self._loader())

    # State.

    def capture(self, *, is_between: bool) -> dict[str, Any]:
        """Return what drawing the pass again does not bring back by itself."""
        state: dict[str, Any] = {}
        live = getattr(self._loader(), "_iterator", None)
        is_there = live is not None or self._again.get("base_seed") is not None
        if is_there and self._base_seed is not None and (self._lived_before or is_between):
            generators = self.now if is_between else self._entered_with
            state |= {"base_seed": self._base_seed, "epoch": self._epoch, "generators": generators}
        if self._begun > 1 and not is_between:
            state |= {"begun": self._begun, "rng": self._rng}
        return state

    def restore(self, state: Mapping[str, Any]) -> None:
        """End persistent workers; the next ones begin as those of the state."""
        loader = self._loader()
        if loader is not None and has_own_workers(loader):
            loader._iterator = None  # noqa: SLF001
        self._again = state
        self._begun, self._base_seed = 0, state.get("base_seed")
        self._lived_before = self._base_seed is not None
        self._epoch = state.get("epoch", 0)
        self._entered_with = self.now = dict(state.get("generators", {}))

    # Iterators.

    def _make_iterator(self) -> Any:
        part = self._part()
        goes_on = getattr(part, "begins_within_pass", False)
        # The pass that it goes on with has drawn a seed already.
        with nullcontext() if part is None or not goes_on else keep_rng(part.generators().values()):
            iterator = self._begin_iterator()
        if isinstance(iterator, TellingIterator):
            iterator.tell = self._note_drawn
        WATCHED.add(iterator)
        return iterator

    def _note_drawn(self, indices: Any) -> None:
        part = self._part()
        if part is not None:
            part.note_drawn(self.path, indices)

    def _begin_iterator(self) -> Any:
        loader = self._loader()
        assert loader is not None
        self.begin()
        if not has_own_workers(loader):
            worker, lent = WorkerWatch(loader), {}
            if loader.num_workers and hasattr(loader, "next_iter_state"):  # torchdata's
                lent = {"worker_init_fn": worker.attach, "collate_fn": worker.watch}
            elif self._again.get("base_seed") is not None:
                lent = self._as_later_pass(loader)
            with lend(loader, lent):
                return make_iterator(loader)
        again, self._again = self._again, {**self._again, "base_seed": None}
        if again.get("base_seed") is None:
            part = self._part()
            self._base_seed, self._epoch = None, 0 if part is None else part.epoch
            self.now = {}
        else:
            self.now = dict(self._entered_with)
        return self._begin_workers(loader, is_again=self._base_seed is not None)

    def _begin_workers(self, loader: Any, *, is_again: bool) -> _WatchedIterator:
        worker = WorkerWatch(loader, self.now)
        lent: dict[str, Any] = {"worker_init_fn": worker.begin, "collate_fn": worker.say}
        if is_again:
            lent |= self._as_later_pass(loader)
        part = self._part()
        now = 0 if part is None else part.epoch
        with lend(loader, lent), _epoch_of(loader.dataset, self._epoch if is_again else None, now):
            iterator = _WatchedIterator(loader, self)
        iterator._index_sampler = loader._index_sampler  # noqa: SLF001
        return iterator

    def _as_later_pass(self, loader: Any) -> dict[str, Any]:
        """Return what makes a new iterator begin as a later pass of persistent workers does.

        That draws no seed from the run's generator, and asks the sampler once.
        """
        part = self._part()
        seed = (self._base_seed or 0) + (0 if part is None else part.epoch)
        lent: dict[str, Any] = {"generator": torch.Generator().manual_seed(seed % (1 << 63))}
        if loader.num_workers:
            index = "sampler" if loader.batch_sampler is None else "batch_sampler"
            lent[index] = _AskedTwice(getattr(loader, index))
        return lent


class _WatchedIterator(TellingIterator, _MultiProcessingDataLoaderIter):
    """An iterator whose persistent workers say what has become of their generators."""

    def __init__(self, loader: Any, watch: LoaderWatch) -> None:
        self.watch = watch
        super().__init__(loader)

    @property
    def _base_seed(self) -> Any:
        return self.watch.base_seed

    @_base_seed.setter
    def _base_seed(self, seed: Any) -> None:
        self.watch.base_seed = seed

    def _reset(self, loader: Any, first_iter: bool = False) -> None:  # noqa: FBT001, FBT002  torch's
        if not first_iter:
            self.watch.begin()
        super()._reset(loader, first_iter)
        if not first_iter:
            self.watch.enter()

    def _get_data(self) -> Any:
        index, data = super()._get_data()  # type: ignore[no-untyped-call]
        if isinstance(data, Said):
            if data.state is not None:
                self.watch.now[data.worker] = data.state
            data = data.batch
        return index, data


class _AskedTwice:
    """A sampler that begins at the second time: a new iterator asks twice."""

    def __init__(self, sampler: Any) -> None:
        self._sampler, self._is_asked = sampler, False

    def __iter__(self) -> Iterator[Any]:
        if self._is_asked:
            return iter(self._sampler)
        self._is_asked = True
        return iter(())


def has_own_workers(loader: Any) -> bool:
    """Return whether a loader has persistent workers of torch's own kind."""
    return (
        loader is not None
        and loader.num_workers > 0
        and loader.persistent_workers
        and type(loader)._get_iterator is DataLoader._get_iterator  # noqa: SLF001
    )


@contextmanager
def lend(owner: Any, attributes: Mapping[str, Any]) -> Iterator[None]:
    """Set attributes of an object, even those that its class does not let anybody set."""
    values = vars(owner)
    before = {name: values[name] for name in attributes if name in values}
    values.update(attributes)
    try:
        yield
    finally:
        for name in attributes.keys() - before.keys():
            values.pop(name, None)
        values.update(before)


@contextmanager
def _epoch_of(dataset: Any, epoch: int | None, now: int) -> Iterator[None]:
    """Let workers copy the dataset as it was in an epoch: later changes do not reach them.

    A dataset that does not say in which it is goes back to ``now``.
    """
    said = getattr(dataset, "epoch", None)
    if epoch is None or not hasattr(dataset, "set_epoch"):
        yield
        return
    dataset.set_epoch(epoch)
    try:
        yield
    finally:
        dataset.set_epoch(said if type(said) is int else now)
