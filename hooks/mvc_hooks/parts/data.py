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
import warnings
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from mvc import ConflictError, UsageError
from mvc_hooks.parts.drawing import DrawnLoader, mark_batch
from mvc_hooks.parts.loaders import (
    check_divided,
    count_divided,
    find_epoch_owners,
    has_stateful_iterators,
    has_unknown_order,
    restore_passes,
    set_generators,
)
from mvc_hooks.parts.own_state import OwnState
from mvc_hooks.parts.rng import capture_generators, keep_rng, restore_rng
from mvc_hooks.parts.tree import Difference, Steps

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


SHARED = "is_shared"  # entry of a position that is that of all ranks, however many there are


class DataPart(DrawnLoader):
    """A loader of batches and the position in it."""

    @property
    def position(self) -> str:
        """How the position comes back: ``exact``, ``drawn again``, or ``unknown``."""
        if self._is_stateful:
            return "exact"
        return "drawn again" if self.can_rewind else "unknown"

    @property
    def begins_within_pass(self) -> bool:
        """Whether the loader's next iterator goes on with a pass, so that it may draw no seed."""
        return self._own.is_within_pass

    @property
    def can_rewind(self) -> bool:
        """Whether the run can go back: nothing can rewind an iterator that the run made itself."""
        is_plain_elsewhere = self.is_iterated_elsewhere and self._iterator is None
        return not is_plain_elsewhere and not self._is_foreign()

    def _set_ordered(self, stored: Mapping[str, Any]) -> None:
        """Set where loaders in this one are whose order is computed."""
        states = stored.get("ordered", self._untouched["ordered"])
        for path in sorted(states.keys() ^ self._ordered.keys()):
            where = "the commit" if path in self._ordered else "the run"
            raise ConflictError(f"{where} has no position of {self.name}.{path}".rstrip("."))
        for path, inner in self._ordered.items():
            inner.load_state_dict(states[path])

    def capture(self) -> dict[str, object]:
        """Return the position, if the loader or this part knows it; no generator moves, no iterator is made."""
        self.check_known()
        is_between = self._start is None or self._iterator is None
        entries = {
            path: watch.capture(is_between=is_between) for path, watch in self._watches.items()
        }
        workers = {path: entry for path, entry in entries.items() if entry}
        has_workers = workers or (self._watches and not self._is_stateful)
        owners = find_epoch_owners(self.loader, self._loaders.values())
        more: dict[str, Any] = {
            "order": self._order,
            "passes": self._passes and self._count_passes(),
            "ordered": self._capture_ordered(),
        }
        if not is_between and not self._is_stateful:  # what is drawn again
            more["divided"] = count_divided(self._loaders.values())
        return {
            **({"workers": workers} if has_workers else {}),
            "epoch": self.epoch,
            "drawn": self._drawn,
            "batches_drawn": self.batches_drawn,
            "start": self._start if self._iterator is not None else None,
            "sampler_epoch": [getattr(owner, "epoch", None) for owner in owners],
            "generators": capture_generators(self.generators()),
            "loader": self._capture_loader(),
            **({"first": self._first} if self._drawn and not self._is_stateful else {}),
            **{name: value for name, value in more.items() if value},
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
            now = mark_batch(batch) if index == 0 and self._first else ""
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
