"""The data of a run whose loop belongs to a library: drawn here, position and all.

A library iterates a loader itself, and what it knows of the position is not enough to continue with
the same bits. So it is given a ``Feed`` instead of its loader. Every batch it asks for is drawn
here, and the moment of asking is when a run is consistent: the step before is complete with all
that followed it (validation, schedulers, logging), and nothing of the next has begun.

A restored position is only taken up at the next draw: until then the library may still begin
iterators, look at data, or validate, as it does before every fit.

To take it up, a pass is begun and drawn again as it was. Batches that were used may come out
differently, but one that was drawn ahead of its use may not: Accelerate's loaders hold one batch
back. So the state of the generators is kept at the first draw of a pass, when samplers seed
themselves, and at the last one, when that batch was made.

The loaders of evaluation, which a library iterates itself, are only hidden from the run (``EvaluationLoaders``).
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

from mvc import UsageError
from mvc_hooks.parts.data import SHARED, DataPart
from mvc_hooks.parts.reach import find_loaders
from mvc_hooks.parts.rng import capture_rng, restore_rng
from mvc_hooks.parts.watch import LoaderWatch, has_own_workers

if TYPE_CHECKING:
    from collections.abc import Callable

_HIDDEN = frozenset({"set_epoch", "sampler", "batch_sampler"})


class EvaluationLoaders:
    """Loaders that a library iterates beside training, in the order in which it takes them.

    Only persistent workers matter: they draw a seed from the process's generator at their first
    pass, and no more at later ones.
    """

    epoch = 0

    def __init__(self) -> None:
        self._watches: list[LoaderWatch] = []
        self._restored: list[dict[str, Any]] = []

    def note_begin(self) -> bool:
        """Count no passes."""
        return False

    def note_drawn(self, path: str, indices: object) -> None:
        """Record nothing: no state learns from these samples."""

    def watch(self, loader: Any) -> None:
        """Watch a loader, which takes up its restored state."""
        for inner in find_loaders(loader).values():
            if has_own_workers(inner) and "_get_iterator" not in vars(inner):
                self._watches.append(LoaderWatch(inner, self))
                if self._restored:
                    self._watches[-1].restore(self._restored.pop(0))

    def _forget_dead(self) -> None:
        """Leave out loaders that the library has replaced."""
        self._watches = [watch for watch in self._watches if watch.is_persistent]

    def capture(self) -> list[dict[str, Any]]:
        """Return the states of those that began, up to the last such."""
        self._forget_dead()
        states = [watch.capture(is_between=True) for watch in self._watches] + self._restored
        while states and not states[-1]:
            states.pop()
        return states

    def restore(self, states: list[dict[str, Any]]) -> None:
        """Begin again where the states say, or at the start where there is none."""
        self._forget_dead()
        for index, watch in enumerate(self._watches):
            watch.restore(states[index] if index < len(states) else {})
        self._restored = states[len(self._watches) :]

    def remove(self) -> None:
        """Stop watching."""
        for watch in self._watches:
            watch.remove()


class FeedPart(DataPart):
    """A loader that a library hands over later, and the position in it."""

    def __init__(self, name: str) -> None:
        super().__init__(name, ())
        # Whether the library has finished a pass, so that the next draw begins another.
        self.is_between = False
        # Whether passes that the library begins continue this one, until the next draw.
        self.is_held = False
        self.evaluation = EvaluationLoaders()  # the loaders that the library iterates itself
        # Those of the library on which the steps depend; a resume shows which were edited.
        self.settings: dict[str, object] = {}
        self._target: dict[str, Any] | None = None
        self._at_draw: dict[str, object] = {}

    def bind(self, loader: Any, *, is_endless: bool = True) -> None:
        """Take the loader, or a new one for the next pass."""
        # Accelerate's loaders all have state_dict, most of them with nothing in it.
        is_accelerate = hasattr(loader, "base_dataloader")
        if is_accelerate and getattr(loader, "use_stateful_dataloader", False):
            raise UsageError(
                "use_stateful_dataloader draws the order of the first pass before the run begins",
                hint="leave it out; the position in any loader is restored without it",
            )
        self._take(loader)
        self.is_endless = is_endless
        self._draws_ahead = is_accelerate or getattr(loader, "draws_ahead", False)
        if self._draws_ahead and self._ordered:
            raise UsageError(
                "batches of a ConsistentDataLoader would be drawn ahead, to find the end of a pass that "
                "has no length",
                hint="say how long a pass is: limit_train_batches=..., for Lightning",
            )
        self._is_stateful = self._is_stateful and not is_accelerate
        self._at_once = 1
        if is_accelerate:
            # One rank may draw a batch for each rank, unless it splits one batch among them.
            is_drawn_once = getattr(loader, "split_batches", True) or loader.submesh_tp is not None
            self._at_once = 1 if is_drawn_once else int(loader.state.num_processes)

    @property
    def is_shared(self) -> bool:  # type: ignore[override]
        """Whether all loaders in it have a computed order, so that their position is that of all ranks."""
        return self._is_ordered or (bool(self._ordered) and not self._loaders)

    def describe(self) -> dict[str, dict[str, object]]:
        """Return what the steps depend on, that of the loaders included."""
        return {**super().describe(), "settings": self.settings}

    def note_settings(self, owner: object, names: tuple[str, ...]) -> None:
        """Note settings of the library, as far as this version of it has them."""
        self.settings = {name: str(getattr(owner, name)) for name in names if hasattr(owner, name)}

    def forget(self) -> None:
        """Count no batches that were drawn before the run."""
        self.epoch = self.batches_drawn = self._drawn = 0

    @property
    def can_rewind(self) -> bool:
        """Whether the run can go back: always, if this part draws."""
        return bool(self.batches_drawn) or not self.is_iterated_elsewhere

    @property
    def place(self) -> tuple[int, int]:
        """The pass that goes on, or comes next, and how many batches of it were drawn."""
        return (self.epoch + 1, 0) if self.is_between else (self.epoch, self._drawn)

    @property
    def will_begin(self) -> bool:
        """Whether the restored position is between two passes."""
        return self._target is not None and bool(self._target["between"])

    def begin_pass(self) -> None:
        """Begin the loader, or the next pass if batches were drawn."""
        if self._target is not None or self.is_held:
            return
        if self._drawn:
            self._end_epoch()
        self._begin()

    def next_batch(self) -> Any:
        """Return the next batch, from the restored position if there is one."""
        self._go_to_target()
        self.is_held = False
        now = capture_rng() if self._draws_ahead or not self._drawn else None
        if not self._drawn and self._iterator is not None:
            self._at_draw = {"first": now}
        batch = super().next_batch()
        if self._draws_ahead and self._drawn > 1:
            self._at_draw["last"] = now
        return batch

    def _begin(self) -> None:
        super()._begin()
        self._at_draw = {"first": capture_rng()}

    def capture(self) -> dict[str, object]:
        """Return the position; the restored one until it is taken up."""
        if self._target is not None:
            return self._target
        at_draw = self._at_draw if self._drawn else {}
        evaluation = self.evaluation.capture()
        state = {
            **super().capture(),
            "between": self.is_between,
            "at_draw": at_draw,
            **({"evaluation": evaluation} if evaluation else {}),
        }
        if self.is_shared:
            state[SHARED] = True
            state.pop("first", None)  # another slice on another rank
        return state

    def restore(self, stored: Any) -> None:
        """Remember where to go."""
        self._target = stored
        self.batches_drawn = stored["batches_drawn"]
        # The ledger goes by the positions that loaders know by themselves.
        if self._is_ordered:
            self.loader.load_state_dict(stored["loader"] or self._untouched["loader"])
        elif self._ordered:
            self._set_ordered(stored)
        self.evaluation.restore(stored.get("evaluation", []))

    def _go_to_target(self) -> None:
        target, self._target = self._target, None
        if target is None:
            return
        # The library may have begun them since.
        self.evaluation.restore(target.get("evaluation", []))
        is_between = target["between"]
        lives_on = any(watch.is_persistent for watch in self._watches.values())
        if is_between and not self._is_stateful and not lives_on:
            # The finished pass does not have to be drawn again.
            target = {**target, "start": None}
        self._at_draw = dict(target["at_draw"])
        super().restore(target)
        for path in self.generators().keys() - target["generators"].keys():
            warnings.warn(
                f"the commit has no state for the generator {path} of the data, which stays as it is",
                stacklevel=2,
            )
        if is_between:
            self.begin_pass()

    def _prepare_redraw(self, index: int) -> None:
        if index == 0:
            restore_rng(self._at_draw["first"])
        elif index == self._drawn - 1 and self._draws_ahead:
            restore_rng(self._at_draw["last"])


class Feed:
    """What a library iterates instead of a loader; other attributes are the loader's.

    With a length it never ends: libraries count the batches of a pass.
    """

    def __init__(
        self, data: FeedPart, loader: Any, draw: Callable[[], Any], *, is_endless: bool
    ) -> None:
        self._data, self._loader, self._draw = data, loader, draw
        data.bind(loader, is_endless=is_endless)

    def __iter__(self) -> Feed:
        self._data.begin_pass()
        return self

    def __next__(self) -> Any:
        return self._draw()

    def __len__(self) -> int:
        return len(self._loader)

    def __getattr__(self, name: str) -> Any:
        if name in _HIDDEN or name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._loader, name)

    @property
    def worker_init_fn(self) -> Any:
        """The loader's, which libraries replace."""
        return self._loader.worker_init_fn

    @worker_init_fn.setter
    def worker_init_fn(self, function: Any) -> None:
        self._loader.worker_init_fn = function
