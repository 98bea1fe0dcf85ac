"""What is probably not meant: said once, in one line, and never about an ordinary loop."""

from __future__ import annotations

import gc
import weakref
from collections import deque
from itertools import chain, islice
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

import torch
from torch.optim.lr_scheduler import LRScheduler

from mvc_hooks.parts.data import DataPart
from mvc_hooks.parts.gradients import GradsPart
from mvc_hooks.parts.module import ModulePart
from mvc_hooks.parts.optimizer import OptimizerPart
from mvc_hooks.parts.optimizer_state import index_parameters
from mvc_hooks.parts.part import DETAILS, Entry, Part, flatten_parts
from mvc_hooks.parts.rng import RngPart, capture_rng
from mvc_hooks.parts.tree import Steps, count_writes, format_path, locate, read_bits, walk_leaves
from mvc_hooks.parts.value import StatefulPart, ValuePart
from mvc_hooks.parts.watch import PASSES, WATCHED

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from torch import nn
    from torch.optim import Optimizer


_MOST_PLACES, _MOST_LEAVES, _TAIL_NOTES = 4, 10_000, 3
_CLOSED = (FunctionType, ModuleType, type, torch.Tensor, str, bytes)
HALF_STEP = (
    "step() came before backward(): it commits a half-finished step, and a resume skips its batch; "
    "call it after optimizer.step()"
)
THREADED = (
    "{} draws its order in its own thread, ahead of the training: commits do not know how far, so a "
    "resume or rollback may get another order; draw it in the thread that calls next_batch()"
)
STRAY_LOADER = (
    "the loop iterates a DataLoader that the checkpointer was not given, or got only after iter(): after a "
    "resume it starts from its beginning; pass dataloader=... and draw the batches with next_batch()"
)


def doubt_parts(
    leaves: Sequence[tuple[Steps, object]],
    modules: Sequence[nn.Module],
    optimizers: Mapping[Optimizer, Steps],
    parts: Mapping[str, Part],
) -> Iterator[str]:
    """Say what the parts of a run (as objects, and as parts) seem to lack."""
    trained = [param for module in modules for param in module.parameters()]
    steps = any(hasattr(leaf, "step") for _, leaf in leaves if not isinstance(leaf, LRScheduler))
    if not steps and any(param.requires_grad for param in trained):
        yield (
            "no optimizer was passed: if one trains the model, its state is in no commit, and a "
            "resume begins with a fresh one; pass optimizer=..."
        )
    inside = {id(param) for param in trained}
    for optimizer, path in optimizers.items():
        params = list(index_parameters(optimizer).values())
        others = [param for param in params if id(param) not in inside]
        held = _locate_values(parts) if others else set()
        lost = [param for param in others if locate(param) not in held]
        if lost and len(lost) == len(params) and modules:
            yield (
                f"{format_path(path)} steps no parameter of any model that was passed: it belongs to "
                "another model, or the model was replaced after it"
            )
        elif lost:
            yield (
                f"{format_path(path)} has {len(lost)} of its {len(params)} parameters in no part: "
                "their values are in no commit; pass them, or their module"
            )


def _locate_values(parts: Mapping[str, Part]) -> set[object]:
    """Return where the tensors of values, objects and optimizers are; None for empty ones."""
    kinds = (ValuePart, StatefulPart, OptimizerPart)
    states = [
        entry.part.capture() for entry in flatten_parts(parts) if isinstance(entry.part, kinds)
    ]
    tensors = (leaf for _, leaf in walk_leaves(states) if isinstance(leaf, torch.Tensor))
    return {None, *map(locate, tensors)}


class StrayWatch:
    """Looks for a DataLoader that training iterates, and that is not part of the run.

    It looks at the ends of the first two steps: an iterator that moved in between feeds the training.
    """

    def __init__(self) -> None:
        self._looks = 0
        self._seen: list[tuple[weakref.ref[Any], int]] = []

    def look(self, own: Sequence[object]) -> bool:
        """Note where all iterators stand, or return whether one went on since, apart from ``own``."""
        self._looks += 1
        WATCHED.update(_find_inside(own))
        if self._looks == 1:
            kinds = tuple(PASSES)
            passes = (value for value in gc.get_objects() if issubclass(type(value), kinds))
            others = (value for value in passes if value not in WATCHED)
            self._seen = [(weakref.ref(value), value._num_yielded) for value in others]  # noqa: SLF001  there is no public way to ask
            return False
        live = [(value, at) for find, at in self._seen if (value := find()) not in WATCHED]
        self._seen = []
        return any(value is not None and value._num_yielded > at for value, at in live)  # noqa: SLF001


def _find_inside(own: Sequence[object]) -> list[Any]:
    """Return the iterators that other ones draw from, as far as those hold them."""
    passes: list[Any] = []
    kinds = tuple(PASSES)
    pending, seen = deque(own), set(map(id, own))
    while pending and len(seen) < _MOST_LEAVES:
        value = pending.popleft()
        if issubclass(type(value), kinds):
            passes.append(value)
            pending.append(getattr(value, "loading", None))  # a computed order has torch's in it
        elif not issubclass(type(value), _CLOSED):
            new = [other for other in gc.get_referents(value) if id(other) not in seen]
            seen.update(map(id, new))
            pending.extend(new)
    return passes


class TailWatch:
    """Looks for what the body of a loop still changes after ``step()``, whose commit does not have it.

    It does so at the first commits alone, since reading takes a millisecond per 200 parameters.
    """

    def __init__(self, entries: Sequence[Entry]) -> None:
        """Take the parts of a run."""
        own = (DataPart, GradsPart)
        self._parts = [
            (path, part)
            for path, part in ((entry.path, entry.part) for entry in entries)
            if path[0] != DETAILS and not isinstance(part, own)
        ]
        self._before: dict[Steps, object] | None = {}
        self._step, self._notes_left = 0, _TAIL_NOTES
        self.has_begun, self._seed = False, 0  # whether a model ran since that is trained

    def note(self, step: int) -> None:
        """Note what a commit of this step has."""
        if self._before is not None and self._notes_left:
            self._before, self._step = self._read(), step
            self._notes_left -= 1
            self.has_begun, self._seed = False, torch.initial_seed()

    def forget(self) -> None:
        """Forget it: there is a later commit, or the run went back."""
        self._before = None if self._before is None else {}

    def look_before_batch(self) -> Iterator[str]:
        """Say what has changed when a loop that is not over ``steps()`` draws the next batch.

        The head of its body may have set rates or seeds, and does so again.
        """
        if self.has_begun or torch.initial_seed() != self._seed:
            self.forget()
        yield from self.look("the next batch", (OptimizerPart,))

    def look(
        self, end: str = "the end of the loop's body", without: tuple[type[Part], ...] = ()
    ) -> Iterator[str]:
        """Say, once, what has changed since, except in parts of some kinds."""
        if not self._before:
            return
        now, before = self._read(without), self._before
        changed = [path for path in now if before.get(path) != now[path]]
        self._before = None if changed else {}
        if changed:
            places = [format_path(path).replace("rng.", "random numbers of ") for path in changed]
            yield (
                f"{', '.join(places[:_MOST_PLACES])} changed between step() and {end}: "
                f"the commit of step {self._step} lacks that, and a resume does not repeat it; "
                "call step() last, even after evaluation"
            )

    def _read(self, without: tuple[type[Part], ...] = ()) -> dict[Steps, object]:
        values: dict[Steps, object] = {}
        for path, part in self._parts:
            if isinstance(part, without):
                continue
            if isinstance(part, ModulePart):
                tensors = chain(part.module.named_parameters(), part.module.named_buffers())
                values |= {(*path, name): count_writes(tensor) for name, tensor in tensors}
            elif isinstance(part, RngPart):
                for name, state in capture_rng().items():
                    values[(*path, name)] = [read_bits(leaf) for _, leaf in walk_leaves(state)]
            else:
                leaves = islice(walk_leaves(part.capture()), _MOST_LEAVES)
                values |= {
                    (*path, *at): leaf for at, leaf in leaves if isinstance(leaf, (int, float, str))
                }
        return values
