"""Lightning: a callback that commits beside ``Trainer.fit``, resumes it, and rolls it back.

    trainer = Trainer(..., callbacks=[MvcCallback("runs/gpt", every=1000)])
    trainer.fit(model, loader)

All of Lightning's loops keep their counters in objects, so a fit is rolled back in place: counters,
callbacks and data are set to what they were, and the loop continues from there. A resumed fit does
the same: it enters its epoch as usual, and becomes the old one at the first batch. A step is a batch
that ended with an optimizer step; with one optimizer it is Lightning's ``global_step``.

What cannot be taken back: means of training metrics over an epoch (for an interrupted epoch they
cover its last part), and what loggers have written. ``on_train_epoch_start`` is called once more for
an epoch that is resumed in the middle.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import signal
from typing import TYPE_CHECKING, Any

from mvc import UsageError
from mvc_hooks.adapters.session import (
    LibraryState,
    Session,
    SessionCallback,
    check_processes,
    import_library,
    one_or_all,
)
from mvc_hooks.reports import DivergedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from mvc_hooks.reports import RollbackReport

_PYTORCH = import_library("lightning.pytorch", "pytorch_lightning", extra="lightning")
_CALLBACK: Any = _PYTORCH.Callback
_COMBINED: Any = _PYTORCH.utilities.combined_loader
_STEPPED = "batches_that_stepped"


class MvcCallback(SessionCallback, _CALLBACK):  # type: ignore[misc]  # of whichever package is installed
    """Commits a fit to a repository, resumes it, and rolls it back."""

    library_state: _LightningState

    # Hooks, in the order in which they come.

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:  # noqa: ARG002  Lightning's
        """Replace the train loader by one that the session draws from."""
        if stage != "fit":
            return
        check_processes(trainer.world_size)
        session = self._start_session(trainer)
        source = trainer.fit_loop._data_source  # noqa: SLF001  the one place that every train loader comes from
        make = source.dataloader
        source.dataloader = lambda: _FedLoader(make(), session, trainer)
        process = trainer.strategy.process_dataloader

        def watch(loader: Any) -> Any:
            made = process(loader)
            if not trainer.training:
                session.data.evaluation.watch(made)
            return made

        trainer.strategy.process_dataloader = watch

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Make the checkpointer, which resumes if the branch has commits."""
        if trainer.ckpt_path:
            raise UsageError(
                "ckpt_path is set, but the fit resumes from the commits of its branch",
                hint="remove ckpt_path, or the callback",
            )
        state = self.library_state = _LightningState(trainer, self._fit)
        with _leave_sigterm():
            self._fit.open(**_find_parts(trainer, pl_module), lightning=state)
        state.prepare_epoch()
        self._fit.begin()

    def on_before_backward(self, trainer: Any, pl_module: Any, loss: Any) -> None:  # noqa: ARG002
        """Take the loss."""
        self._fit.add_loss(loss)

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:  # noqa: ARG002
        """Judge the step while it can still be skipped."""
        params = [param for group in optimizer.param_groups for param in group["params"]]
        if not self._check_step(params):
            # Too late to skip the step: its closure calls this. Without gradients it does nothing.
            for param in params:
                param.grad = None

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
        """Commit if the fit is stopped in the middle of an epoch."""
        loop = trainer.fit_loop
        batches = loop.epoch_loop.batch_progress
        is_over = batches.is_last_batch or batches.current.ready >= trainer.num_training_batches
        steps = trainer.max_steps
        is_stopped = (steps != -1 and trainer.global_step >= steps) or (
            trainer.should_stop and loop._can_stop_early  # noqa: SLF001  no public way to ask
        )
        if is_stopped and not is_over:
            # Lightning has counted the epoch, but a fit that resumes from here has to finish it.
            self.library_state.counts_epoch = False
            self._finish(is_between=False)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
        """Commit the last state."""
        self._finish(is_between=True)

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
        """Close, even if there was nothing to do."""
        self._finish(is_between=True)

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:  # noqa: ARG002
        """Commit a last time at SIGTERM, which Lightning raises between two batches."""
        if self._session is None:
            return
        if type(exception).__name__ == "SIGTERMException":
            self._session.finish(is_between=False)
        else:
            self._session.abandon(exception)

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:  # noqa: ARG002
        """Restore what ``setup`` replaced."""
        trainer.strategy.__dict__.pop("process_dataloader", None)
        if self._session is not None:
            self._session.data.evaluation.remove()
        trainer.fit_loop._data_source.__dict__.pop("dataloader", None)  # noqa: SLF001  set in setup

    def _finish(self, *, is_between: bool) -> None:
        report = self._fit.finish(is_between=is_between)
        if report is not None:
            raise DivergedError(
                f"the run diverged in its last steps and is back at step {report.to_step}",
                hint="call fit again to continue from there",
            )

    # What the session asks for.

    def count_steps(self) -> int:
        """Return how often Lightning has stepped."""
        steps: int = self._trainer.global_step
        return steps

    def go_on_from(self, report: RollbackReport) -> None:  # noqa: ARG002
        """Continue in place: Lightning's loops read all counters from their objects."""
        self.library_state.land()


class _FedLoader(_COMBINED.CombinedLoader):  # type: ignore[misc]  # as above
    """What Lightning iterates: one loader, or several combined, which the session draws from."""

    def __init__(self, given: Any, session: Session, trainer: Any) -> None:
        is_combined = isinstance(given, _COMBINED.CombinedLoader)
        loaders, mode = (given.iterables, given._mode) if is_combined else (given, "max_size_cycle")  # noqa: SLF001
        super().__init__(loaders, mode)
        self._session, self._trainer = session, trainer
        self._feed: Any = None
        self._is_one = False

    def __iter__(self) -> _FedLoader:
        fetcher = self._trainer.fit_loop._data_fetcher  # noqa: SLF001
        if self._feed is None:
            has_length = fetcher.length is not None or self._has_length()
            self._is_one = has_length and len(self.flattened) == 1
            self._feed = self._session.feed(
                self.flattened[0]
                if self._is_one
                else _Combined(self, None if has_length else fetcher),
                is_endless=has_length,
            )
        iter(self._feed)
        return self

    def __next__(self) -> Any:
        drawn = next(self._feed)
        return (_COMBINED.tree_unflatten([drawn], self._spec), 0, 0) if self._is_one else drawn

    def __len__(self) -> int:
        mode = _COMBINED._SUPPORTED_MODES[self._mode]["iterator"]  # noqa: SLF001  its own needs iterators
        return len(mode(self.flattened, self.limits))

    def _has_length(self) -> bool:
        try:
            return len(self) >= 0
        except TypeError:
            return False


class _Combined:
    """Several loaders, or one without a length, as one that draws their batches together.

    Without a length the last batch is known by drawing one ahead, as Lightning's fetcher does. It
    is done here, so that the position is that of the batches in use.
    """

    def __init__(self, fed: _FedLoader, fetcher: Any) -> None:
        self.combined = _COMBINED.CombinedLoader(fed.iterables, fed._mode)  # noqa: SLF001
        self.combined.limits = fed.limits
        self.draws_ahead = hasattr(fetcher, "prefetch_batches")
        self._end = lambda: setattr(fetcher, "done", True)
        if self.draws_ahead:
            fetcher.prefetch_batches = 0

    def __iter__(self) -> Iterator[Any]:
        drawn = iter(self.combined)
        return _draw_ahead(drawn, next(drawn, None), self._end) if self.draws_ahead else drawn


def _draw_ahead(drawn: Iterator[Any], batch: Any, end: Callable[[], None]) -> Iterator[Any]:
    while batch is not None:
        current, batch = batch, next(drawn, None)
        if batch is None:
            end()
        yield current


@contextlib.contextmanager
def _leave_sigterm() -> Iterator[None]:
    """Leave SIGTERM to Lightning, which turns it into an exception between two batches."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    if signal.getsignal(signal.SIGTERM) is not before and before is not None:
        signal.signal(signal.SIGTERM, before)


def _find_parts(trainer: Any, module: Any) -> dict[str, object]:
    return {
        "model": module,
        "optimizer": one_or_all(list(trainer.optimizers)),
        "scheduler": one_or_all([config.scheduler for config in trainer.lr_scheduler_configs]),
        "scaler": getattr(trainer.precision_plugin, "scaler", None),
    }


class _LightningState(LibraryState):
    """What Lightning itself knows of a fit."""

    def __init__(self, trainer: Any, session: Session) -> None:
        super().__init__(trainer, session)
        self._loops = dict(_walk_loops("fit_loop", trainer.fit_loop))
        self._given: dict[str, Any] | None = None
        self.counts_epoch = True

    def state_dict(self) -> dict[str, Any]:
        """Return counters, the states of callbacks and data module, and what the module adds."""
        loops = {name: _capture_loop(loop) for name, loop in self._loops.items()}
        if not self.counts_epoch:
            for tracker in loops["fit_loop"]["epoch_progress"].values():
                tracker["processed"] -= 1
        return {
            "loops": loops,
            "is_between": self._session.data.is_between,
            # Some callbacks include the time, and differ as soon as they are asked again.
            "callbacks": self._given if self._given is not None else self._capture_callbacks(),
            "module": self._capture_extras(),
            "datamodule": self._call_datamodule("state_dict") or {},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._restored, self._given = state, state["callbacks"]
        self._session.data.is_between = state["is_between"]
        self._load_loops(state["loops"])
        for callback in self._trainer.callbacks:
            if callback.state_key in state["callbacks"]:
                callback.load_state_dict(copy.deepcopy(state["callbacks"][callback.state_key]))
        if state["module"]:
            self._trainer.lightning_module.on_load_checkpoint(copy.deepcopy(state["module"]))
        if state["datamodule"]:
            self._call_datamodule("load_state_dict", copy.deepcopy(state["datamodule"]))

    def prepare_epoch(self) -> None:
        """Let Lightning enter the epoch of the restored state as it enters every epoch."""
        if self._restored is None:
            return
        for tracker in (self._epochs.total, self._epochs.current):
            tracker.ready = tracker.started = tracker.completed = tracker.processed

    def _apply(self, state: dict[str, Any]) -> None:
        self._given = None
        self._load_loops(state["loops"])
        fit = self._trainer.fit_loop
        inner = fit.epoch_loop
        if state["is_between"]:
            # The commit lies between two epochs: what Lightning does on entering the next one.
            self._epochs.increment_ready()
            self._epochs.increment_started()
            inner.batch_progress.reset_on_run()
            inner.scheduler_progress.reset_on_run()
            inner.automatic_optimization.optim_progress.reset_on_run()
            inner.val_loop.batch_progress.total.reset()
        fit._data_fetcher.fetched = inner.batch_progress.current.ready  # noqa: SLF001  it says which batch is the last

    @property
    def _epochs(self) -> Any:
        return self._trainer.fit_loop.epoch_progress

    def _load_loops(self, states: dict[str, Any]) -> None:
        for name, loop in self._loops.items():
            for key, value in states[name].items():
                if key == _STEPPED:
                    loop._batches_that_stepped = value  # noqa: SLF001  the x axis of loggers
                else:
                    getattr(loop, key).load_state_dict(copy.deepcopy(value))

    def _capture_callbacks(self) -> dict[str, Any]:
        states = {one.state_key: one.state_dict() for one in self._trainer.callbacks}
        return {key: copy.deepcopy(state) for key, state in states.items() if state}

    def _capture_extras(self) -> dict[str, Any]:
        module = self._trainer.lightning_module
        if type(module).on_save_checkpoint is _PYTORCH.LightningModule.on_save_checkpoint:
            return {}
        trainer = self._trainer
        usual = {
            "epoch": trainer.current_epoch,
            "global_step": trainer.global_step,
            "state_dict": module.state_dict(),
        }
        checkpoint = dict(usual)
        module.on_save_checkpoint(checkpoint)
        return {key: value for key, value in checkpoint.items() if key not in usual}

    def _call_datamodule(self, method: str, *values: Any) -> Any:
        datamodule = self._trainer.datamodule
        return None if datamodule is None else getattr(datamodule, method)(*values)


def _walk_loops(name: str, loop: Any) -> Iterator[tuple[str, Any]]:
    yield name, loop
    for key, value in vars(loop).items():
        if hasattr(value, "restarting") and hasattr(value, "on_iteration_done"):
            yield from _walk_loops(f"{name}.{key}", value)


def _is_progress(value: Any) -> bool:
    return dataclasses.is_dataclass(value) and hasattr(value, "reset_on_run")


def _capture_loop(loop: Any) -> dict[str, Any]:
    state = {
        key: copy.deepcopy(value.state_dict())
        for key, value in vars(loop).items()
        if _is_progress(value)
    }
    if hasattr(loop, "_batches_that_stepped"):
        state[_STEPPED] = loop._batches_that_stepped  # noqa: SLF001
    return state
