"""The position of a run in its data.

The first batch after a resume must be the one that would have come next. How to get there depends
on the loader and on what draws from it:

* A loader with a ``state_dict`` (torchdata's StatefulDataLoader, or the user's own) knows its
  position. But making its iterator draws a seed from the process's generator. So a capture never
  makes an iterator, and a restore makes it at once and puts all generators back afterwards: the
  run's own ``iter(loader)`` then takes that iterator and draws nothing.
* The position in a plain loader is known only to the code that draws from it, which must be
  ``next_batch``. It is (epoch, batches drawn, all generators when the epoch began); a restore
  starts the epoch again with those generators, drops as many batches, and puts the generators back.
  The first batch has to come out as it was: if it does not, a warning says that the order depends on
  something that no commit has.

Generators that the loader reaches (its own, its sampler's, its dataset's) are captured as well: a
restore of the position alone leaves them one draw off, and would shuffle the next epoch differently.
Those in workers are in ``parts/watch.py``.
"""

from __future__ import annotations

import itertools
import threading
import warnings
from collections import Counter, deque
from collections.abc import Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from torch import distributed
from torch.utils.data import DataLoader

from mvc import ConflictError, UsageError
from mvc_hooks.parts.loaders import (
    RANDOM_SAMPLERS,
    capture_passes,
    check_divided,
    count_divided,
    describe_loader,
    describe_order,
    find_epoch_owners,
    find_ordered,
    has_inexact_state,
    has_stateful_iterators,
    has_unknown_order,
    list_generators,
    refuse_inexact,
    restore_passes,
    set_generators,
)
from mvc_hooks.parts.own_state import OwnState, forget_position, make_own_state
from mvc_hooks.parts.part import Part, RestoreOrder
from mvc_hooks.parts.reach import find_loaders
from mvc_hooks.parts.rng import capture_generators, capture_rng, keep_rng, restore_rng
from mvc_hooks.parts.tree import Difference, hash_values
from mvc_hooks.parts.value import Stateful
from mvc_hooks.parts.watch import LoaderWatch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from mvc_hooks.parts.tree import Steps

SHARED = "is_shared"
"""Entry of a position that is that of all ranks, however many there are."""


class DataPart(Part):
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
    is_shared = False
    """Whether all ranks have one position, whatever their number."""
    skips_unread = False
    """Whether batches that are yet to come can be left out without loading them: ``leave_out``."""
    is_endless = True
    draws_in_thread = False
    on_drawn: Callable[[str, Any, bool], None] | None = None
    on_taken: Callable[[str, Any, DataPart], None] | None = None
    is_dropping = False
    """Whether batches that come are dropped."""
    is_redrawing = False
    """Whether batches that come were drawn before."""
    _at_once = 1
    """Batches of one loader that make one of the run's."""
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

    # Drawing.

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
                self._first = _mark(batch)
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

    @property
    def position(self) -> str:
        """How the position comes back: ``exact``, ``drawn again``, or ``unknown``."""
        if self._is_stateful:
            return "exact"
        return "drawn again" if self.can_rewind else "unknown"

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

    @property
    def begins_within_pass(self) -> bool:
        """Whether the loader's next iterator goes on with a pass, so that it may draw no seed."""
        return self._own.is_within_pass

    @property
    def can_rewind(self) -> bool:
        """Whether the run can go back: nothing can rewind an iterator that the run made itself."""
        is_plain_elsewhere = self.is_iterated_elsewhere and self._iterator is None
        return not is_plain_elsewhere and not self._is_foreign()

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

    def _set_ordered(self, stored: Mapping[str, Any]) -> None:
        """Set where loaders in this one are whose order is computed."""
        states = stored.get("ordered", self._untouched["ordered"])
        for path in sorted(states.keys() ^ self._ordered.keys()):
            where = "the commit" if path in self._ordered else "the run"
            raise ConflictError(f"{where} has no position of {self.name}.{path}".rstrip("."))
        for path, inner in self._ordered.items():
            inner.load_state_dict(states[path])

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

    # State.

    def capture(self) -> dict[str, object]:
        """Return the position, if the loader or this part knows it; no generator moves, no iterator is made."""
        self.check_known()
        is_between = self._start is None or self._iterator is None
        is_redrawn = not is_between and not self._is_stateful
        entries = {
            path: watch.capture(is_between=is_between) for path, watch in self._watches.items()
        }
        workers = {path: entry for path, entry in entries.items() if entry}
        has_workers = workers or (self._watches and not self._is_stateful)
        return {
            **({"workers": workers} if has_workers else {}),
            "epoch": self.epoch,
            "drawn": self._drawn,
            "batches_drawn": self.batches_drawn,
            "start": self._start if self._iterator is not None else None,
            "sampler_epoch": [
                getattr(owner, "epoch", None)
                for owner in find_epoch_owners(self.loader, self._loaders.values())
            ],
            "generators": capture_generators(self.generators()),
            "loader": self._capture_loader(),
            **({"first": self._first} if self._drawn and not self._is_stateful else {}),
            **({"order": self._order} if self._order else {}),
            **({"passes": self._count_passes()} if self._passes else {}),
            **({"ordered": ordered} if (ordered := self._capture_ordered()) else {}),
            **(
                {"divided": divided}
                if (divided := count_divided(self._loaders.values())) and is_redrawn
                else {}
            ),
        }

    def restore(self, stored: Any) -> None:
        """Go to a stored position, unless the run holds an iterator, which would go on where it is."""
        if not self.can_rewind:
            raise ConflictError(
                f"{self.name} is already being iterated",
                hint="make iter(loader) after the checkpointer",
            )
        if stored["start"] is not None and stored["loader"] is None:
            check_divided(self.name, stored.get("divided", []), self._loaders.values())
        before, self.epoch = self.epoch, stored["epoch"]
        self._drawn = stored["drawn"]
        self.batches_drawn = stored["batches_drawn"]
        self._start, self._iterator = stored["start"], None
        self._arrived.clear()
        self._first = stored.get("first", "")
        counts = (self._start or stored).get("passes", self._passes)
        restore_passes(self.loader, counts)
        self._passes, self._passes_since = counts, self.epoch
        self._set_ordered(self._start or stored)
        for path, watch in self._watches.items():
            watch.restore(stored.get("workers", {}).get(path, {}))
        owners = find_epoch_owners(self.loader, self._loaders.values())
        for owner, epoch in itertools.zip_longest(owners, stored["sampler_epoch"][: len(owners)]):
            # Accelerate's loader counts epochs itself, as its "iteration"; others keep it to themselves.
            is_moved = before or self.epoch or getattr(owner, "iteration", 0)
            if epoch is not None or is_moved:
                owner.set_epoch(self.epoch if epoch is None else epoch)
        with keep_rng():
            if self._start is not None:
                restore_rng(self._start["rng"])
                set_generators(self.name, self.loader, self._start["generators"], self._given)
            self._reopen(stored["loader"])
        set_generators(self.name, self.loader, stored["generators"], self._given, is_final=True)

    def compare(self, live: Any, stored: Any, path: Steps) -> Iterator[Difference]:
        """Compare who knows the position, and which generators there are; a commit may have fewer."""
        had_state, has_state = stored["loader"] is not None, self._is_stateful
        if has_stateful_iterators(self.loader):
            has_state = had_state
        is_bound = type(self.loader) is not tuple  # a library may hand it over later
        # Between two passes that are drawn here, both know.
        if is_bound and had_state != has_state and (had_state or stored["start"] is not None):
            kinds = "a loader without state_dict", "a loader with state_dict"
            yield Difference(path, kinds[has_state], kinds[had_state])
        before = stored.get("order", self._order)
        if before != self._order and is_bound:
            yield Difference((*path, "order"), f"seeds {self._order}", f"seeds {before}")
        for name in self._given & (live["generators"].keys() - stored["generators"].keys()):
            yield Difference((*path, "generators", name), "a generator", None)

    def _reopen(self, state: Any) -> None:
        if not self._is_stateful:
            if self._start is not None:
                self._iterator = self._open()
                if state is None:
                    self._draw_again()
                else:
                    with self._accepting():
                        self._iterator.set_state(state)
            return
        self._pending = state
        if state is None:
            self.loader.load_state_dict(self._untouched["loader"])
            self.loader.next_iter_state = None
            return
        self._begun = 0
        with self._accepting():
            self._own.load(state)
            if self._is_torchdata:
                self.loader.state_dict()
            if self._start is not None:
                self._iterator = iter(()) if self._own.is_pass_over else self._open()

    def _draw_again(self) -> None:
        for index in range(self._drawn):
            self._prepare_redraw(index)
            arrived, self.is_redrawing = len(self._arrived), True
            try:
                with self._drawing():
                    batch = next(self._iterator, None)
                self._tell_drawn(arrived if index else None)
            finally:
                self.is_redrawing = False
            now = _mark(batch) if index == 0 and self._first else ""
            # Among other ranks it is another slice.
            if now != self._first and now.partition(":")[0] == self._first.partition(":")[0]:
                warnings.warn(
                    f"the first batch of this pass of {self.name} is not the one that the run had: its "
                    "order or its content depends on something that is not in the commit",
                    stacklevel=2,
                )

    @contextmanager
    def _accepting(self) -> Iterator[None]:
        try:
            yield
        except (AssertionError, ValueError, KeyError, TypeError) as error:
            reason = str(error).partition("\n")[0].rstrip(".")
            raise ConflictError(
                f"{self.name} does not accept its state: {reason}",
                hint="go on with as many workers, and the same data, as before",
            ) from error

    def _prepare_redraw(self, index: int) -> None:
        """Do what has to be done before a batch of a pass is drawn again."""

    def _capture_loader(self) -> Any:
        if not self._is_stateful:
            is_held = self._iterator is not None and has_stateful_iterators(self.loader)
            return self._iterator.get_state() if is_held else None
        loader = self.loader
        if self._is_torchdata:
            is_prepared = self._start is not None or loader._initial_iter_for_state_dict  # noqa: SLF001  torchdata has no public way to ask
            if self._pending is not None and is_prepared:
                return self._pending
            if loader._iterator is None:  # noqa: SLF001
                return loader.next_iter_state
        with keep_rng(self.generators().values()):
            return self._own.capture()

    def _is_foreign(self) -> bool:
        loader = self.loader
        live = getattr(loader, "_iterator", None)
        if self._is_bare or live is None or live is self._iterator:
            return False
        if type(self._own) is not OwnState:
            return False
        if getattr(live, "_finished", False):
            return False
        return not getattr(loader, "_initial_iter_for_state_dict", False)

    def check_known(self) -> None:
        """Check that a capture finds the position; UsageError if only other code knows it."""
        self._own.tidy()
        if self.can_rewind:
            return
        hint = "draw the batches with next_batch(), or use torchdata's StatefulDataLoader"
        if not self._is_stateful:
            raise UsageError(
                f"{self.name} is iterated elsewhere and does not know its position", hint=hint
            )
        for name in ("sampler", "batch_sampler"):
            sampler = getattr(self.loader, name, None)
            if has_unknown_order(sampler, self.loader):
                raise UsageError(
                    f"{self.name} has a {type(sampler).__name__}, whose order cannot be restored",
                    hint="pass shuffle=True instead, or draw the batches with next_batch()",
                )

    def check_drawn(self) -> None:
        """Check, after a step, that an iterable of the user's feeds the run; UsageError if it is something else."""
        if self._own.needs_drawing and not self.batches_drawn:
            raise UsageError(
                f"{self.name} has a random order, which its state alone does not bring back",
                hint="draw the batches with next_batch()",
            )
        if self._is_bare and not self.batches_drawn:
            raise UsageError(
                f"{self.name} (a {type(self.loader).__name__}) has no state_dict, and no batch is drawn "
                "from it with next_batch()",
                hint="give it state_dict() and load_state_dict(), or draw the batches with next_batch()",
            )

    # What belongs to the loader.

    def generators(self) -> dict[str, Any]:
        """Return those of loader, samplers and dataset."""
        return list_generators(self.loader)


def _mark(batch: object) -> str:
    """Return what tells a batch from others, and of how many ranks this is one."""
    is_one_of_many = distributed.is_available() and distributed.is_initialized()
    return f"{distributed.get_world_size() if is_one_of_many else 1}:{hash_values(batch)}"


def _strip(path: str) -> str:
    """Return the path of a loader without where Accelerate keeps the user's in its own."""
    return ".".join(step for step in path.split(".") if step != "base_dataloader")
