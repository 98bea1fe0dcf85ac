"""Gradients, as far as the next step depends on them.

Between two optimizer steps of a run that accumulates, gradients are state like any other. After a
step they are leftovers: the run clears them before it uses them again. Which of the two it is
cannot be seen from outside, so every parameter reports when its gradient was accumulated into, and
every optimizer when it stepped. If in doubt, gradients are stored.

Of leftovers only their presence is stored, and they come back as zeros: a run that clears gradients
to zeros instead of None makes the optimizer step on parameters that got no gradient, and that must
stay so. Left out on purpose: a run that goes on accumulating into the gradients of a step that was
already taken.

The memory of DDP's PowerSGD communication hook belongs to *buckets*, which DDP rebuilds after its first backward pass, in the
order in which gradients arrived. A restored state compresses from its first step on, so in a fresh
process it would meet the buckets from before that: if sizes differ, it fails; if they do not, it adds
the errors of one parameter to another. So the hook must have run once in this process before a state
with memory is restored, as its ``iter`` shows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from mvc import ConflictError
from mvc_hooks.parts.part import Part, RestoreOrder
from mvc_hooks.parts.tree import (
    ABSENT,
    Difference,
    compare_arrays,
    compare_keys,
    find_at,
    format_path,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from torch.optim import Optimizer

    from mvc_hooks.parts.tree import Steps

_MEMORY = ("error_dict", "p_memory_dict", "q_memory_dict")


class _Watch:
    """Parameters that are stepped together, and whether their gradients are in use."""

    def __init__(self, params: list[torch.Tensor], optimizer: Optimizer | None) -> None:
        self.params = params
        self.is_open = False
        self._handles: dict[int, Any] = {}
        self._on_step: Any = None
        register = getattr(optimizer, "register_step_post_hook", None)
        self.can_close = register is not None
        if register is not None:
            self._on_step = register(self._close)
        self.look()

    def look(self) -> None:
        """Take in parameters that are trained since the last time."""
        for param in self.params:
            if param.requires_grad and id(param) not in self._handles:
                handle = param.register_post_accumulate_grad_hook(self._open)  # type: ignore[no-untyped-call]  # torch has no types
                self._handles[id(param)] = handle
                self.is_open = self.is_open or param.grad is not None

    def is_used(self) -> bool:
        self.look()
        return self.is_open or not self.can_close

    def remove(self) -> None:
        for handle in self._handles.values():
            handle.remove()
        self._handles.clear()
        if self._on_step is not None:
            self._on_step.remove()

    def _open(self, _: torch.Tensor) -> None:
        self.is_open = True

    def _close(self, *_: object) -> None:
        self.is_open = False


class GradsPart(Part):
    """The gradients of all parameters that are trained."""

    order = RestoreOrder.GRADIENTS

    def __init__(self, optimizers: Iterable[Optimizer], names: Mapping[int, str]) -> None:
        """Watch the parameters of optimizers until ``remove``; ``names`` as for ``OptimizerPart``."""
        self._params: dict[str, torch.Tensor] = {}
        self._watches: list[_Watch] = []
        for number, optimizer in enumerate(optimizers):
            params = [p for group in optimizer.param_groups for p in group["params"]]
            self._watches.append(_Watch(params, optimizer))
            for index, param in enumerate(params):
                name = names.get(id(param), f"optimizer_{number}.{index}")
                self._params.setdefault(name, param)
        self._names = {id(param): name for name, param in self._params.items()}

    def remove(self) -> None:
        """Remove all hooks."""
        for watch in self._watches:
            watch.remove()

    def capture(self) -> dict[str, object]:
        """Return the gradients in use by name, and the names of leftovers."""
        used: dict[str, torch.Tensor] = {}
        left: dict[str, str] = {}
        for watch in self._watches:
            is_used = watch.is_used()
            for param in watch.params:
                name = self._names[id(param)]
                if param.grad is not None and is_used:
                    used[name] = param.grad.detach()
                elif param.grad is not None:
                    left[name] = str(param.grad.layout).removeprefix("torch.")
        return {
            "accumulated": used,
            "zeroed": [name for name, layout in left.items() if layout == "strided"],
            "zeroed_sparse": [name for name, layout in left.items() if layout != "strided"],
        }

    def compare(self, live: Any, stored: Any, path: Steps) -> Iterator[Difference]:
        """Compare with the parameters: a gradient may come and go, but it fits its parameter."""
        accumulated = find_at(stored, ("accumulated",))
        if not isinstance(accumulated, dict):
            yield Difference(path, "gradients", "something else")
            return
        names = [*accumulated, *find_at(stored, ("zeroed",)), *find_at(stored, ("zeroed_sparse",))]
        for name in names:
            if name not in self._params:
                yield Difference((*path, "accumulated", name), None, "a gradient")
        mine = find_at(live, ("accumulated",))
        for name in mine.keys() & accumulated.keys():
            if "sparse" not in (mine[name].kind, accumulated[name].kind):
                place = (*path, "accumulated", name)
                yield from compare_arrays(mine[name], accumulated[name], place)

    def targets(self, captured: Any) -> object:  # noqa: ARG002  leftovers are not in it
        """Return the gradients that are there, in use or left over."""
        return {
            "accumulated": {
                name: param.grad.detach()
                for name, param in self._params.items()
                if param.grad is not None
            }
        }

    def restore(self, stored: Any) -> None:
        """Make gradients what they were: stored, zeros or none."""
        for name, param in self._params.items():
            if name in stored["accumulated"]:
                _set_gradient(param, stored["accumulated"][name])
            elif name in stored["zeroed"]:
                _clear_gradient(param)
            elif name in stored["zeroed_sparse"]:
                param.grad = torch.zeros_like(param, layout=torch.sparse_coo)
            else:
                param.grad = None
        for watch in self._watches:
            watch.look()  # parameters that the restored state trains and the live one did not
            watch.is_open = any(
                self._names[id(param)] in stored["accumulated"] for param in watch.params
            )


def _set_gradient(param: torch.Tensor, stored: torch.Tensor) -> None:
    live = param.grad
    is_filled = (
        live is not None
        and live.layout is stored.layout is torch.strided
        and live.data_ptr() == stored.data_ptr()
    )
    if not is_filled:
        param.grad = stored.to(param.device)


def _clear_gradient(param: torch.Tensor) -> None:
    if param.grad is None or param.grad.layout is not torch.strided:
        param.grad = torch.zeros_like(param)
    else:
        param.grad.detach().zero_()


class PowerSgdPart(Part):
    """The state of DDP's PowerSGD hook, which has no ``state_dict``; the process group stays."""

    _LEFT = ("process_group",)

    def __init__(self, state: Any) -> None:
        self._state = state

    def capture(self) -> dict[str, object]:
        """Return all of its fields, and the state of its generator."""
        names = [name for name in type(self._state).__slots__ if name not in self._LEFT]
        fields = {name: getattr(self._state, name) for name in names}
        return fields | {"rng": self._state.rng.get_state(legacy=False)}

    def compare(self, live: Any, stored: Any, path: Steps) -> Iterator[Difference]:
        """Compare the fields; there must be no stored memory before DDP has made its final buckets."""
        has_memory = any(find_at(stored, (name,)) not in ({}, ABSENT) for name in _MEMORY)
        if has_memory and find_at(live, ("iter",)) == 0:
            raise ConflictError(
                f"{format_path(path)} is of buckets that DistributedDataParallel has not made yet",
                hint="pass warm_up=..., which runs one forward and backward pass; or run one before "
                "the restore",
            )
        yield from compare_keys(live, stored, path)
        for difference in compare_arrays(live, stored, path):
            key = difference.path[len(path) :]
            if (difference.live is not None and difference.stored is not None) or not str(
                key[0]
            ).endswith("_dict"):
                yield difference

    def targets(self, captured: Any) -> object:
        """Return the buckets' memory."""
        return {key: value for key, value in captured.items() if key.endswith("_dict")}

    def restore(self, stored: Any) -> None:
        """Set all fields; new memory of buckets goes where the gradients are."""
        live = self.capture()
        for name, value in stored.items():
            if name == "rng":
                self._state.rng.set_state(value)
            elif isinstance(value, dict):
                mine = getattr(self._state, name)
                placed = {key: self._place(item, live, name, key) for key, item in value.items()}
                mine.clear()
                mine.update(placed)
            else:
                setattr(self._state, name, value)

    def _place(self, value: Any, live: object, name: str, key: object) -> Any:
        mine = find_at(live, (name, key))
        if isinstance(mine, torch.Tensor):
            return value.to(mine.device)
        name_group = getattr(self._state.process_group, "name", None)
        is_nccl = name_group is not None and "nccl" in str(name_group()).lower()
        return value.to("cuda") if is_nccl else value
