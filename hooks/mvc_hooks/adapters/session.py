"""What the adapters share: a checkpointer inside the loop of a library.

library asks for a batch ──► is a step complete? ──► Checkpointer.step(): judge, freeze, go back
                         ──► just resumed? generators and counters as they were then
                         ──► the batch
"""

from __future__ import annotations

import copy
import importlib
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from mvc import ConflictError, UnsupportedError, UsageError
from mvc_hooks.adapters.feed import Feed, FeedPart
from mvc_hooks.checkpointer import OPTIONS, Checkpointer
from mvc_hooks.divergence.ladder import as_steps
from mvc_hooks.parts.make import GRADIENTS, RNG, check_named, make_parts
from mvc_hooks.parts.metrics import capture_metrics, restore_metrics
from mvc_hooks.parts.part import DETAILS, Part
from mvc_hooks.parts.restoring import capture_parts, from_values, restore_parts
from mvc_hooks.parts.rng import capture_rng, restore_rng
from mvc_hooks.parts.tree import walk_leaves
from mvc_hooks.training import StepRun

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable

    from mvc_hooks.reports import RollbackReport

ENDED = "early stopping has ended this run; to train on, raise its patience or take it out"


def import_library(*modules: str, extra: str) -> Any:
    """Return the first module that can be imported; ``extra`` is the extra that installs it."""
    for name in modules:
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            # A library that is installed, but lacks a module of its own, is another error.
            if error.name is None or not name.startswith(error.name):
                raise
    package = modules[0].partition(".")[0]
    raise ImportError(
        f"mvc_hooks.adapters.{extra} needs {package}: pip install 'mvc-models[{extra}]'",
        name=package,
    )


def check_strategy(name: str, *, is_supported: bool) -> None:
    """Check that the way in which a library uses several processes is one that commits can be made of."""
    if not is_supported:
        raise UnsupportedError(
            f"{name} is not supported with several processes",
            hint="use DistributedDataParallel, or fully_shard (FSDP2); mvc_hooks.dcp saves what FSDP1 has",
        )


def check_accelerator(accelerator: Any) -> None:
    """Check the same of an ``Accelerator``, which the Trainer has, too."""
    kind = accelerator.distributed_type.value
    is_replicated = kind == "NO" or kind.startswith("MULTI_")
    is_one = accelerator.num_processes == 1
    check_strategy(kind, is_supported=is_one or is_replicated or accelerator.is_fsdp2)


def one_or_all(values: list[Any]) -> Any:
    """Return the only value, the list of several, or None."""
    return values[0] if len(values) == 1 else values or None


def has_length(loader: Any) -> bool:
    """Return whether a loader knows how many batches a pass has."""
    try:
        return len(loader) >= 0
    except TypeError:
        return False


class SessionCallback:
    """Base of the callbacks: it opens a ``FitSession`` per fit, which calls it back."""

    library_state: LibraryState

    def __init__(
        self, path: str | os.PathLike[str], *, grad_norm: bool = False, **options: Any
    ) -> None:
        """Make a callback for one trainer.

        ``path`` and ``options`` are as for ``Checkpointer``, with further parts by name (``ema=ema``).
        ``grad_norm`` measures the norm of the gradients at every step, to watch it along with the loss:
        Lightning measures it before the gradients are clipped, the Hugging Face Trainer after.
        """
        super().__init__()
        named = {name: value for name, value in options.items() if name not in OPTIONS}
        check_named(named, (*OPTIONS, "grad_norm"))
        self._path, self._options, self._with_grad_norm = path, options, grad_norm
        self._session: FitSession | None = None
        self._trainer: Any = None

    @property
    def checkpointer(self) -> Checkpointer | None:
        """The checkpointer of the fit, with its reports; None before the fit has begun."""
        return None if self._session is None else self._session.checkpointer

    def count_steps(self) -> int:
        """Return the optimizer steps that the library has completed."""
        raise NotImplementedError

    def go_on_from(self, report: RollbackReport) -> None:
        """Continue after a rollback; all parts are restored."""
        raise NotImplementedError

    def _check_alone(self, callbacks: Iterable[object]) -> None:
        if any(
            isinstance(callback, SessionCallback) and callback is not self for callback in callbacks
        ):
            raise UsageError("the trainer already has another mvc callback")

    def _start_session(self, trainer: Any) -> FitSession:
        self._trainer = trainer
        self._session = FitSession(self, self._path, self._options)
        return self._session

    @property
    def _fit(self) -> FitSession:
        """The session, which there is from the start of a fit on."""
        assert self._session is not None
        return self._session

    def _check_step(self, params: Iterable[torch.Tensor]) -> bool:
        """Judge before the optimizer step; return whether to take it."""
        if not self._with_grad_norm:
            return self._fit.check()
        # No copy to the host: the norm stays on its device until the reading arrives.
        norms = [torch.linalg.vector_norm(p.grad.detach()) for p in params if p.grad is not None]
        whole = [norm.full_tensor() if isinstance(norm, DTensor) else norm for norm in norms]
        return self._fit.check(torch.linalg.vector_norm(torch.stack(whole)) if whole else None)


class LibraryState:
    """What a library itself knows of a run; a part of every commit."""

    def __init__(self, trainer: Any, session: FitSession) -> None:
        self._trainer, self._session = trainer, session
        self._restored: dict[str, Any] | None = None
        self._at_start: Callable[[], None] | None = None

    def note_epoch(self) -> None:
        """Note what the start of an epoch may change, which a resume in its middle begins once more."""
        objects = self._session.objects
        optimizers = [value for value in objects if isinstance(value, torch.optim.Optimizer)]
        groups = [
            (group, {key: copy.deepcopy(value) for key, value in group.items() if key != "params"})
            for optimizer in optimizers
            for group in optimizer.param_groups
        ]
        metrics = [
            (value, capture_metrics(value)) for value in objects if isinstance(value, nn.Module)
        ]

        def undo() -> None:
            for group, settings in groups:
                group.update(settings)
            for module, sums in metrics:
                restore_metrics(module, sums)

        self._at_start = undo

    def land(self) -> None:
        """Set what the library would change between the restore and the first batch: its counters."""
        state, self._restored = self._restored, None
        if state is not None:
            self._apply(state)
            self._session.data.is_between = False

    def state_dict(self) -> dict[str, Any]:
        """Return the state of modules that callbacks hold, such as averages of the model."""
        return {"modules": capture_parts(self._make_modules())}

    def _apply(self, state: dict[str, Any]) -> None:
        undo, self._at_start = self._at_start, None
        if undo is not None:
            undo()
        stored, live = state["modules"], self._make_modules()
        checkpointer = self._session.checkpointer
        names = stored.keys() - {DETAILS}
        for name in sorted(names - live.keys()):
            raise ConflictError(
                f"the commit has {name}, which does not exist yet",
                hint="make it in the __init__ of its callback, or when training begins",
            )
        for name in sorted(live.keys() - names):
            if checkpointer is not None and checkpointer.rollbacks:
                raise ConflictError(
                    f"{name} was made after the commit that the run went back to",
                    hint="start the program again; it resumes there",
                )
        restore_parts(from_values(stored), {name: live[name] for name in names})

    def _make_modules(self) -> dict[str, Part]:
        known = [value for value in self._session.objects if isinstance(value, nn.Module)]
        own = {module for model in known for module in model.modules()}
        owned: dict[str, Any] = {}
        for callback in self._list_callbacks():
            for attribute, value in vars(callback).items():
                if isinstance(value, nn.Module) and value not in own:
                    name = f"{type(callback).__name__}.{attribute}"
                    owned[f"{name} {len(owned)}" if name in owned else name] = value
        owned |= self._find_stateful()
        return {name: part for name, part in make_parts(owned).items() if name != RNG}

    def _find_stateful(self) -> dict[str, Any]:
        """Return other objects with a state that belong to the run."""
        return {}

    def _list_callbacks(self) -> list[Any]:
        raise NotImplementedError

    @property
    def audited(self) -> dict[str, Any]:
        """The callbacks that may have state unknown to the library."""
        known = self._list_stateful()
        return {
            type(callback).__name__: callback
            for callback in self._list_callbacks()
            if callback not in known
        }

    @property
    def covered(self) -> list[Any]:
        """The attributes of a module that are in the commits besides it."""
        return list(self._find_stateful().values())

    def _list_stateful(self) -> list[Any]:
        """Return the callbacks whose whole state the library knows, as they say."""
        return []


class FitSession:
    """One fit."""

    def __init__(
        self, callback: SessionCallback, path: str | os.PathLike[str], options: dict[str, Any]
    ) -> None:
        self._callback, self._path, self._options = callback, path, options
        self._landing: tuple[Any, Any] | None = None
        self._seen_steps = 0
        self._loss: Any = None
        self._grad_norm: Any = None
        self.data = FeedPart("dataloader")
        self.objects: list[object] = []
        self.checkpointer: Checkpointer | None = None
        self._may_skip_steps = any(
            getattr(step, "skip", False) for step in as_steps(options.get("ladder") or ())
        )

    def feed(self, loader: Any, *, is_endless: bool | None = None) -> Feed:
        """Return what the library is to iterate instead of its loader, which ends if it has no length."""
        is_endless = has_length(loader) if is_endless is None else is_endless
        return Feed(self.data, loader, self.draw, is_endless=is_endless)

    def open(self, **parts: Any) -> Checkpointer:
        """Make the checkpointer, which resumes."""
        options: Any = self._options
        named = {name: value for name, value in options.items() if name not in OPTIONS}
        self.objects = [value for _, value in walk_leaves([parts, named, options.get("parts")])]
        self.data.forget()
        checkpointer = Checkpointer(self._path, **options, **parts, dataloader=self.data)
        self.checkpointer = checkpointer
        if checkpointer.resumed_from is not None:
            self._keep()
        return checkpointer

    @property
    def is_open(self) -> bool:
        """Whether there is a checkpointer that was not closed."""
        return self.checkpointer is not None and not self.checkpointer.is_closed

    def begin(self) -> None:
        """Count steps from where the library's counter is now."""
        self._seen_steps = self._callback.count_steps()

    def hold(self) -> None:
        """Let the library start over, and continue exactly from here."""
        self._keep()
        self.data.is_held = True

    @property
    def _gradients(self) -> Any:
        assert self.checkpointer is not None
        return self.checkpointer._run.parts[GRADIENTS]  # noqa: SLF001  the same package

    def _keep(self) -> None:
        """Keep what libraries change before the first batch: they draw numbers and clear gradients."""
        self._landing = capture_rng(), self._gradients.capture()

    # Steps.

    def add_loss(self, loss: Any) -> None:
        """Add a part of the loss of this step."""
        loss = loss.detach()
        self._loss = loss if self._loss is None else self._loss + loss

    def check(self, grad_norm: Any = None) -> bool:
        """Judge before the optimizer step; return whether to take it."""
        self._grad_norm = grad_norm
        # Judging early waits for the device: only if a step may be skipped.
        if not self._may_skip_steps or self.checkpointer is None:
            return True
        return self.checkpointer.check(loss=self._loss, grad_norm=grad_norm)

    def draw(self) -> Any:
        """Return the next batch; the step before is complete now."""
        if self.checkpointer is None:  # something is tried out before the run
            return self.data.next_batch()
        self.complete_step()
        if self._landing is not None:
            rng, gradients = self._landing
            restore_rng(rng)
            self._gradients.restore(gradients)
            self._landing = None
            self._callback.library_state.land()
        return StepRun.next_batch(self.checkpointer)  # nothing of the user's came between

    def complete_step(self) -> RollbackReport | None:
        """Pass a completed step to the checkpointer, if there is one."""
        done = self._callback.count_steps()
        if done <= self._seen_steps or self.checkpointer is None:
            return None
        self._seen_steps = done
        loss, grad_norm, self._loss, self._grad_norm = self._loss, self._grad_norm, None, None
        report = self.checkpointer.step(loss=loss, grad_norm=grad_norm)
        if report is not None:
            self._callback.go_on_from(report)
            self._seen_steps = self._callback.count_steps()
        return report

    def finish(self, *, is_between: bool) -> RollbackReport | None:
        """Complete the last step of the fit, commit it, and close; the report of a rollback means go on."""
        if self.checkpointer is None or not self.is_open:
            return None
        self.data.is_between = is_between
        report = self.complete_step()
        if report is None and self._landing is None:
            self.checkpointer.__exit__(None, None, None)
        else:
            self.checkpointer.close()
        return report

    def abandon(self, error: BaseException) -> None:
        """Close because of an error."""
        if self.checkpointer is not None:
            self.checkpointer.__exit__(type(error), error, error.__traceback__)
