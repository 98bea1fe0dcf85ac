"""Hugging Face Trainer: a callback that commits beside training, resumes it, and rolls it back.

    callback = MvcCallback("runs/gpt", every=1000)
    callback.train(trainer)  # instead of trainer.train()

The Trainer keeps its position in local variables, which nothing can set from outside. So for a
resume and for a rollback it is entered again, through its own ``resume_from_checkpoint``: it gets a
folder with the Trainer's state alone and finds its epoch and step from that. Everything else is
restored here to the bit, including the data and all random number generators (which the Trainer's
own resume only approximates). Optimizer and scheduler stay the same objects across a rollback. A
step is the Trainer's ``global_step``.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import json
import logging
import os
import tempfile
import time
from typing import TYPE_CHECKING, Any

from torch import nn

from mvc import NotFoundError, Repo, UsageError
from mvc.training import RunStore
from mvc_hooks.adapters.session import (
    ENDED,
    FitSession,
    LibraryState,
    SessionCallback,
    check_accelerator,
    import_library,
)
from mvc_hooks.parts.watch import lend
from mvc_hooks.ranks.group import Ranks

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mvc_hooks.reports import RollbackReport

log = logging.getLogger("mvc_hooks")
_LIBRARY = import_library("transformers", extra="transformers")
_LOOP = import_library("transformers.trainer", extra="transformers")
_CALLBACK: Any = _LIBRARY.TrainerCallback
_STATE = "trainer"
_STATE_FILE = "trainer_state.json"
# Sums between two records of the log, as far as this version of the Trainer keeps them outside.
_SUMS = (
    "_tr_loss", "_total_loss_scalar", "_globalstep_last_logged", "_initial_global_step", "current_flos"
)  # fmt: skip
_SETTINGS = (
    "max_steps", "num_train_epochs", "gradient_accumulation_steps", "max_grad_norm", "bf16", "fp16",
    "lr_scheduler_type", "warmup_steps", "label_smoothing_factor", "neftune_noise_alpha",
)  # fmt: skip
_COUNT = "early_stopping_patience_counter"
_MAKE_NOTHING: dict[str, Any] = {
    "model_init": None,
    **dict.fromkeys(
        ("create_optimizer", "create_scheduler", "create_optimizer_and_scheduler"),
        lambda *_, **__: None,
    ),
}
"""Attributes of a Trainer that keeps the model, optimizer and scheduler it has."""


class _WentBackError(Exception):
    """Leaves the Trainer's loop, so that it can be entered again."""


class MvcCallback(SessionCallback, _CALLBACK):  # type: ignore[misc]  # the library is imported when it is there
    """Commits a Trainer's run to a repository, resumes it, and rolls it back."""

    library_state: _TrainerState
    _feed: Any = None
    _tip: str | None = None

    def train(self, trainer: Any, **options: Any) -> Any:
        """Train as ``trainer.train(**options)`` does: from where the branch stands, across rollbacks."""
        if options.get("resume_from_checkpoint"):
            raise UsageError(
                "resume_from_checkpoint is set, but the run resumes from the commits of its branch",
                hint="remove resume_from_checkpoint",
            )
        check_accelerator(trainer.accelerator)
        self._check_alone(trainer.callback_handler.callbacks)
        self._feed = None
        session = self._start_session(trainer)
        self.library_state = _TrainerState(trainer, session)
        self._tip, self.library_state.known = Ranks().ask_first(self._find_state)
        if self not in trainer.callback_handler.callbacks:
            trainer.add_callback(self)
        try:
            with contextlib.ExitStack() as borrowed:
                borrowed.enter_context(_borrow(trainer, self))
                while True:
                    try:
                        result = _enter(trainer, self.library_state.known, options)
                    except _WentBackError:
                        # Otherwise the Trainer would make others, which were not restored.
                        borrowed.enter_context(lend(trainer, _MAKE_NOTHING))
                        borrowed.enter_context(_prepare_once(trainer.accelerator))
                        trainer._created_lr_scheduler = False  # noqa: SLF001  there is no public way
                        # It adds noise to embeddings (NEFTune) each time it is entered.
                        noise = getattr(trainer, "neftune_hook_handle", None)
                        if noise is not None:
                            noise.remove()
                    else:
                        session.finish(is_between=True)
                        return result
        except BaseException as error:
            session.abandon(error)
            raise
        finally:
            self._feed = None
            session.data.evaluation.remove()

    def _find_state(self) -> tuple[str | None, dict[str, Any] | None]:
        """Return the tip, and the Trainer's state there, which it needs before anything is restored."""
        repo = Repo.init(self._path)
        branch = self._options.get("branch") or repo.head.branch
        try:
            tip = repo.resolve(f"refs/heads/{branch}")
        except NotFoundError:
            return None, None
        state = RunStore(repo).outline_state(tip).get(_STATE)
        if not isinstance(state, dict) or not isinstance(state.get("state"), dict):
            raise UsageError(
                f"the commits of branch {branch!r} do not come from a Trainer",
                hint="pass branch=... to use another branch",
            )
        return tip, dict(state)

    # Events, in the order in which they come.

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        """Make the checkpointer, unless the Trainer was only entered again."""
        if self._session is None or not self._trainer.is_in_train or self._feed is None:
            raise UsageError(
                "this callback cannot resume a Trainer by itself",
                hint="call callback.train(trainer) instead of trainer.train()",
            )
        if self._session.checkpointer is None:
            trainer = self._trainer
            parts = {
                "model": trainer.model,
                "optimizer": getattr(trainer.optimizer, "optimizer", trainer.optimizer),
                "scheduler": getattr(trainer.lr_scheduler, "scheduler", trainer.lr_scheduler),
                "scaler": getattr(trainer.accelerator, "scaler", None),
                _STATE: self.library_state,
            }
            self._session.data.note_settings(args, _SETTINGS)
            opened = self._session.open(**parts)
            if opened.resumed_from != self._tip:
                # The writer of a killed run has finished its last commit since ``_find_state``.
                self._session.hold()
                raise _WentBackError
        self._session.begin()
        self.library_state.begin()
        if self.library_state.known is not None and not self._session.data.will_begin:
            self.library_state.note_epoch()

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        """Judge the step while it can still be skipped."""
        self._check_step(self._trainer.model.parameters())

    def on_epoch_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        """Commit if a program stops the run in the middle of an epoch: what follows is of its end."""
        is_over = float(state.epoch).is_integer() or state.global_step >= state.max_steps
        if control.should_training_stop and not (is_over or self.library_state.has_ended()):
            self._fit.finish(is_between=False)

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        """Judge the last step; a rollback is still possible."""
        if self._fit.is_open:
            self._fit.data.is_between = True
            self._fit.complete_step()

    # What the session asks for.

    def count_steps(self) -> int:
        """Return the Trainer's step."""
        steps: int = self._trainer.state.global_step
        return steps

    def go_on_from(self, report: RollbackReport) -> None:
        """Leave the loop; ``train`` enters it again."""
        self._fit.hold()
        raise _WentBackError(str(report))

    def make_feed(self, loader: Any) -> Any:
        """Return what the Trainer iterates; it stays the same across a rollback."""
        if self._feed is None:
            self._feed = self._fit.feed(loader)
        return self._feed


@contextlib.contextmanager
def _borrow(trainer: Any, callback: MvcCallback) -> Iterator[None]:
    """Replace the Trainer's loader, and what it would load from a folder; see its losses."""
    make_loader, make_evaluation_loader, step, skip = (
        trainer.get_train_dataloader,
        trainer.get_eval_dataloader,
        trainer.training_step,
        _LOOP.skip_first_batches,
    )
    # Older versions sum up by themselves.
    finalize: Any = getattr(trainer, "_finalize_training", None)

    def take_loss(*values: Any, **options: Any) -> Any:
        loss = step(*values, **options)
        callback._fit.add_loss(loss)  # noqa: SLF001  the same module
        return loss

    def skip_batches(loader: Any, *values: Any, **options: Any) -> Any:
        return loader if loader is callback._feed else skip(loader, *values, **options)  # noqa: SLF001

    def finish(trial: Any, num_train_samples: Any, start_time: float) -> Any:  # noqa: ARG001
        state = callback.library_state
        state.land()  # if all steps were taken before
        # The best model may be loaded over the last one.
        callback._fit.finish(is_between=float(trainer.state.epoch or 0).is_integer())  # noqa: SLF001
        return finalize(trial, num_train_samples, time.time() - state.seconds)

    def load_nothing(*_: Any, **__: Any) -> None:
        """Everything is restored by the checkpointer."""

    def watch_loader(*values: Any, **options: Any) -> Any:
        loader = make_evaluation_loader(*values, **options)
        callback._fit.data.evaluation.watch(loader)  # noqa: SLF001
        return loader

    lent: dict[str, Any] = {
        "get_train_dataloader": lambda: callback.make_feed(make_loader()),
        "get_eval_dataloader": watch_loader,
        "training_step": take_loss,
        "_load_from_checkpoint": load_nothing,
        "_load_optimizer_and_scheduler": load_nothing,
        "_load_scaler": load_nothing,
        "_load_rng_state": load_nothing,
        **({} if finalize is None else {"_finalize_training": finish}),
        **_find_place(trainer, callback.library_state),
    }
    with lend(trainer, lent), lend(_LOOP, {"skip_first_batches": skip_batches}):
        yield


def _prepare_once(accelerator: Any) -> contextlib.AbstractContextManager[None]:
    """Leave the model as it was prepared: sharded again, its optimizer would lose its parameters."""
    prepare = accelerator.prepare

    def keep(*prepared: Any, **options: Any) -> Any:
        if not any(isinstance(value, nn.Module) for value in prepared):
            return prepare(*prepared, **options)
        return prepared if len(prepared) > 1 else prepared[0]

    is_sharded = getattr(accelerator, "is_fsdp2", False)
    return lend(accelerator, {"prepare": keep} if is_sharded else {})


def _enter(trainer: Any, known: dict[str, Any] | None, options: dict[str, Any]) -> Any:
    if known is None:
        return trainer.train(**options)
    # It goes on: there is no start to evaluate at, and it has to count the batches before.
    changed = {"eval_on_start": False, "ignore_data_skip": False}
    with tempfile.TemporaryDirectory(prefix="mvc-") as folder, lend(trainer.args, changed):
        with open(os.path.join(folder, _STATE_FILE), "w", encoding="utf-8") as file:
            json.dump(known["state"], file)
        return trainer.train(**options, resume_from_checkpoint=folder)


def _find_place(trainer: Any, state: _TrainerState) -> dict[str, Any]:
    """Return what has a Trainer go on where it was, and end where it should; older versions do by themselves."""
    find_place: Any = getattr(trainer, "_init_training_state", None)
    measure: Any = getattr(trainer, "set_initial_training_values", None)

    def find(*values: Any, **options: Any) -> Any:
        """Return epoch and batch to go on from, which the Trainer guesses from the step."""
        place, known = find_place(*values, **options), state.known
        if known is None:
            return place
        has_ended = state.has_ended(known)
        if has_ended:
            log.info(ENDED)
        if has_ended or trainer.state.global_step >= trainer.state.max_steps:
            return trainer.state.num_train_epochs, 0  # it would take one more step, or train on
        return known["place"]

    def measure_all(args: Any, loader: Any) -> tuple[Any, ...]:
        """Measure the run, with the epochs that it takes because batches were skipped."""
        epochs, steps, *others = measure(args, loader)
        known = state.known
        if known is not None and args.max_steps > 0 and steps:
            # The epochs that its remaining steps take at the present number of batches.
            epoch, batch = known["place"]
            step = int(known["state"]["global_step"])
            skipped = int(epoch) * steps + int(batch) // args.gradient_accumulation_steps - step
            epochs += max(0, -(-skipped // steps))
        return epochs, steps, *others

    lent = {"_init_training_state": find, "set_initial_training_values": measure_all}
    return {name: value for name, value in lent.items() if hasattr(trainer, name)}


class _TrainerState(LibraryState):
    """What the Trainer itself knows of a run; ``known`` is that as last restored."""

    def __init__(self, trainer: Any, session: FitSession) -> None:
        super().__init__(trainer, session)
        self.known: dict[str, Any] | None = None
        self._began_s = time.perf_counter()

    def begin(self) -> None:
        """Count the time of a run that begins."""
        self._began_s = time.perf_counter()

    @property
    def seconds(self) -> float:
        """How long the run took up to here, without steps that were lost or abandoned."""
        return time.perf_counter() - self._began_s

    def state_dict(self) -> dict[str, Any]:
        """Return its state and sums; the restored ones until they are applied."""
        if self._restored is not None:
            return self._restored
        trainer = self._trainer
        live = {name: getattr(trainer, name) for name in _SUMS if hasattr(trainer, name)}
        sums = {name: getattr(value, "item", lambda v=value: v)() for name, value in live.items()}
        return {
            **super().state_dict(),
            "state": _plain(dataclasses.asdict(trainer.state)),
            "sums": sums,
            "place": list(self._session.data.place),
            "seconds": self.seconds,
            "callbacks": [
                [type(callback).__name__, _plain(callback.state()["attributes"])]
                for callback in self._list_stateful()
            ],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Remember them: the Trainer makes new ones when its loop is entered."""
        self._restored = self.known = state

    def _apply(self, state: dict[str, Any]) -> None:
        self._began_s = time.perf_counter() - state["seconds"]
        for name, value in state["sums"].items():
            live: Any = getattr(self._trainer, name, None)
            if hasattr(live, "fill_"):
                live.fill_(value)
            elif live is not None:
                setattr(self._trainer, name, value)
        stored = list(state["callbacks"])
        for callback in self._list_stateful():
            entry = next(
                (candidate for candidate in stored if candidate[0] == type(callback).__name__), None
            )
            if entry is not None:
                stored.remove(entry)
                vars(callback).update(copy.deepcopy(entry[1]))
        super()._apply(state)

    def has_ended(self, known: dict[str, Any] | None = None) -> bool:
        """Return whether early stopping has ended the run, or that of a commit, by its present patience."""
        stored = [] if known is None else known["callbacks"]
        counts = {name: attributes.get(_COUNT, 0) for name, attributes in stored}
        return any(
            counts.get(type(callback).__name__, getattr(callback, _COUNT))
            >= callback.early_stopping_patience
            for callback in self._list_callbacks()
            if hasattr(callback, _COUNT)
        )

    def _list_callbacks(self) -> list[Any]:
        return list(self._trainer.callback_handler.callbacks)

    def _list_stateful(self) -> list[Any]:
        """Return those with a state, as the Trainer's own checkpoints have them."""
        callbacks = self._list_callbacks()
        return [
            callback
            for callback in callbacks
            if hasattr(callback, "state") and hasattr(callback, "from_state")
        ]


def _plain(value: Any) -> Any:
    """Return a value as it comes back from JSON."""
    return json.loads(json.dumps(value, default=float))
