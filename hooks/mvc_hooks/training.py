"""What one function builds, for training, for a resume and for a replay alike.

def build() -> Training:
    model, optimizer, loader = ...
    def train_step(run: StepRun) -> dict[str, object]:
        batch = run.next_batch()
        ...
        return {"loss": loss}
    return Training({"model": model, "optimizer": optimizer, "dataloader": loader}, train_step)

training = build()
with Checkpointer("runs/gpt", **training.parts) as ckpt:
    for _ in ckpt.steps(100_000):
        ckpt.step(**training.train_step(ckpt))
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from mvc import UsageError

if TYPE_CHECKING:
    from mvc_hooks.divergence.history import History
    from mvc_hooks.divergence.ladder import LadderStep


class StepRun(Protocol):
    """What a step may use of the run that it belongs to; a ``Checkpointer`` is one."""

    @property
    def step_count(self) -> int:
        """Completed steps."""
        ...

    @property
    def batch_index(self) -> int:
        """Batches drawn so far, skipped ones included."""
        ...

    @property
    def epoch(self) -> int:
        """Passes over the data that ``next_batch`` completed."""
        ...

    def next_batch(self) -> Any:
        """Return the next batch of the data loader."""
        ...

    def check(self, *, loss: object = None, grad_norm: object = None) -> bool:
        """Judge a step before ``optimizer.step()``; return whether it will be taken."""
        ...


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
    detectors: Iterable[Callable[[History], object]] | None = None
    ladder: Iterable[LadderStep] | None = None

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
    names = [one.name for one in fields(Training)]
    if isinstance(value, Mapping) and {"parts", "train_step"} <= value.keys() <= set(names):
        return Training(**value)
    raise UsageError(
        f"the entry returned a {type(value).__name__}, not a Training",
        hint="from mvc_hooks import Training; return Training(parts, train_step)",
    )
