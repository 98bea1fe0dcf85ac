"""What one function builds, for training, for a resume and for a replay alike.

def build() -> Training:
    model, optimizer, loader = ...
    def train_step(run: StepRun) -> dict[str, object]:
        batch = run.next_batch()
        ...
        return {"loss": loss}
    return Training({"model": model, "optimizer": optimizer, "dataloader": loader}, train_step)

training = build()
with Checkpointer("runs/gpt", parts=training.parts) as ckpt:
    for _ in ckpt.steps(100_000):
        ckpt.step(**training.train_step(ckpt))
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, TypeAlias

from mvc import UsageError
from mvc_hooks.judge import SCALE, Judge, read_values

if TYPE_CHECKING:
    from mvc_hooks.divergence.ladder import Action, Steps
    from mvc_hooks.divergence.watch import Judges
    from mvc_hooks.log import RunLog
    from mvc_hooks.ranks.messages import StepMessages
    from mvc_hooks.run.live import LiveRun


class StepRun:
    """What a step may use of the run that it belongs to; a ``Checkpointer`` is one."""

    _run: LiveRun
    _judge: Judge
    _log: RunLog
    _messages: StepMessages

    @property
    def step_count(self) -> int:
        """Completed steps."""
        return self._run.counters.step

    @property
    def epoch(self) -> int:
        """Passes over the data that ``next_batch`` completed."""
        return 0 if self._run.data is None else self._run.data.epoch

    @property
    def tokens(self) -> int:
        """Sum of the ``tokens`` passed to ``step``."""
        return self._run.counters.tokens

    @property
    def samples(self) -> int:
        """Sum of the ``samples`` passed to ``step``."""
        return self._run.counters.samples

    @property
    def batch_index(self) -> int:
        """Index of the next batch: batches drawn so far, skipped ones included.

        Use it to find data by number: unlike the step, it moves on when a rollback skips batches.
        """
        return self._run.counters.batches

    def next_batch(self) -> Any:
        """Return the next batch of the data loader, across epochs and rollbacks.

        Raises:
            UsageError: no loader was passed, or several.
        """
        self._check_open()
        return self._run.next_batch()

    def saw(self, ids: object, *, source: str = "stream", skipped: str | None = None) -> None:
        """Record samples that this rank's next step trains on, where no loader of the run can tell.

        The samples of a torch DataLoader over a dataset with indices are recorded without it.

        Args:
            ids: indices (numbers, a range, an array) or keys (texts) of samples, in the order drawn.
            source: what they are samples of.
            skipped: why they were not trained on, if they were not.

        Raises:
            UsageError: samples that are not named so, or of a loader that is recorded already.
        """
        self._check_open()
        self._run.extensions.saw(ids, source, skipped)

    def check(self, *, loss: object = None, grad_norm: object = None) -> bool:
        """Judge a step before ``optimizer.step()``, so that it can still be skipped.

        If the ladder answers an alarm with ``skip_step``, the next ``optimizer.step()`` does
        nothing. On CUDA this waits for the device. ``step()`` then needs no loss.

        Returns:
            Whether the step will be taken.
        """
        self._check_open()
        self._send(self.step_count + 1, loss, grad_norm)
        action = self._judge.check(self._messages.drain(), self._log)
        if action is None or not action.skip:
            return True
        self._run.drop_next_step()
        self._run.scale_lr(action.lr_factor)
        return False

    def _check_open(self) -> None:
        """Check that the run was not closed, if it can be."""

    def _judge_step(self, loss: object, grad_norm: object) -> Action | None:
        """Judge the complete step, whose message is sent now if ``check`` has not done it."""
        if not self._judge.was_checked:
            self._send(self.step_count, loss, grad_norm)
        return self._judge.judge(self._messages.receive(self.step_count), self._log)

    def _send(self, step: int, loss: object, grad_norm: object) -> None:
        """Send the message of a step to all ranks."""
        run = self._run
        values = read_values(
            step, loss, grad_norm, lr=run.lr, scale=run.scale, reads_scale=self._judge.reads_scale
        )
        self._messages.send(step, values, self._write_note(), late=(SCALE,))

    def _write_note(self) -> dict[str, float]:
        """Return what else goes to the other ranks."""
        return {}


TrainStep: TypeAlias = "Callable[[Any], Mapping[str, Any] | None]"


@dataclass(frozen=True, slots=True)
class Training:
    """A run as it is before its first step.

    Attributes:
        parts: name → model, optimizer, ..., as for ``Checkpointer``.
        train_step: does exactly one step of the ``StepRun`` it is given, and returns the arguments
            of ``Checkpointer.step`` (``{"loss": loss}``), or None.
        detectors, ladder: those of the checkpointer. A replay needs them if they skip steps or
            scale the learning rate.
    """

    parts: Mapping[str, Any]
    train_step: TrainStep
    detectors: Judges | None = None
    ladder: Steps | None = None

    def __post_init__(self) -> None:
        parts: object = self.parts
        if not isinstance(parts, Mapping) or not parts:
            raise UsageError(
                "parts of a Training is not a dict of parts", hint='{"model": model, ...}'
            )
        if not callable(self.train_step):
            raise UsageError("train_step of a Training is not a function")


def as_training(value: object) -> Training:
    """Return what an entry built: a ``Training``, or a dict with the same keys."""
    if isinstance(value, Training):
        return value
    names = [field.name for field in fields(Training)]
    if isinstance(value, Mapping) and {"parts", "train_step"} <= value.keys() <= set(names):
        return Training(**value)
    raise UsageError(
        f"the entry returned a {type(value).__name__}, not a Training",
        hint="from mvc_hooks import Training; return Training(parts, train_step)",
    )
