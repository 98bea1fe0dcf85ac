"""Dropping one optimizer step, from outside a training loop that calls ``step()`` itself.

An optimizer leaves parameters without a gradient alone: values, momentum, Adam's step count. So the
gradients are removed right before the step. They are not put back: the next ``backward()`` makes new
ones. If a closure computes the gradients inside the step, they are removed after it. (Of torch's
optimizers only LBFGS still counts the evaluation. An optimizer that counts steps whether there are
gradients or not, as some fused ones of other packages do, would count this one.)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch.optim import Optimizer

from mvc import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


class StepGuard:
    """Hooks on optimizers that can make a step do nothing."""

    def __init__(self, optimizers: Iterable[Optimizer]) -> None:
        self._optimizers = {id(inner): inner for inner in map(_unwrap, optimizers)}
        self._armed: set[int] = set()
        self._handles: list[Any] = []
        for optimizer in self._optimizers.values():
            self._handles.append(optimizer.register_step_pre_hook(self._before))
            self._handles.append(optimizer.register_step_post_hook(self._disarm))

    def drop_next(self) -> None:
        """Make the next step of each optimizer do nothing.

        If a ``GradScaler`` skips that step, the one after it is dropped, unless ``cancel`` is called.
        """
        if self._optimizers and not self._handles:
            raise UsageError("the hooks of this step guard were removed")
        self._armed = set(self._optimizers)

    def cancel(self) -> None:
        """Undo ``drop_next`` for steps that did not come yet."""
        self._armed.clear()

    def remove(self) -> None:
        """Remove the hooks; calling it twice is fine."""
        self.cancel()
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def _before(self, optimizer: Optimizer, args: Any, kwargs: Any) -> tuple[Any, Any] | None:
        if id(optimizer) not in self._armed:
            return None
        _remove_gradients(optimizer)
        # The optimizer itself comes first, as its step() is a plain function by then.
        if len(args) > 1 and callable(args[1]):
            return (args[0], _without_gradients(optimizer, args[1]), *args[2:]), kwargs
        if callable(kwargs.get("closure")):
            return args, {**kwargs, "closure": _without_gradients(optimizer, kwargs["closure"])}
        return None

    def _disarm(self, optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        self._armed.discard(id(optimizer))


def _remove_gradients(optimizer: Optimizer) -> None:
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = None


def _without_gradients(optimizer: Optimizer, closure: Callable[[], object]) -> Callable[[], object]:
    def evaluate() -> object:
        loss = closure()
        _remove_gradients(optimizer)
        return loss

    return evaluate


def _unwrap(optimizer: object) -> Optimizer:
    """Return the optimizer whose ``step`` runs in the end."""
    inner = optimizer
    for _ in range(8):
        if isinstance(inner, Optimizer) and hasattr(inner, "_optimizer_step_pre_hooks"):
            return inner
        inner = getattr(inner, "optimizer", None)
    raise UsageError(
        f"a {type(optimizer).__name__} is not an optimizer of torch",
        hint="skipping steps needs register_step_pre_hook of torch.optim.Optimizer",
    )
