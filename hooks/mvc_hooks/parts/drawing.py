"""Drawing from a loader: batch after batch, pass after pass, and telling of what came.

Where the run is in it, and how it comes back there, is in ``parts/data.py``.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any

from torch import distributed
from torch.utils.data import DataLoader

from mvc import UsageError
from mvc_hooks.parts.loaders import (
    RANDOM_SAMPLERS,
    capture_passes,
    describe_loader,
    describe_order,
    find_epoch_owners,
    find_ordered,
    has_inexact_state,
    list_generators,
    refuse_inexact,
)
from mvc_hooks.parts.own_state import OwnState, forget_position, make_own_state
from mvc_hooks.parts.part import Part, RestoreOrder
from mvc_hooks.parts.reach import find_loaders
from mvc_hooks.parts.rng import capture_generators, capture_rng
from mvc_hooks.parts.tree import hash_values
from mvc_hooks.parts.value import Stateful
from mvc_hooks.parts.watch import LoaderWatch


class DrawnLoader(Part):
    """A loader of batches and the position in it.

    Attributes:
        epoch: passes that are complete.
        batches_drawn: batches, over the whole run.
        is_endless: whether a pass that is over is followed by the next; otherwise by StopIteration,
            as from any iterator, until it is begun.
        draws_in_thread: whether a random order is drawn in a thread of the loader's own.
        on_drawn: gets the path of a torch DataLoader, the indices of a batch that it handed out for
            the run, and whether the run drops that batch.
        on_taken: gets the path of a loader whose order may be computed, the loader, and this part.
    """

    order = RestoreOrder.DATA
    extension = "mvc_data.run"
    is_shared = False  # whether all ranks have one position, whatever their number
    skips_unread = False
    """Whether batches that are yet to come can be left out without loading them: ``leave_out``."""
    is_endless = True
    draws_in_thread = False
    on_drawn: Callable[[str, Any, bool], None] | None = None
    on_taken: Callable[[str, Any, DrawnLoader], None] | None = None
    is_dropping = False  # whether batches that come are dropped
    is_redrawing = False  # whether batches that come were drawn before
    _at_once = 1  # batches of one loader that make one of the run's
    _ordered: Mapping[str, Any] = MappingProxyType({})

    def __init__(self, name: str, loader: Any) -> None:
        """Take a loader; an iterator, which cannot be started again, is a UsageError."""
        self.name = name
        self.epoch = 0
        self.batches_drawn = 0
        self._drawn = 0
        self._start: dict[str, Any] | None = None
        self._watches: dict[str, LoaderWatch] = {}
        self._is_drawing, self._thread = False, 0
        self._arrived: deque[tuple[str, Any]] = deque()
        self._draws_ahead = False
        self._first, self._begun = "", 0
        self._take(loader)

    def _take(self, loader: Any) -> None:
        if hasattr(loader, "__next__") and not isinstance(loader, Stateful):
            raise UsageError(
                f"{self.name} is an iterator, whose position cannot be restored",
                hint="pass the loader itself",
            )
        refuse_inexact(self.name, loader)
        self.remove()
        self.loader = loader
        self._own = make_own_state(loader)
        self._order, self._passes_since = describe_order(loader), self.epoch
        self._passes = capture_passes(loader)
        self._iterator: Any = None
        self._pending: Any = None
        self._is_stateful = isinstance(loader, Stateful) and not has_inexact_state(loader)
        self._is_torchdata = hasattr(loader, "_initial_iter_for_state_dict")
        self._is_bare = not self._is_stateful and not isinstance(loader, DataLoader)
        # Their own position goes on from pass to pass, so a pass begins where they are.
        self._ordered = {} if self._is_stateful else find_ordered(loader)
        self._is_ordered = hasattr(type(loader), "make_part")
        # A commit made before a library handed the loader over has no position.
        self._untouched = {
            "loader": loader.state_dict() if self._is_ordered else {},
            "ordered": self._capture_ordered(),
        }
        self.is_iterated_elsewhere = False
        self._loaders = find_loaders(loader)
        self._given = set(self.generators())
        self._watches = {
            path: LoaderWatch(inner, self, path) for path, inner in self._loaders.items()
        }
        self.tell_taken()

    def next_batch(self) -> Any:
        """Return the next batch, starting the next epoch when one is over; UsageError if there are none."""
        for _ in range(2):
            if self._iterator is None:
                self._begin()
            try:
                arrived = len(self._arrived)
                with self._drawing():
                    batch = next(self._iterator)
            except StopIteration:
                if not self.is_endless:
                    raise
                self._end_epoch()
                continue
            if self._arrived:
                self._tell_drawn(arrived if self._drawn else None)
            elif not self._draws_ahead:
                self._tell_keys(batch)
            self._pending = None
            if not self._drawn and not self._is_stateful:
                self._first = mark_batch(batch)
            self._drawn += 1
            self.batches_drawn += 1
            return batch
        raise self.empty_error()

    def empty_error(self) -> UsageError:
        """Return the error of a loader without batches."""
        return UsageError(f"{self.name} yields no batches", hint="look at its dataset and sampler")

    @property
    def iterator(self) -> object:
        """The iterator of this pass, or None between two."""
        return self._iterator

    def describe(self) -> dict[str, dict[str, object]]:
        """Return, by name, what of each torch DataLoader its batches depend on."""
        loaders = self._loaders.items()
        return {
            f"{self.name}.{_strip(path)}".rstrip("."): describe_loader(loader)
            for path, loader in loaders
        }

    def drop(self, count: int) -> None:
        """Draw that many batches and drop them."""
        self.is_dropping = True
        try:
            for _ in range(count):
                self.next_batch()
        finally:
            self.is_dropping = False

    def leave_out(self, first: int, last: int, reason: str) -> None:
        """Leave out batches that are yet to come, counted from 1, if this part ``skips_unread``."""
        raise NotImplementedError

    def tell_taken(self) -> None:
        """Tell of the loader, and of those in it whose order is computed."""
        for path, loader in {"": self.loader, **self._ordered}.items():
            if self.on_taken is not None:
                self.on_taken(path, loader, self)

    def note_drawn(self, path: str, indices: Any) -> None:
        """Take the indices of a batch that a loader handed out; those drawn elsewhere count at once."""
        self._arrived.append((path, indices))
        if self._is_stateful and not self._is_drawing:
            self._tell_drawn()

    def _tell_drawn(self, arrived: int | None = None) -> None:
        """Pass on what the batch that the run has now was made of.

        If one is drawn ahead, that is what had ``arrived`` before; None: it is the first of a pass, with
        which the one after it has come.
        """
        if not self._draws_ahead:
            arrived = len(self._arrived)
        if arrived is None:
            # What comes before some loader has sent more than its part of a batch.
            counts, arrived = Counter[str](), 0
            for path, _ in self._arrived:
                counts[path] += 1
                if counts[path] > self._at_once:
                    break
                arrived += 1
        for _ in range(arrived):
            path, indices = self._arrived.popleft()
            if self.on_drawn is not None and not self.is_redrawing:
                self.on_drawn(_strip(path), indices, self.is_dropping)

    def _tell_keys(self, batch: Any) -> None:
        """Pass on the keys that the samples of a webdataset have, if no sampler has named them."""
        keys = batch.get("__key__") if isinstance(batch, Mapping) else None
        keys = [keys] if isinstance(keys, str) else keys
        is_named = isinstance(keys, (list, tuple)) and all(isinstance(key, str) for key in keys)
        if keys and is_named and self.on_drawn is not None:
            self.on_drawn("", keys, self.is_dropping)

    def remove(self) -> None:
        """Stop watching the loader."""
        for watch in self._watches.values():
            watch.remove()

    def note_begin(self) -> bool:
        """Note that a loader begins an iterator; return whether that is for this part."""
        self._own.is_within_pass = False
        self._begun += 1
        if self._begun > 1 and self._is_torchdata:
            forget_position(self.loader.dataset)
        is_seen = not self._is_stateful or type(self._own) is not OwnState
        if not self._is_drawing and is_seen:
            self.is_iterated_elsewhere = True
        is_other = self._is_drawing and threading.get_ident() != self._thread
        self.draws_in_thread |= is_other and any(
            isinstance(loader.sampler, RANDOM_SAMPLERS) for loader in self._loaders.values()
        )
        return self._is_drawing

    def _begin(self) -> None:
        for watch in self._watches.values():
            watch.begin_pass()
        self._start = {"rng": capture_rng(), "generators": capture_generators(self.generators())}
        self._arrived.clear()
        if passes := self._count_passes():
            self._start["passes"] = passes
        if ordered := self._capture_ordered():
            self._start["ordered"] = ordered
        self._iterator = self._open()
        self._pending = None

    def _open(self) -> Any:
        with self._drawing():
            return self._own.open()

    def _count_passes(self) -> list[int]:
        """Return what stages have counted; those in workers that live on do it where it is not seen."""
        if not any(watch.is_persistent for watch in self._watches.values()):
            return capture_passes(self.loader)
        return [count + self.epoch - self._passes_since for count in self._passes]

    def _capture_ordered(self) -> dict[str, Any]:
        return {path: inner.state_dict() for path, inner in self._ordered.items()}

    @contextmanager
    def _drawing(self) -> Iterator[None]:
        self._is_drawing, self._thread = True, threading.get_ident()
        try:
            yield
        finally:
            self._is_drawing = False

    def _end_epoch(self) -> None:
        self._iterator = None
        self._drawn = 0
        self.epoch += 1
        for owner in find_epoch_owners(self.loader, self._loaders.values()):
            owner.set_epoch(self.epoch)

    def generators(self) -> dict[str, Any]:
        """Return those of loader, samplers and dataset."""
        return list_generators(self.loader)


def mark_batch(batch: object) -> str:
    """Return what tells a batch from others, and of how many ranks this is one."""
    is_one_of_many = distributed.is_available() and distributed.is_initialized()
    return f"{distributed.get_world_size() if is_one_of_many else 1}:{hash_values(batch)}"


def _strip(path: str) -> str:
    """Return the path of a loader without where Accelerate keeps the user's in its own."""
    return ".".join(step for step in path.split(".") if step != "base_dataloader")
