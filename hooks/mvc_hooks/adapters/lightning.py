"""Lightning: a callback that commits beside ``Trainer.fit``, resumes it, and rolls it back.

    trainer = Trainer(..., callbacks=[MvcCallback("runs/gpt", every=1000)])
    trainer.fit(model, loader)

All of Lightning's loops keep their counters in objects, so a fit is rolled back in place: counters,
callbacks and data are set to what they were, and the loop continues from there. A resumed fit does
the same: it enters its epoch as usual, and becomes the old one at the first batch. A step is a batch
that ended with an optimizer step; with one optimizer it is Lightning's ``global_step``.

What cannot be taken back is what loggers have written, and checkpoints of steps that were abandoned
or are taken again: they stay, and later ones of the same name get ``-v1``. ``on_train_epoch_start`` is
called once more for an epoch that is resumed in the middle, for what it makes; what it changes in
parameter groups, states of callbacks and metrics is undone.
"""

from __future__ import annotations

import contextlib
import os
import signal
from typing import TYPE_CHECKING, Any

from mvc import UnsupportedError, UsageError
from mvc_hooks.adapters.lightning_state import LightningState
from mvc_hooks.adapters.session import (
    FitSession,
    SessionCallback,
    check_strategy,
    has_length,
    import_library,
    one_or_all,
)
from mvc_hooks.reports import DivergedError, RollbackReport

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


_PYTORCH = import_library("lightning.pytorch", "pytorch_lightning", extra="lightning")
_CALLBACK: Any = _PYTORCH.Callback
_COMBINED: Any = _PYTORCH.utilities.combined_loader
_SETTINGS = ("accumulate_grad_batches", "gradient_clip_val", "gradient_clip_algorithm", "precision")
_STRATEGIES = ("DDPStrategy", "ModelParallelStrategy")
_REFUSED = {
    "StochasticWeightAveraging": (
        "changes the scheduler and batches of a running fit, and no state holds all of that",
        "use WeightAveraging, whose should_update says when averaging starts",
    ),
    "ModelPruning": (
        "replaces parameters of a running fit, and a new process has others",
        "prune the model before the fit",
    ),
}
"""Callback → why it is refused, and what to do instead."""


class MvcCallback(SessionCallback, _CALLBACK):  # type: ignore[misc]  # of whichever package is installed
    """Commits a fit to a repository, resumes it, and rolls it back."""

    library_state: LightningState
    _sanity_steps: int | float = 0

    # Hooks, in the order in which they come.

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:  # noqa: ARG002  Lightning's
        """Replace the train loader by one that the session draws from."""
        if stage != "fit":
            return
        others = [callback for callback in trainer.callbacks if callback is not self]
        if trainer.fast_dev_run:
            trainer.callbacks = others  # the run that comes after it is not to go on from it
            return
        self._check_alone(others)
        check_processes(trainer)
        for callback in trainer.callbacks:
            for kind in type(callback).__mro__:
                if kind.__name__ in _REFUSED:
                    why, hint = _REFUSED[kind.__name__]
                    raise UnsupportedError(f"{kind.__name__} {why}", hint=hint)
        session = self._start_session(trainer)
        self._sanity_steps = trainer.num_sanity_val_steps
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
        # Others may try something out before the fit: what they change is restored here.
        trainer.callbacks = [*others, self]

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Make the checkpointer, which resumes if the branch has commits."""
        # Hidden files are those of Lightning's tuner, which tried something out.
        if trainer.ckpt_path and not os.path.basename(trainer.ckpt_path).startswith("."):
            raise UsageError(
                "ckpt_path is set, but the fit resumes from the commits of its branch",
                hint="remove ckpt_path, or the callback",
            )
        state = self.library_state = LightningState(trainer, self._fit)
        self._fit.data.note_settings(trainer, _SETTINGS)
        with _leave_sigterm():
            self._fit.open(
                model=pl_module,
                optimizer=one_or_all(list(trainer.optimizers)),
                scheduler=one_or_all([config.scheduler for config in trainer.lr_scheduler_configs]),
                scaler=getattr(trainer.precision_plugin, "scaler", None),
                lightning=state,
            )
        state.prepare_epoch()
        self._fit.begin()
        trainer.strategy.remove_checkpoint = state.files.remove
        # The last commit is that of a run that may go on, so it comes before averages replace the model.
        trainer.callbacks = [
            self,
            *(callback for callback in trainer.callbacks if callback is not self),
        ]

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
        """Note what an epoch that is entered again in its middle must not change."""
        self.library_state.note_epoch()

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

    def on_train_batch_end(self, *_: Any, **__: Any) -> None:
        """Complete the metrics that Lightning has made again after a resume."""
        self.library_state.add_sums()

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
        self.library_state.give_back()
        self._finish(is_between=True)

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Commit a last time at SIGTERM, which Lightning raises between two batches."""
        if self._session is None:
            return
        if type(exception).__name__ == "SIGTERMException":
            self._session.finish(is_between=False)
        else:
            self._session.abandon(exception)
        self.teardown(trainer, pl_module, "fit")  # which Lightning leaves out

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:  # noqa: ARG002  Lightning's
        """Restore what was replaced."""
        if stage == "fit" and self._session is not None:
            trainer.num_sanity_val_steps = self._sanity_steps
        for name in ("process_dataloader", "remove_checkpoint"):
            trainer.strategy.__dict__.pop(name, None)
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
        self.library_state.files.release(is_over=True)

    # What the session asks for.

    def count_steps(self) -> int:
        """Return how often Lightning has stepped."""
        steps: int = self._trainer.global_step
        return steps

    def go_on_from(self, report: RollbackReport) -> None:  # noqa: ARG002
        """Continue in place: Lightning's loops read all counters from their objects."""
        self.library_state.land()
        for callback in self._trainer.callbacks:
            if type(callback).__name__ == "GradientAccumulationScheduler":
                callback.on_train_epoch_start(self._trainer)  # the epoch may be an earlier one


class _FedLoader(_COMBINED.CombinedLoader):  # type: ignore[misc]  # as above
    """What Lightning iterates: one loader, or several combined, which the session draws from."""

    def __init__(self, given: Any, session: FitSession, trainer: Any) -> None:
        is_combined = isinstance(given, _COMBINED.CombinedLoader)
        loaders, mode = (given.iterables, given._mode) if is_combined else (given, "max_size_cycle")  # noqa: SLF001
        super().__init__(loaders, mode)
        self._session, self._trainer = session, trainer
        self._feed: Any = None
        self._is_one = False

    def __iter__(self) -> _FedLoader:
        fetcher = self._trainer.fit_loop._data_fetcher  # noqa: SLF001
        if self._feed is None:
            is_endless = fetcher.length is not None or has_length(self)
            self._is_one = is_endless and len(self.flattened) == 1
            self._feed = self._session.feed(
                self.flattened[0]
                if self._is_one
                else _Combined(self, None if is_endless else fetcher),
                is_endless=is_endless,
            )
        iter(self._feed)
        return self

    def __next__(self) -> Any:
        drawn = next(self._feed)
        return (_COMBINED.tree_unflatten([drawn], self._spec), 0, 0) if self._is_one else drawn

    def __len__(self) -> int:
        mode = _COMBINED._SUPPORTED_MODES[self._mode]["iterator"]  # noqa: SLF001  its own needs iterators
        return len(mode(self.flattened, self.limits))


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


def check_processes(trainer: Any) -> None:
    """Check that commits can be made of what the processes of a fit do."""
    strategy = trainer.strategy
    known = [getattr(_PYTORCH.strategies, name, ()) for name in _STRATEGIES]
    # What a fit does in processes that it forks or spawns is lost with them.
    is_lost = "MultiProcessing" in type(strategy.launcher).__name__
    is_supported = isinstance(strategy, tuple(filter(None, known))) and not is_lost
    check_strategy(type(strategy).__name__, is_supported=trainer.world_size == 1 or is_supported)


@contextlib.contextmanager
def _leave_sigterm() -> Iterator[None]:
    """Leave SIGTERM to Lightning, which turns it into an exception between two batches."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    if signal.getsignal(signal.SIGTERM) is not before and before is not None:
        signal.signal(signal.SIGTERM, before)
