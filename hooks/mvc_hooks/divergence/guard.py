"""Dropping one optimizer step, from outside of a training loop that calls ``step()`` itself.

An optimizer leaves parameters without a gradient alone: values, momentum, Adam's step count. So the
gradients are taken away in front of the step. They do not come back: the next ``backward()`` makes
new ones. Where a closure computes the gradients inside of the step, they are taken away behind it.
(Of torch's optimizers, only LBFGS still counts the evaluation; one that counts steps by itself
whether there are gradients or not, as some fused ones of other packages do, would count this one.)
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Self

from torch.optim import Optimizer

from mvc import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable


class StepGuard:
    """Hooks on optimizers that can make a step do nothing.

    Usable as a context manager; at its end the hooks are removed.
    """

    def __init__(self, optimizers: Optimizer | Iterable[Optimizer]) -> None:
        """Hook into optimizers; their steps are as before until ``drop_next``.

        Args:
            optimizers: one, or several; wrappers with the optimizer in ``.optimizer`` too.

        Raises:
            UsageError: something that is no optimizer, or none at all.
        """
        chosen = [optimizers] if isinstance(optimizers, Optimizer) else _list(optimizers)
        self._optimizers = {id(inner): inner for inner in map(_unwrap, chosen)}
        if not self._optimizers:
            raise UsageError("a step guard without an optimizer guards nothing")
        self._armed: set[int] = set()
        self._handles: list[Any] = []
        for optimizer in self._optimizers.values():
            self._handles.append(optimizer.register_step_pre_hook(self._before))
            self._handles.append(optimizer.register_step_post_hook(self._after))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    @property
    def is_armed(self) -> bool:
        """Whether a step of some optimizer will be dropped."""
        return bool(self._armed)

    def drop_next(self) -> None:
        """Make the next step of each optimizer do nothing.

        A ``GradScaler`` that skips a step does not call the optimizer: then the step after it is
        dropped, unless ``cancel`` is called.

        Raises:
            UsageError: the hooks were removed.
        """
        if not self._handles:
            raise UsageError("the hooks of this step guard were removed")
        self._armed = set(self._optimizers)

    def cancel(self) -> None:
        """Take ``drop_next`` back where the step did not come yet."""
        self._armed.clear()

    def remove(self) -> None:
        """Remove the hooks; twice is fine."""
        self.cancel()
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def _before(self, optimizer: Optimizer, args: Any, kwargs: Any) -> tuple[Any, Any] | None:
        if id(optimizer) not in self._armed:
            return None
        _take_gradients(optimizer)
        # The optimizer itself comes first, as its step() is a plain function by then.
        if len(args) > 1 and callable(args[1]):
            return (args[0], _without_gradients(optimizer, args[1]), *args[2:]), kwargs
        if callable(kwargs.get("closure")):
            return args, {**kwargs, "closure": _without_gradients(optimizer, kwargs["closure"])}
        return None

    def _after(self, optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        self._armed.discard(id(optimizer))


def _take_gradients(optimizer: Optimizer) -> None:
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = None


def _without_gradients(optimizer: Optimizer, closure: Callable[[], object]) -> Callable[[], object]:
    def evaluate() -> object:
        loss = closure()
        _take_gradients(optimizer)
        return loss

    return evaluate


def _list(optimizers: object) -> list[object]:
    if hasattr(optimizers, "optimizer"):
        return [optimizers]
    if not isinstance(optimizers, Iterable):
        raise UsageError(f"a {type(optimizers).__name__} is no optimizer")
    return list(optimizers)


def _unwrap(optimizer: object) -> Optimizer:
    """Return the optimizer whose ``step`` runs in the end."""
    inner = optimizer
    for _ in range(8):
        if isinstance(inner, Optimizer) and hasattr(inner, "_optimizer_step_pre_hooks"):
            return inner
        inner = getattr(inner, "optimizer", None)
    raise UsageError(
        f"a {type(optimizer).__name__} is no optimizer of torch",
        hint="a step guard needs register_step_pre_hook of torch.optim.Optimizer",
    )
