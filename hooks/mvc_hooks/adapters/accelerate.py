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
replaces ``skip_first_batches``, which does not restore random number generators. ``save_state`` may be called
alongside, and ``load_state`` before: a branch without commits begins with what it loaded.
"""

from __future__ import annotations

import os
import weakref
from typing import Any

from mvc import UsageError
from mvc_hooks.adapters.feed import FeedPart
from mvc_hooks.adapters.session import check_accelerator, import_library, one_or_all
from mvc_hooks.checkpointer import Checkpointer

_ACCELERATOR: Any = import_library("accelerate", extra="accelerate").Accelerator


def make_checkpointer(
    accelerator: Any, path: str | os.PathLike[str], **options: Any
) -> Checkpointer:
    """Return a checkpointer of everything that was prepared or registered so far.

    ``options`` are those of ``Checkpointer``, and further parts by name, such as ``ema=ema``; of several
    prepared loaders, ``dataloader=`` names the one to train with.
    """
    if not isinstance(accelerator, _ACCELERATOR):
        raise UsageError(f"a {type(accelerator).__name__} is not an Accelerator")
    check_accelerator(accelerator)
    models, optimizers = accelerator._models, accelerator._optimizers  # noqa: SLF001  there is no public list
    if not models and not optimizers:
        raise UsageError("the accelerator has prepared nothing", hint="call its prepare() first")
    loaders: list[FeedPart] = []
    for loader in accelerator._dataloaders:  # noqa: SLF001
        loaders.append(FeedPart("dataloader"))
        loaders[-1].bind(loader)
    parts = {
        "model": one_or_all([accelerator.unwrap_model(model) for model in models]),
        "optimizer": one_or_all([prepared.optimizer for prepared in optimizers]),
        "scheduler": one_or_all([prepared.scheduler for prepared in accelerator._schedulers]),  # noqa: SLF001
        "scaler": accelerator.scaler,
        "registered": list(accelerator._custom_objects) or None,  # noqa: SLF001
        "dataloader": one_or_all(_pick(loaders, options)),
        "accelerator": _Position(accelerator),
    }
    checkpointer = Checkpointer(path, **{**parts, **options})
    _refuse_loading(accelerator, weakref.ref(checkpointer))
    return checkpointer


def _refuse_loading(accelerator: Any, find: weakref.ref[Checkpointer]) -> None:
    def refuse(*_: object) -> None:
        live = find()
        if live is not None and not live.is_closed:
            raise UsageError(
                f"load_state would replace the state of a run that is at step {live.step_count}",
                hint="call load_state before make_checkpointer, or roll_back(to=...) instead",
            )

    accelerator.register_load_state_pre_hook(refuse)


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
        self._passed_over = 0
        self._known = self._count()

    def _count(self) -> dict[str, int]:
        """Count what is part of a run, in the lists that ``prepare`` and ``register_for_checkpointing`` fill."""
        kinds = ("models", "optimizers", "schedulers", "custom_objects")
        return {kind: len(getattr(self._accelerator, f"_{kind}")) for kind in kinds}

    def state_dict(self) -> dict[str, Any]:
        accelerator = self._accelerator
        for kind, count in self._count().items():
            if count > self._known[kind]:
                raise UsageError(
                    f"the accelerator got {kind} after make_checkpointer, which no commit would have",
                    hint="prepare and register everything first",
                )
        saved = accelerator.save_iteration - self._passed_over
        return {
            "step": accelerator.step,
            "sync_gradients": accelerator.gradient_state.sync_gradients,
            **({"iteration": saved} if saved else {}),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._accelerator.step = state["step"]
        self._accelerator.gradient_state._set_sync_gradients(state["sync_gradients"])  # noqa: SLF001  its own way
        project, folder = self._accelerator.project_configuration, self._accelerator.project_dir
        project.iteration = state.get("iteration", 0)
        self._passed_over = 0
        # Folders of steps that were lost or abandoned stay.
        while project.automatic_checkpoint_naming and os.path.exists(
            os.path.join(folder, "checkpoints", f"checkpoint_{project.iteration}")
        ):
            project.iteration += 1
            self._passed_over += 1
