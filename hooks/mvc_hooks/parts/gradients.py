"""Gradients, as far as the next step depends on them.

Between two optimizer steps of a run that accumulates, gradients are state like any other. After a
step they are leftovers: the run clears them before it uses them again. Which of the two it is
cannot be seen from outside, so every parameter reports when its gradient was accumulated into, and
every optimizer when it stepped. If in doubt, gradients are stored.

Of leftovers only their presence is stored, and they come back as zeros: a run that clears gradients
to zeros instead of None makes the optimizer step on parameters that got no gradient, and that must
stay so.

Some runs never clear: they let gradients decay, or add to those of a step that was already taken.
So after its first step every optimizer is watched until its next one: does the first gradient that
is added meet nothing (None, zeros), or what the last step left? Until that is seen, and from then on
if something was met, what a step leaves counts as in use (``habits``). Gradients of parameters that
several optimizers step are in use as long as one of them has not stepped since; which ones have is
stored where that does not follow from the gradients (``open``).

Gradients of parameters that tensor parallelism copies may be sums that are still to be added up over
the ranks: each rank's own summand is stored as it is (``sums``).
"""

from __future__ import annotations

import itertools
import logging
import weakref
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from mvc import UnsupportedError
from mvc_hooks.parts.names import ParameterNames
from mvc_hooks.parts.part import Part, RestoreOrder
from mvc_hooks.parts.shards import (
    build_sum,
    describe_sum,
    drop_unreduced,
    fits_whole,
    list_unreduced,
    make_blank,
)
from mvc_hooks.parts.tree import Difference, Steps, compare_arrays, find_at, is_sharded, locate

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from torch.optim import Optimizer


log = logging.getLogger("mvc_hooks")
UNREDUCED = "unreduced"  # where gradients are named that cannot be stored; see ``refuse_unreduced``
_NEW, _UNSEEN, _CLEARS, _OUTLIVES = "new", "unseen", "clears", "outlives"
"""How an optimizer's gradients fare after its step: no step yet, one but nothing added since, known."""
_LATE = (
    "gradients outlive the optimizer step, though at first they were cleared: the commits since that "
    "changed lack them; from now on they are stored"
)
_EMPTY = (
    "optimizer.step() comes before backward(), or gradients are cleared between them: two steps "
    "found no gradients, though there were some in between"
)


class _Watch:
    """What one optimizer steps, whether those gradients are in use, and whether a step ends that."""

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer = optimizer
        self.is_open = self.has_new = False
        self.habit = _NEW
        self.has_opened = self.has_filled = self.has_stepped = False
        self._empty_steps: int | None = 0
        self._known: dict[int, tuple[torch.Tensor, Any]] = {}
        # Parameters whose next gradient is awaited: (node of autograd, hook); the node must live.
        self._probes: list[tuple[Any, Any]] = []
        self._met: dict[int, bool] = {}
        # Gradients that a step left and that are not cleared since, by parameter.
        self._left: dict[int, weakref.ref[torch.Tensor]] = {}
        self._on_step: Any = None
        register = getattr(optimizer, "register_step_post_hook", None)
        self.can_close = register is not None
        if register is not None:
            self._on_step = register(self._close)
        self.look()

    @property
    def params(self) -> list[torch.Tensor]:
        """The parameters of all groups, also of those that were added late."""
        return [param for group in self._optimizer.param_groups for param in group["params"]]

    def look(self) -> None:
        """Take in parameters that are trained since the last time."""
        self._sizes = self._count_params()
        params = {id(param): param for param in self.params}
        for key in self._known.keys() - params.keys():
            self._known.pop(key)[1].remove()
        new = {k: p for k, p in params.items() if p.requires_grad and k not in self._known}
        for key, param in new.items():
            handle = param.register_post_accumulate_grad_hook(self._open)  # type: ignore[no-untyped-call]  # torch has no types
            self._known[key] = (param, handle)
            self.is_open = self.is_open or param.grad is not None
        self.has_new = self.has_new or bool(new)

    def is_used(self) -> bool:
        return self.is_open or not self.can_close or self.habit != _CLEARS

    def probe(self, params: Iterable[torch.Tensor]) -> None:
        """Find out whether the next gradient of each parameter is added to an old one."""
        for param in params:
            # An empty one tells nothing, and as a sharded DTensor it has no view to ask for its node.
            if param.requires_grad and param.numel():
                with torch.inference_mode(mode=False):  # in it there are no nodes
                    node = torch.autograd.graph.get_gradient_edge(param).node
                hook = node.register_prehook(partial(self._meet, param))
                self._probes.append((node, hook))
                if is_sharded(param) and param.grad is not None:
                    self._left[id(param)] = weakref.ref(param.grad)

    def restore(self, habit: str, *, is_open: bool) -> None:
        self.look()  # parameters that the restored state trains and the live one did not
        self._end_probes()
        self.habit, self.is_open = habit, is_open
        if habit == _UNSEEN and not is_open:
            self.probe(self.params)

    def remove(self) -> None:
        self._end_probes()
        for _, handle in self._known.values():
            handle.remove()
        self._known.clear()
        if self._on_step is not None:
            self._on_step.remove()

    def _end_probes(self) -> None:
        for _, hook in self._probes:
            hook.remove()
        self._probes.clear()
        self._met.clear()
        self._left.clear()

    def _count_params(self) -> list[int]:
        return [len(group["params"]) for group in self._optimizer.param_groups]

    def _open(self, param: torch.Tensor) -> None:
        self.is_open = self.has_opened = True
        # FSDP2 adds to gradients without autograd, whose nodes then tell nothing.
        if id(param) in self._left and id(param) not in self._met:
            self._met[id(param)] = self._left[id(param)]() is param.grad
        if self._empty_steps is not None and not self.has_filled:
            self.has_filled = _has_values(param.grad)

    def _meet(self, param: torch.Tensor, *_: object) -> None:
        # What was cleared once stays so, whatever is added until the next step.
        if self._met.get(id(param), True):
            self._met[id(param)] = _has_values(param.grad)

    def _close(self, *_: object) -> None:
        if self._sizes != self._count_params():  # a look takes longer; what was unfrozen can wait
            self.look()
        self.has_stepped = True
        self._count_empty()
        self.is_open = False
        if self._probes:
            # A step without backward() has gradients set by hand, which replaces them.
            habit = _OUTLIVES if any(self._met.values()) else _CLEARS
            if (self.habit, habit) == (_CLEARS, _OUTLIVES):
                log.warning(_LATE)
            self.habit = habit
            self._end_probes()
        elif self.habit in (_NEW, _UNSEEN):
            self.habit = _UNSEEN
            self.probe(self.params)

    def _count_empty(self) -> None:
        """Tell if the first steps found no gradients, though there were some between them."""
        if self._empty_steps is None or any(_has_values(param.grad) for param in self.params):
            self._empty_steps = None
            return
        self._empty_steps += 1
        if self._empty_steps > 1:
            self._empty_steps = None
            if self.has_filled:  # those of a loss without a slope are zeros from the beginning
                log.warning(_EMPTY)

    def probe_one(self) -> None:
        """Look once more at a run that clears, now that its leftovers were left out."""
        if not self._probes:
            left = (p for p in self.params if p.requires_grad and p.grad is not None)
            self.probe(itertools.islice(left, 1))


class GradsPart(Part):
    """The gradients of all parameters that are trained."""

    order = RestoreOrder.GRADIENTS

    def __init__(self, optimizers: Iterable[Optimizer], names: Mapping[int, str]) -> None:
        """Watch the parameters of optimizers until ``remove``; ``names`` as for ``OptimizerPart``."""
        self._names = names
        self._watches = [_Watch(optimizer) for optimizer in optimizers]

    def _name(self) -> list[list[tuple[str, torch.Tensor]]]:
        """Return name and parameter of everything that each optimizer steps."""
        for watch in self._watches:
            watch.look()
            if watch.has_new and isinstance(self._names, ParameterNames):
                self._names.look()
            watch.has_new = False
        names: dict[int, str] = {}
        for at, watch in enumerate(self._watches):
            for i, param in enumerate(watch.params):
                names.setdefault(id(param), self._names.get(id(param), f"optimizer_{at}.{i}"))
        return [[(names[id(param)], param) for param in watch.params] for watch in self._watches]

    def _params(self) -> dict[str, torch.Tensor]:
        return {name: param for named in self._name() for name, param in named}

    @property
    def has_trained(self) -> bool:
        """Whether a gradient was added or an optimizer has stepped since; True if nothing can tell."""
        return not self._watches or any(
            watch.has_opened or watch.has_stepped for watch in self._watches
        )

    def remove(self) -> None:
        """Remove all hooks."""
        for watch in self._watches:
            watch.remove()

    def capture(self) -> dict[str, object]:
        """Return the gradients in use by name, the names of leftovers, and what is unusual."""
        used: dict[str, torch.Tensor] = {}
        left: dict[str, str] = {}
        places = self._name()
        for watch, named in zip(self._watches, places, strict=True):
            there = {name: p.grad for name, p in named if p.grad is not None}
            if watch.is_used():
                used |= {name: grad.detach() for name, grad in there.items()}
            elif there:
                left |= {name: str(grad.layout) for name, grad in there.items()}
                watch.probe_one()
        sums = {name: sum_ for name, grad in used.items() if (sum_ := describe_sum(grad))}
        state: dict[str, object] = {
            "accumulated": {name: grad for name, grad in used.items() if name not in sums},
            **({"sums": sums} if sums else {}),
            "zeroed": [name for name, layout in left.items() if layout == "torch.strided"],
            "zeroed_sparse": [name for name, layout in left.items() if layout != "torch.strided"],
        }
        habits = [watch.habit for watch in self._watches]
        if set(habits) - {_CLEARS}:
            state["habits"] = habits
        is_open = [watch.is_open for watch in self._watches]
        pairs = zip(places, is_open, _derive_open(places, state), strict=True)
        if any(
            mine != derived and any(param.grad is not None for _, param in named)
            for named, mine, derived in pairs
        ):
            state["open"] = is_open
        if unreduced := list_unreduced(self._modules()):
            state[UNREDUCED] = unreduced
        return state

    def _modules(self) -> list[torch.nn.Module]:
        return self._names.list_modules() if isinstance(self._names, ParameterNames) else []

    def compare(self, live: Any, stored: Any, path: Steps) -> Iterator[Difference]:
        """Compare with the parameters: a gradient may come and go, but it fits its parameter."""
        accumulated = find_at(stored, ("accumulated",))
        if not isinstance(accumulated, dict):
            yield Difference(path, "gradients", "something else")
            return
        known = {*self._params(), *self._names.values()}  # a group may come back with the state
        names = [*accumulated, *stored.get("sums", ()), *stored["zeroed"], *stored["zeroed_sparse"]]
        for name in names:
            if name not in known:
                yield Difference((*path, "accumulated", name), None, "a gradient")
        count = len(self._watches)
        for key in ("habits", "open"):
            if len(stored.get(key, ())) not in (0, count):
                theirs = f"of {len(stored[key])} optimizers"
                yield Difference((*path, key), f"of {count} optimizers", theirs)
        mine = find_at(live, ("accumulated",))
        for name in mine.keys() & accumulated.keys():
            if "sparse" not in (mine[name].kind, accumulated[name].kind):
                place = (*path, "accumulated", name)
                yield from compare_arrays(mine[name], accumulated[name], place)

    def targets(self, captured: Any, stored: Any) -> object:  # noqa: ARG002  leftovers are not in it
        """Return the gradients that are there, in use or left over; new DTensors for others."""
        accumulated = find_at(stored, ("accumulated",))
        lent: dict[str, torch.Tensor] = {}
        for name, param in self._params().items():
            theirs = find_at(accumulated, (name,))
            if param.grad is not None and not describe_sum(param.grad):
                lent[name] = param.grad.detach()
            elif fits_whole(param, theirs):
                lent[name] = make_blank(param, theirs)
        return {"accumulated": lent}

    def restore(self, stored: Any) -> None:
        """Make gradients what they were: stored, zeros or none."""
        drop_unreduced(self._modules())
        places = self._name()
        for name, param in (pair for named in places for pair in named):
            if name in stored["accumulated"]:
                _set_gradient(param, stored["accumulated"][name])
            elif name in stored.get("sums", ()):
                param.grad = build_sum(param, stored["sums"][name])
            elif name in stored["zeroed"]:
                if param.grad is None or param.grad.layout is not torch.strided:
                    param.grad = torch.zeros_like(param)
                else:
                    param.grad.detach().zero_()
            elif name in stored["zeroed_sparse"]:
                param.grad = torch.zeros_like(param, layout=torch.sparse_coo)
            else:
                param.grad = None
        is_open = stored.get("open", _derive_open(places, stored))
        habits = stored.get("habits", [_CLEARS] * len(is_open))
        for watch, habit, in_use in zip(self._watches, habits, is_open, strict=True):
            watch.restore(habit, is_open=in_use)


def _derive_open(
    places: Iterable[Iterable[tuple[str, torch.Tensor]]], state: Mapping[str, Any]
) -> list[bool]:
    """Return whether each optimizer has gradients in use, from which of its gradients are."""
    used = {*state["accumulated"], *state.get("sums", ())}
    left = {*state["zeroed"], *state["zeroed_sparse"]} - used
    return [
        not left & {name for name, _ in named} and any(name in used for name, _ in named)
        for named in places
    ]


def refuse_unreduced(state: object) -> None:
    """Raise UnsupportedError if captured gradients lack some that FSDP2 has yet to average."""
    names = state.get(UNREDUCED) if isinstance(state, dict) else None
    if names:
        raise UnsupportedError(
            f"the gradients of {names[0]}{f' and {len(names) - 1} more' if names[1:] else ''} are not "
            "averaged over the ranks yet, and in no parameter",
            hint="commit after an optimizer step, or leave set_requires_gradient_sync() at True",
        )


def _has_values(gradient: torch.Tensor | None) -> bool:
    if gradient is None:
        return False
    if is_sharded(gradient):
        return True  # every rank has to come to the same answer, and none may ask the others
    values = gradient if gradient.layout is torch.strided else gradient._values()  # noqa: SLF001  the public one refuses uncoalesced tensors
    return bool(values.count_nonzero())


def _set_gradient(param: torch.Tensor, stored: torch.Tensor) -> None:
    live = param.grad
    is_filled = (
        live is not None
        and live.layout is stored.layout is torch.strided
        and locate(live) == locate(stored) is not None
    )
    if not is_filled:
        param.grad = stored.to(param.device)
