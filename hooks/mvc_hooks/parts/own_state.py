"""The own state of a loader, so that it brings back the exact position.

What each library leaves to be done:

* torchdata's nodes, and a streamed dataset of ``datasets`` that is passed itself, say where they are
  only once they are iterated; until then a state that was loaded is what they are at.
* A streamed dataset starts every pass where a loaded state says, unless its epoch is another.
* streaming keeps the position in memory that is shared by processes, and takes a state of an
  earlier epoch than the one it is in for an old one.
* litdata begins the next pass at once after a state of the end of one, and from another number of
  workers or ranks, or another batch size, goes on at a rounded position.
"""

from __future__ import annotations

import copy
from typing import Any

from torch.utils.data import RandomSampler, get_worker_info

from mvc import ConflictError
from mvc_hooks.parts.reach import GENERATORS, find_reachable

_PREPARE = "_prepare_ex_iterable_for_iteration"
"""What a streamed dataset calls when an iterator begins; there is no public way to learn of it."""


class OwnState:
    """A loader with ``state_dict``, which is right without help."""

    is_within_pass = False
    """Whether the iterator that comes next goes on with a pass, and so draws no seed."""
    is_pass_over = False
    """Whether the state that was loaded is that of the end of a pass, where the next one begins."""
    needs_drawing = False
    """Whether the state is exact only together with generators as of the beginning of a pass."""

    def __init__(self, loader: Any) -> None:
        self.loader = loader

    def capture(self) -> Any:
        """Return the state."""
        return self.loader.state_dict()

    def load(self, state: Any) -> None:
        """Take a state, from which the next iterator goes on."""
        self.loader.load_state_dict(state)
        self.note_load()

    def note_load(self) -> None:
        """Note that the loader was given a state."""

    def open(self) -> Any:
        """Return an iterator."""
        return iter(self.loader)

    def tidy(self) -> None:
        """Do what is left to do after a batch."""


class _Nodes(OwnState):
    """``torchdata.nodes.Loader``."""

    def __init__(self, loader: Any) -> None:
        super().__init__(loader)
        self.needs_drawing = bool(find_reachable(loader, (RandomSampler, *GENERATORS)))

    def open(self) -> Any:
        """Return an iterator, which has nothing left if the state is that of the end of a pass."""
        before = self.loader.restart_on_stop_iteration
        self.loader.restart_on_stop_iteration = False
        try:
            return super().open()
        finally:
            self.loader.restart_on_stop_iteration = before

    def capture(self) -> Any:
        pending = self.loader._next_iter_state_dict  # noqa: SLF001  no public way to ask
        return super().capture() if pending is None else pending

    def load(self, state: Any) -> None:
        super().load(state)
        self.loader._iter_for_state_dict = False  # noqa: SLF001  made by a state_dict(), it would ignore the state


class _Streamed(OwnState):
    """``datasets.IterableDataset``."""

    def capture(self) -> Any:
        is_pending = _PREPARE in vars(self.loader)
        return self.loader._starting_state_dict if is_pending else super().capture()  # noqa: SLF001  as above

    def note_load(self) -> None:
        """Forget the state once an iterator has begun from it."""
        setattr(self.loader, _PREPARE, self._prepare)

    def _prepare(self, *args: Any, **options: Any) -> Any:
        delattr(self.loader, _PREPARE)
        prepared = getattr(self.loader, _PREPARE)(*args, **options)
        if get_worker_info() is None:  # in a worker the dataset takes the state after this
            forget_position(self.loader)
        return prepared

    def tidy(self) -> None:
        """Let the next pass of a worker be whole."""
        if _PREPARE not in vars(self.loader):
            forget_position(self.loader)


class _Streaming(OwnState):
    """``streaming.StreamingDataLoader``."""

    def load(self, state: Any) -> None:
        super().load(state)
        self.loader.num_samples_yielded = 0
        self.loader.dataset.next_epoch = max(state["epoch"], 0)
        self.is_within_pass = state["sample_in_epoch"] > 0


class _LitData(OwnState):
    """``litdata.StreamingDataLoader``."""

    def __init__(self, loader: Any) -> None:
        super().__init__(loader)
        self._pending: Any = None
        self._loaded: Any = None

    def capture(self) -> Any:
        self.tidy()
        return super().capture() if self._pending is None else self._pending

    def tidy(self) -> None:
        """Forget the state that was loaded once a batch has come."""
        if self._pending is not None and self._loaded != self._count():
            self._pending = None

    def _count(self) -> Any:
        loader = self.loader
        return loader._num_samples_yielded_streaming, dict(loader._num_samples_yielded_wrapper)  # noqa: SLF001  as above

    def load(self, state: Any) -> None:
        before, now = state["dataset"], self.loader.state_dict()["dataset"]
        for name in ("world_size", "num_workers", "batch_size"):
            then, here = before.get(name), now.get(name)
            if then != here:
                raise ConflictError(
                    f"litdata rounds a position in a pass when {name} changes ({then} in the commit, "
                    f"{here} now), which repeats samples",
                    hint=f"go on with {name} {then}",
                )
        super().load(copy.deepcopy(state))
        self._pending, self._loaded = state, self._count()
        self.is_within_pass = self.loader.restore
        self.is_pass_over = not self.loader.restore and state["num_samples_yielded"] not in (0, {})


_KINDS = {
    ("torchdata", "Loader"): _Nodes,
    ("datasets", "IterableDataset"): _Streamed,
    ("streaming", "StreamingDataLoader"): _Streaming,
    ("litdata", "StreamingDataLoader"): _LitData,
}


def forget_position(dataset: Any) -> None:
    """Let the passes that a streamed dataset of ``datasets`` begins from now on be whole."""
    if getattr(dataset, "_starting_state_dict", None) is not None:
        dataset._starting_state_dict = None  # noqa: SLF001  as above


def make_own_state(loader: Any) -> OwnState:
    """Return what reads and sets the own state of a loader."""
    kinds = {(find_root(kind), kind.__name__): kind for kind in type(loader).__mro__}
    return next((make(loader) for key, make in _KINDS.items() if key in kinds), OwnState(loader))


def find_root(kind: type) -> str:
    """Return the package that a class is of."""
    return kind.__module__.partition(".")[0]
