"""What Lightning itself knows of a fit: counters, callbacks, metrics, and the checkpoints it named.

The files of those checkpoints lie beside a run that may go back, and no restore brings a file back. So what
Lightning removes is only removed once a healthy commit no longer names it; until then a run that returns to
an earlier commit finds the best models of that time. What is gone all the same is forgotten, and the log
says so.
"""

from __future__ import annotations

import copy
import dataclasses
import logging
from typing import TYPE_CHECKING, Any

import torch

from mvc_hooks.adapters.session import ENDED, FitSession, LibraryState
from mvc_hooks.parts.tree import map_leaves

if TYPE_CHECKING:
    from collections.abc import Iterator


log = logging.getLogger("mvc_hooks")
# What loops remember besides their counters: the x axis of loggers, and when loaders were made.
_REMEMBERED = ("_batches_that_stepped", "_last_train_dl_reload_epoch", "_last_val_dl_reload_epoch")
# What Lightning's own callbacks remember without having it in their state_dict.
_UNSAVED = (
    "_last_global_step_saved", "_last_checkpoint_saved", "_defer_save_until_validation",
    "_latest_update_epoch",
)  # fmt: skip
_METRICS = ("_callback_metrics", "_logged_metrics", "_progress_bar_metrics")
_SUMS = ("value", "cumulated_batch_size", "_forward_cache")


class CheckpointFiles:
    """What Lightning named and removed."""

    def __init__(self, trainer: Any, session: FitSession) -> None:
        self._trainer, self._session = trainer, session
        # File → step at which Lightning removed it; it is still there.
        self.held: dict[str, int] = {}
        self._named: set[str] = set()
        strategy = trainer.strategy
        self._delete = type(strategy).remove_checkpoint.__get__(strategy)

    def note_named(self) -> None:
        """Note what is named before a restore; what is not named after it stays, and the log says so."""
        self._named = self._list_named()

    def remove(self, path: Any) -> None:
        """Remove a checkpoint once the newest healthy commit does not name it."""
        self.held[str(path)] = self._trainer.global_step
        self.release()

    def release(self, *, is_over: bool = False) -> None:
        """Remove what no commit needs that the run may return to; all at the end."""
        checkpointer = self._session.checkpointer
        assert checkpointer is not None
        healthy = checkpointer.step_count - checkpointer._settings.healthy_after  # noqa: SLF001  the same package
        steps = [
            commit.step
            for commit in checkpointer.commits
            if commit.commit and commit.step <= healthy
        ]
        newest = max(steps, default=-1)
        for path, step in list(self.held.items()):
            if is_over or step <= newest:
                del self.held[path]
                if path not in self._list_named():
                    self._delete(path)

    def restore(self, held: dict[str, int]) -> None:
        """Forget files that are not there, and remove those that only abandoned steps had."""
        before, self.held = self.held, dict(held)
        named = self._list_named()
        for path in before.keys() - held.keys() - named:
            self._delete(path)
        left = sorted(self._named - named)
        if left:
            log.warning("checkpoints of the abandoned steps stay: %s", ", ".join(left))
        for saver in self._list_savers():
            gone = [
                path for path in _list_files(saver) if not saver.file_exists(path, self._trainer)
            ]
            if gone:
                _forget(saver, gone)
                log.warning("%s: not there any more: %s", type(saver).__name__, ", ".join(gone))

    def _list_savers(self) -> list[Any]:
        return [
            callback for callback in self._trainer.callbacks if hasattr(callback, "best_k_models")
        ]

    def _list_named(self) -> set[str]:
        return {path for saver in self._list_savers() for path in _list_files(saver)}


def _list_files(saver: Any) -> list[str]:
    """Return the checkpoints that a ModelCheckpoint names."""
    last = {saver.best_model_path, saver.last_model_path}
    return sorted(path for path in {*saver.best_k_models, *last} if path)


def _forget(saver: Any, gone: list[str]) -> None:
    scores = saver.best_k_models
    for path in set(gone) & scores.keys():
        del scores[path]
        saver.kth_best_model_path = ""  # there is one again with the k-th of them
    if saver.last_model_path in gone:
        saver.last_model_path = ""
    best = min if saver.mode == "min" else max
    if saver.best_model_path in gone:
        saver.best_model_path = best(scores, key=scores.get) if scores else ""
        saver.best_model_score = scores.get(saver.best_model_path)


class LightningState(LibraryState):
    """Counters, the states of callbacks and data module, metrics, and what the module adds."""

    def __init__(self, trainer: Any, session: FitSession) -> None:
        super().__init__(trainer, session)
        self._loops = dict(_walk_loops("fit_loop", trainer.fit_loop))
        self._sums: dict[str, Any] = {}
        self.files = CheckpointFiles(trainer, session)
        self.counts_epoch = True
        self._callback_states: list[tuple[Any, Any]] = []

    def state_dict(self) -> dict[str, Any]:
        """Return all of it; what was restored until it is applied."""
        if self._restored is not None:
            return self._restored
        loops = {name: _capture_loop(loop) for name, loop in self._loops.items()}
        if not self.counts_epoch:
            for tracker in loops["fit_loop"]["epoch_progress"].values():
                tracker["processed"] -= 1
        callbacks = {callback.state_key: callback for callback in self._trainer.callbacks}
        states = {
            "callbacks": {key: callback.state_dict() for key, callback in callbacks.items()},
            "unsaved": {key: _pick(callback, _UNSAVED) for key, callback in callbacks.items()},
            "added": {key: self._capture_added(callback) for key, callback in callbacks.items()},
        }
        sums = {
            key: _pick(result, _SUMS)
            for key, result in self._results.items()
            if result.is_tensor and not result.has_reset
        }
        return {
            **super().state_dict(),
            "loops": loops,
            "is_between": self._session.data.is_between,
            "should_stop": self._trainer.should_stop,
            **{
                name: {key: _copy(state) for key, state in by_key.items() if state}
                for name, by_key in states.items()
            },
            "module": self._capture_added(self._trainer.lightning_module),
            "datamodule": self._call_datamodule("state_dict") or {},
            "metrics": _copy(_pick(self._trainer._logger_connector, _METRICS)),  # noqa: SLF001  the public ones compute
            "sums": _copy({**self._sums, **sums}),
            "held": dict(self.files.held),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Set all of it but what Lightning changes until the first batch."""
        if self._restored is None:  # a state may be tried before it is taken
            self.files.note_named()
        self._restored = state
        self._session.data.is_between = state["is_between"]
        self._load_loops(state["loops"])
        for callback in self._trainer.callbacks:
            key = callback.state_key
            if key in state["callbacks"]:
                stored = _copy(state["callbacks"][key])
                # How long to wait is a setting of the script, not a state of the run.
                kept = {"patience": callback.patience} if "patience" in stored else {}
                callback.load_state_dict({**stored, **kept})
            vars(callback).update(state["unsaved"].get(key, {}))
            self._load_added(callback, state["added"].get(key))
        self._load_added(self._trainer.lightning_module, state["module"])
        if state["datamodule"]:
            self._call_datamodule("load_state_dict", copy.deepcopy(state["datamodule"]))

    def prepare_epoch(self) -> None:
        """Let Lightning enter the epoch of the restored state as it enters every epoch."""
        if self._restored is None:
            return
        for tracker in (self._epochs.total, self._epochs.current):
            tracker.ready = tracker.started = tracker.completed = tracker.processed
        # As in Lightning's own resume: it would change what was restored.
        self._trainer.num_sanity_val_steps = 0
        # Stop a fit that early stopping or a timer has ended; what a program stopped may go on.
        trainer = self._trainer
        is_over = trainer.fit_loop._can_stop_early  # noqa: SLF001  no public way to ask
        has_ended = any(map(_has_stopped, trainer.callbacks))
        self._restored["should_stop"] = self._restored["should_stop"] and (has_ended or not is_over)
        trainer.should_stop = self._restored["should_stop"]
        if has_ended and is_over:
            log.info(ENDED)
        for timer in trainer.callbacks:
            if getattr(timer, "_duration", None) is not None:
                timer._check_time_remaining(trainer)  # noqa: SLF001  it did so before it was restored

    def note_epoch(self) -> None:
        """Note states of callbacks, too; an epoch that follows the commit begins but once."""
        if self._restored is None or self._restored["is_between"]:
            return
        super().note_epoch()
        callbacks = self._trainer.callbacks
        self._callback_states = [(callback, _copy(callback.state_dict())) for callback in callbacks]

    def _find_stateful(self) -> dict[str, Any]:
        """Return what the module holds: schedulers that it steps by hand, averages that are not modules."""
        known = set(map(id, self._session.objects))
        return {
            f"module.{name}": value
            for name, value in vars(self._trainer.lightning_module).items()
            if id(value) not in known and _has_state(value)
        }

    def _apply(self, state: dict[str, Any]) -> None:
        super()._apply(state)
        for callback, stored in self._callback_states:
            if stored:
                callback.load_state_dict(stored)
        self._callback_states = []
        self._trainer.should_stop = state["should_stop"]
        self._load_loops(state["loops"])
        self.files.restore(state["held"])
        self._load_metrics(state)
        sums = state["sums"]
        for key, result in self._results.items():
            if key in sums:
                vars(result).update(_copy(sums[key]), has_reset=False, _computed=None)
            elif result.is_tensor:
                result.reset()
        self._sums = {key: stored for key, stored in sums.items() if key not in self._results}
        fit = self._trainer.fit_loop
        inner = fit.epoch_loop
        if state["is_between"]:
            # The commit is between two epochs: what Lightning does on entering the next one.
            self._epochs.increment_ready()
            self._epochs.increment_started()
            inner.batch_progress.reset_on_run()
            inner.scheduler_progress.reset_on_run()
            inner.automatic_optimization.optim_progress.reset_on_run()
            inner.val_loop.batch_progress.total.reset()
        # It says which batch is the last; a step that is given the iterator is counted before it draws.
        fetcher = fit._data_fetcher  # noqa: SLF001
        is_counted = hasattr(fetcher, "iterator_wrapper")
        fetcher.fetched = inner.batch_progress.current.ready - is_counted

    def give_back(self) -> None:
        """Report what a finished fit did: with nothing left to do, Lightning calls no hook."""
        state, self._restored = self._restored, None
        if state is None:
            return
        super()._apply(state)
        self._load_metrics(state)
        if not state["is_between"]:
            self._epochs.increment_processed()
            self._epochs.increment_completed()
        for callback in self._trainer.callbacks:
            if hasattr(callback, "_average_model"):
                callback.on_train_end(self._trainer, self._trainer.lightning_module)

    def _load_metrics(self, state: dict[str, Any]) -> None:
        for name, metrics in state["metrics"].items():
            setattr(self._trainer._logger_connector, name, _copy(metrics))  # noqa: SLF001

    def _list_callbacks(self) -> list[Any]:
        return list(self._trainer.callbacks)

    @property
    def _epochs(self) -> Any:
        return self._trainer.fit_loop.epoch_progress

    def _load_loops(self, states: dict[str, Any]) -> None:
        for name, loop in self._loops.items():
            for key, value in states[name].items():
                if f"_{key}" in _REMEMBERED:
                    setattr(loop, f"_{key}", value)
                else:
                    getattr(loop, key).load_state_dict(copy.deepcopy(value))

    # What callbacks and the module add to a checkpoint of Lightning's.

    def _usual(self) -> dict[str, Any]:
        trainer, module = self._trainer, self._trainer.lightning_module
        return {
            "epoch": trainer.current_epoch,
            "global_step": trainer.global_step,
            "state_dict": module.state_dict(),
        }

    def _capture_added(self, owner: Any) -> dict[str, Any]:
        # An object that keeps the default method adds nothing; averages are parts of the run anyway.
        if type(owner).on_save_checkpoint.__qualname__ in (
            "Callback.on_save_checkpoint",
            "CheckpointHooks.on_save_checkpoint",
        ) or hasattr(owner, "_average_model"):
            return {}
        usual = self._usual()
        checkpoint = dict(usual)
        owner.on_save_checkpoint(*self._arguments(owner), checkpoint)
        return {key: value for key, value in checkpoint.items() if key not in usual}

    def _load_added(self, owner: Any, added: dict[str, Any] | None) -> None:
        if added:
            owner.on_load_checkpoint(*self._arguments(owner), {**self._usual(), **_copy(added)})

    def _arguments(self, owner: Any) -> tuple[Any, ...]:
        module = self._trainer.lightning_module
        return () if owner is module else (self._trainer, module)

    def _call_datamodule(self, method: str, *values: Any) -> Any:
        datamodule = self._trainer.datamodule
        return None if datamodule is None else getattr(datamodule, method)(*values)

    # Means over an epoch.

    @property
    def _results(self) -> dict[str, Any]:
        results: dict[str, Any] = self._trainer.fit_loop.epoch_loop._results  # noqa: SLF001  no public name
        return results

    def add_sums(self) -> None:
        """Add what a metric had summed up before the resume, once Lightning has made it again."""
        for key in self._sums.keys() & self._results.keys():
            live, sums = self._results[key], self._sums.pop(key)
            join = (
                live.meta.reduce_fx
                if live.meta.is_max_reduction or live.meta.is_min_reduction
                else torch.add
            )
            for name in ("value", "cumulated_batch_size"):
                if name in sums and live.meta.on_epoch:
                    setattr(live, name, join(sums[name].to(live.device), getattr(live, name)))
            live._computed = None  # noqa: SLF001  or it stays what it was


def _has_stopped(callback: Any) -> bool:
    """Return whether a callback is an EarlyStopping that has ended its fit, by its present patience."""
    if not hasattr(callback, "wait_count"):
        return False
    reason = getattr(callback, "stopping_reason", None)
    is_other = reason is not None and reason.name not in ("NOT_STOPPED", "PATIENCE_EXHAUSTED")
    return is_other or callback.wait_count >= callback.patience


def _has_state(value: Any) -> bool:
    """Return whether an object has a state of its own; loaders and optimizers have their place."""
    others = ("parameters", "param_groups", "__iter__", "dataset")
    return (
        not isinstance(value, type)
        and callable(getattr(value, "state_dict", None))
        and callable(getattr(value, "load_state_dict", None))
        and not any(hasattr(value, name) for name in others)
    )


def _pick(owner: Any, names: tuple[str, ...]) -> dict[str, Any]:
    return {name: getattr(owner, name) for name in names if hasattr(owner, name)}


def _copy(state: Any) -> Any:
    """Return a copy whose tensors share nothing: which ones do is not state of the library."""
    return map_leaves(
        state,
        lambda leaf, _: (
            leaf.detach().clone() if isinstance(leaf, torch.Tensor) else copy.deepcopy(leaf)
        ),
    )


def _walk_loops(name: str, loop: Any) -> Iterator[tuple[str, Any]]:
    yield name, loop
    for key, value in vars(loop).items():
        if hasattr(value, "restarting") and hasattr(value, "on_iteration_done"):
            yield from _walk_loops(f"{name}.{key}", value)


def _capture_loop(loop: Any) -> dict[str, Any]:
    state = {
        key: copy.deepcopy(value.state_dict())
        for key, value in vars(loop).items()
        if dataclasses.is_dataclass(type(value)) and hasattr(value, "reset_on_run")
    }
    return state | {name[1:]: value for name, value in _pick(loop, _REMEMBERED).items()}
