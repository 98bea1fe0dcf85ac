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

Generators of the loader and its sampler are captured as well: a restore of the position alone
leaves them one draw off, and would shuffle the next epoch differently.

Generators in workers are exact for a plain loader (they go through the same draws again), not for
torchdata's: a dataset that augments in workers should derive its random numbers from the index.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import DataLoader, RandomSampler, SubsetRandomSampler, WeightedRandomSampler

from mvc import ConflictError, UsageError
from mvc_hooks.parts.part import Part, RestoreOrder
from mvc_hooks.parts.rng import capture_rng, keep_rng, restore_rng
from mvc_hooks.parts.value import Stateful

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mvc_hooks.parts.tree import Difference, Steps

_GENERATORS = (
    "generator",
    "sampler.generator",
    "batch_sampler.generator",
    "batch_sampler.sampler.generator",
)
_WITH_EPOCH = ("", "sampler", "batch_sampler", "batch_sampler.sampler", "dataset")
_RANDOM = (RandomSampler, SubsetRandomSampler, WeightedRandomSampler)


class DataPart(Part):
    """A loader of batches and the position in it; ``batches_drawn`` counts over the whole run."""

    order = RestoreOrder.DATA

    def __init__(self, name: str, loader: Any) -> None:
        """Take a loader; an iterator, which cannot be started again, is a UsageError."""
        if hasattr(loader, "__next__") and not isinstance(loader, Stateful):
            raise UsageError(
                f"{name} is an iterator, whose position cannot be restored",
                hint="pass the loader itself",
            )
        self._name = name
        self.loader = loader
        self.epoch = 0
        self.batches_drawn = 0
        self._drawn = 0
        self._start: dict[str, Any] | None = None
        self._iterator: Any = None
        self._pending: Any = None
        self._is_stateful = isinstance(loader, Stateful)
        self._watch = None if self._is_stateful else _watch_iterators(loader, self)
        self.is_iterated_elsewhere = False

    # Drawing.

    def next_batch(self) -> Any:
        """Return the next batch, starting the next epoch when one is over; UsageError if there is none."""
        for _ in range(2):
            if self._iterator is None:
                self._begin()
            try:
                batch = next(self._iterator)
            except StopIteration:
                self._end_epoch()
                continue
            self._pending = None
            self._drawn += 1
            self.batches_drawn += 1
            return batch
        raise UsageError(f"{self._name} gives no batch", hint="look at its dataset and sampler")

    def drop(self, count: int) -> None:
        """Draw so many batches and drop them."""
        for _ in range(count):
            self.next_batch()

    @property
    def can_rewind(self) -> bool:
        """Whether the run can go back: nothing can rewind an iterator that the run made itself."""
        is_plain_elsewhere = self.is_iterated_elsewhere and self._iterator is None
        return not is_plain_elsewhere and not self._is_foreign()

    def remove(self) -> None:
        """Stop watching the loader."""
        if self._watch is not None and self.loader.__dict__.get("_get_iterator") is self._watch:
            del self.loader._get_iterator  # noqa: SLF001  set by _watch_iterators

    def _begin(self) -> None:
        self._start = {"rng": capture_rng(), "generators": self._capture_generators()}
        self._iterator = self._open()
        self._pending = None

    def _open(self) -> Any:
        watch, self._watch = self._watch, None
        iterator = iter(self.loader)
        self._watch = watch
        return iterator

    def _end_epoch(self) -> None:
        self._iterator = None
        self._drawn = 0
        self.epoch += 1
        for owner in self._find_epoch_owners():
            owner.set_epoch(self.epoch)

    # State.

    def capture(self) -> dict[str, object]:
        """Return the position, if the loader or this part knows it; no generator moves, no iterator is made."""
        self._check_known()
        return {
            "epoch": self.epoch,
            "drawn": self._drawn,
            "batches_drawn": self.batches_drawn,
            "start": self._start if self._iterator is not None else None,
            "sampler_epoch": [getattr(one, "epoch", None) for one in self._find_epoch_owners()],
            "generators": self._capture_generators(),
            "loader": self._capture_loader(),
        }

    def restore(self, stored: Any) -> None:
        """Go to a stored position, unless the run holds an iterator, which would go on where it is."""
        if not self.can_rewind:
            raise ConflictError(
                f"{self._name} is already being iterated",
                hint="make iter(loader) after the checkpointer",
            )
        self.epoch = stored["epoch"]
        self._drawn = stored["drawn"]
        self.batches_drawn = stored["batches_drawn"]
        self._start, self._iterator = stored["start"], None
        owners = self._find_epoch_owners()
        for owner, epoch in zip(owners, stored["sampler_epoch"], strict=False):
            if epoch is not None:
                owner.set_epoch(epoch)
        with keep_rng():
            if self._start is not None:
                restore_rng(self._start["rng"])
                self._set_generators(self._start["generators"])
            self._reopen(stored["loader"])
        self._set_generators(stored["generators"])

    def compare(self, live: Any, stored: Any, path: Steps) -> tuple[Difference, ...]:  # noqa: ARG002  as parts have it
        """Return nothing: every position can be restored."""
        return ()

    def _reopen(self, state: Any) -> None:
        if not self._is_stateful:
            if self._start is not None:
                self._iterator = self._open()
                for _ in range(self._drawn):
                    next(self._iterator)
            return
        self._pending = state
        if state is None:
            self.loader.load_state_dict({})
            self.loader.next_iter_state = None
            return
        self.loader.load_state_dict(state)
        if hasattr(self.loader, "_initial_iter_for_state_dict"):
            self.loader.state_dict()
        if self._start is not None:
            self._iterator = self._open()

    def _capture_loader(self) -> Any:
        if not self._is_stateful:
            return None
        loader = self.loader
        if hasattr(loader, "_initial_iter_for_state_dict"):
            is_prepared = self._start is not None or loader._initial_iter_for_state_dict  # noqa: SLF001  torchdata has no public way to ask
            if self._pending is not None and is_prepared:
                return self._pending
            if loader._iterator is None:  # noqa: SLF001
                return loader.next_iter_state
        with keep_rng(self._generators().values()):
            return loader.state_dict()

    def _is_foreign(self) -> bool:
        loader = self.loader
        live = getattr(loader, "_iterator", None)
        if live is None or live is self._iterator:
            return False
        if getattr(live, "_finished", False):
            return False
        return not getattr(loader, "_initial_iter_for_state_dict", False)

    def _check_known(self) -> None:
        if self.can_rewind:
            return
        sampler = getattr(self.loader, "sampler", None)
        hint = "draw the batches with next_batch(), or use torchdata's StatefulDataLoader"
        if not self._is_stateful:
            raise UsageError(
                f"{self._name} is iterated elsewhere and does not know its position", hint=hint
            )
        if isinstance(sampler, _RANDOM) and not isinstance(sampler, Stateful):
            raise UsageError(
                f"{self._name} has a {type(sampler).__name__}, whose order cannot be restored",
                hint="pass shuffle=True instead, or draw the batches with next_batch()",
            )

    # What belongs to the loader.

    def _generators(self) -> dict[str, torch.Generator]:
        found = {path: _find_attribute(self.loader, path) for path in _GENERATORS}
        return {path: one for path, one in found.items() if isinstance(one, torch.Generator)}

    def _capture_generators(self) -> dict[str, torch.Tensor]:
        return {path: one.get_state() for path, one in self._generators().items()}

    def _set_generators(self, states: dict[str, torch.Tensor]) -> None:
        for path, generator in self._generators().items():
            if path in states:
                generator.set_state(states[path])

    def _find_epoch_owners(self) -> list[Any]:
        owners: list[Any] = []
        for path in _WITH_EPOCH:
            owner = _find_attribute(self.loader, path) if path else self.loader
            if hasattr(owner, "set_epoch") and all(owner is not other for other in owners):
                owners.append(owner)
        return owners


def _find_attribute(value: Any, path: str) -> Any:
    for name in path.split("."):
        value = getattr(value, name, None)
    return value


def _watch_iterators(loader: Any, part: DataPart) -> Any:
    """Note on the part when other code makes an iterator of a torch DataLoader.

    Nothing here may hold the loader or the part: an iterator that is freed late, with a cycle of
    references, waits many seconds for each of its workers.
    """
    if not isinstance(loader, DataLoader):
        return None
    loader_ref, part_ref = weakref.ref(loader), weakref.ref(part)

    def watch() -> Iterator[Any]:
        live_loader, live_part = loader_ref(), part_ref()
        assert live_loader is not None
        if live_part is not None and live_part._watch is not None:  # noqa: SLF001  None while the part itself iterates
            live_part.is_iterated_elsewhere = True
        return type(live_loader)._get_iterator(live_loader)  # noqa: SLF001  iter() looks only at the class, and calls this

    loader._get_iterator = watch  # type: ignore[assignment, method-assign]  # noqa: SLF001  as above
    return watch
