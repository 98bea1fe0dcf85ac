"""Accelerate: a checkpointer made from what an ``Accelerator`` has prepared.

    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
    with make_checkpointer(accelerator, "runs/gpt", every=1000) as ckpt:
        for step in ckpt.steps(100_000):
            for _ in range(accelerator.gradient_accumulation_steps):
                batch = ckpt.next_batch()
                with accelerator.accumulate(model):
                    ...
            ckpt.step(loss=loss)

The loop is the user's, and everything that ``Checkpointer`` documents holds. Batches come from
``ckpt.next_batch()``, which returns to any position by drawing the pass again as it was. That
replaces ``skip_first_batches``, which does not restore random number generators.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mvc import UsageError
from mvc_hooks.adapters.feed import FeedPart
from mvc_hooks.adapters.session import check_processes, import_library, one_or_all
from mvc_hooks.checkpointer import Checkpointer

if TYPE_CHECKING:
    import os

_ACCELERATOR: Any = import_library("accelerate", extra="accelerate").Accelerator


def make_checkpointer(
    accelerator: Any, path: str | os.PathLike[str], **options: Any
) -> Checkpointer:
    """Return a checkpointer of everything that was prepared or registered so far.

    ``options`` are those of ``Checkpointer``, and further parts by name, such as ``ema=ema``.
    """
    if not isinstance(accelerator, _ACCELERATOR):
        raise UsageError(f"a {type(accelerator).__name__} is not an Accelerator")
    check_processes(accelerator.num_processes)
    models, optimizers = accelerator._models, accelerator._optimizers  # noqa: SLF001  there is no public list
    if not models and not optimizers:
        raise UsageError("this accelerator has prepared nothing", hint="call its prepare() first")
    loaders = [_make_data(loader) for loader in accelerator._dataloaders]  # noqa: SLF001
    parts = {
        "model": one_or_all([accelerator.unwrap_model(model) for model in models]),
        "optimizer": one_or_all([one.optimizer for one in optimizers]),
        "scheduler": one_or_all([one.scheduler for one in accelerator._schedulers]),  # noqa: SLF001
        "scaler": accelerator.scaler,
        "registered": list(accelerator._custom_objects) or None,  # noqa: SLF001
        "dataloader": one_or_all(_pick(loaders, options)),
        "accelerator": _Position(accelerator),
    }
    return Checkpointer(path, **{**parts, **options})


def _make_data(loader: Any) -> FeedPart:
    data = FeedPart("dataloader")
    data.bind(loader)
    return data


def _pick(loaders: list[FeedPart], options: dict[str, Any]) -> list[FeedPart]:
    """Return the loader to train with: the one in the options, or all of them."""
    named = options.pop("dataloader", None)
    if named is None:
        return loaders
    chosen = [data for data in loaders if data.loader is named]
    if not chosen:
        raise UsageError("this dataloader was not prepared by the accelerator")
    return chosen


class _Position:
    """Where an accelerator stands between two optimizer steps."""

    def __init__(self, accelerator: Any) -> None:
        self._accelerator = accelerator

    def state_dict(self) -> dict[str, Any]:
        state = self._accelerator.gradient_state
        return {"step": self._accelerator.step, "sync_gradients": state.sync_gradients}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._accelerator.step = state["step"]
        self._accelerator.gradient_state._set_sync_gradients(state["sync_gradients"])  # noqa: SLF001  its own way
