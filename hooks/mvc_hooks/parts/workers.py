"""What runs in a worker of a DataLoader, so that its generators are known and can be set.

They are the global ones, and those that the dataset reaches. Persistent workers say with their
batches what has become of them; those of torchdata's StatefulDataLoader add them to the state of the
dataset, which torchdata keeps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import IterableDataset, get_worker_info
from torch.utils.data._utils.pin_memory import pin_memory

from mvc import UsageError
from mvc_hooks.parts.own_state import make_own_state
from mvc_hooks.parts.reach import GENERATORS, find_reachable
from mvc_hooks.parts.rng import capture_generators, capture_rng, restore_generators, restore_rng
from mvc_hooks.parts.value import Stateful

if TYPE_CHECKING:
    from collections.abc import Mapping

_MARK, _INNER = "mvc_generators", "dataset"


class Said:
    """A batch, and the generators of its worker if they have moved."""

    def __init__(self, batch: Any, worker: str, state: dict[str, Any] | None) -> None:
        self.batch, self.worker, self.state = batch, worker, state

    def pin_memory(self) -> Said:
        """Return it with its batch in pinned memory, as torch asks."""
        pinned = pin_memory(self.batch)  # type: ignore[no-untyped-call]
        return Said(pinned, self.worker, self.state)


class WorkerWatch:
    """What runs in a worker in place of the loader's own functions, and around them."""

    def __init__(self, loader: Any, given: Mapping[str, Any] | None = None) -> None:
        self._init, self._collate = loader.worker_init_fn, loader.collate_fn
        self._given = dict(given or {})
        self._is_persistent = loader.persistent_workers
        self._generators: dict[str, Any] = {}
        self._last: Any = None
        self._own: Any = None
        self._has_batch = self._is_refusing = False

    def begin(self, worker_id: int) -> None:
        """Begin a persistent worker, with the generators that it had if they are given."""
        if self._init is not None:
            self._init(worker_id)
        self._generators = _find_generators()
        state = self._given.pop(str(worker_id), None)
        if state is not None:
            self._set(state)
        self._last = self._print()

    def say(self, items: Any) -> Said:
        """Make a batch, and say what has become of the generators."""
        batch = self._collate(items)
        if not self._has_batch:  # some datasets make them when the first item is asked for
            self._has_batch, self._generators = True, _find_generators()
        worker, before, self._last = get_worker_info(), self._last, self._print()
        assert worker is not None
        return Said(batch, str(worker.id), None if self._last == before else self._capture())

    def attach(self, worker_id: int) -> None:
        """Make the generators a state of the dataset, which torchdata keeps."""
        self.begin(worker_id)
        dataset: Any = get_worker_info().dataset  # type: ignore[union-attr]  # there is one in a worker
        is_stateful = isinstance(dataset, Stateful)
        if isinstance(dataset, IterableDataset) and not is_stateful:
            # torchdata draws its pass again, with the seed of the first one.
            self._is_refusing = self._is_persistent
            return
        own = (dataset.state_dict, dataset.load_state_dict) if is_stateful else None
        self._own = make_own_state(dataset)
        try:
            dataset.state_dict = lambda: self._add_to(None if own is None else own[0]())
            dataset.load_state_dict = lambda state: self._take_from(state, own and own[1])
        except AttributeError:
            self._is_refusing = True

    def watch(self, items: Any) -> Any:
        """Make a batch, or refuse if it needed generators that cannot be restored."""
        batch = self._collate(items)
        if self._is_refusing and self._print() != self._last:
            raise UsageError(
                "the workers of this StatefulDataLoader draw random numbers, which a resume would "
                "not draw again",
                hint="use torch's DataLoader, or give the dataset state_dict and load_state_dict",
            )
        return batch

    def _add_to(self, inner: Any) -> Any:
        self._own.tidy()
        if self._print() == self._last:
            return inner
        return {_MARK: self._capture(), _INNER: inner}

    def _take_from(self, state: Any, load: Any) -> None:
        if isinstance(state, dict) and _MARK in state:
            self._set(state[_MARK])
            self._last, state = None, state[_INNER]
        if load is not None and state is not None:
            load(state)
            self._own.note_load()

    def _capture(self) -> dict[str, Any]:
        # Arrays: a tensor would travel to the main process as a file descriptor.
        rng: Any = capture_rng()
        states: Any = capture_generators(self._generators)
        arrays = {
            k: state.numpy() for k, state in states.items() if isinstance(state, torch.Tensor)
        }
        rng = {**rng, "torch": rng["torch"].numpy()}
        return {"rng": rng, "generators": states | arrays}

    def _set(self, state: Mapping[str, Any]) -> None:
        rng, worker = state["rng"], get_worker_info()
        assert worker is not None
        restore_rng({**rng, "torch": torch.from_numpy(rng["torch"].copy())})
        states = state["generators"]
        arrays = {key: state for key, state in states.items() if isinstance(state, np.ndarray)}
        tensors = {key: torch.from_numpy(array.copy()) for key, array in arrays.items()}
        missing = restore_generators(worker.dataset, self._generators, states | tensors)
        self._generators = _find_generators()
        if missing:
            raise UsageError(
                f"the dataset in a worker had a generator {missing[0]}, which no longer exists",
                hint="make it in the dataset's __init__ or in worker_init_fn",
            )

    def _print(self) -> Any:
        return _freeze(self._capture())


def _find_generators() -> dict[str, Any]:
    worker = get_worker_info()
    return {} if worker is None else find_reachable(worker.dataset, GENERATORS)


def _freeze(value: Any) -> Any:
    """Return nested values in a form that can be compared; a long tuple has no arrays."""
    if isinstance(value, dict):
        return {key: _freeze(item) for key, item in value.items()}
    if isinstance(value, tuple) and any(isinstance(item, np.ndarray) for item in value):
        return tuple(map(_freeze, value))
    return value.tobytes() if isinstance(value, np.ndarray) else value
