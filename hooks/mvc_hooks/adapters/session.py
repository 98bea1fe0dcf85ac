"""A checkpointer inside of a library's loop.

library asks for a batch ──► is a step complete? ──► Checkpointer.step(): judge, freeze, go back
                         ──► just resumed? generators and counters as they were then
                         ──► the batch
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import torch

from mvc import UsageError
from mvc_hooks.adapters.feed import FedData, Feed
from mvc_hooks.checkpointer import Checkpointer
from mvc_hooks.parts.rng import capture_rng, restore_rng

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from mvc_hooks.reports import RollbackReport


class Host(Protocol):
    """What the loop of a library has to offer."""

    def count_steps(self) -> int:
        """Return the optimizer steps that the library has completed."""
        ...

    def land(self) -> None:
        """Make the counters what they were at the commit, in front of the first draw from it."""
        ...

    def go_on_from(self, report: RollbackReport) -> None:
        """Go on after a rollback; all parts are restored."""
        ...


class Session:
    """One fit.

    Attributes:
        data: position in the data.
        checkpointer: of the fit, once it is open.
    """

    def __init__(self, host: Host, path: object, options: Mapping[str, Any]) -> None:
        """Prepare; nothing is opened.

        Args:
            host: the library.
            path: folder of the repository.
            options: of ``Checkpointer``.
        """
        self._host, self._path, self._options = host, path, dict(options)
        self._has_loader = False
        self._landing: object = None
        self._seen_steps = 0
        self._loss: Any = None
        self._grad_norm: Any = None
        self.data = FedData("dataloader")
        self.checkpointer: Checkpointer | None = None
        self.may_skip_steps = any(
            getattr(step, "skip", False) for step in self._options.get("ladder") or ()
        )

    def feed(self, loader: Any) -> Feed:
        """Return what the library is to iterate.

        Raises:
            UsageError: a second loader, or one without a length.
        """
        try:
            len(loader)
        except TypeError as error:
            raise UsageError(
                "the train dataloader has no length, so that the end of a pass is unknown",
                hint="give its dataset or the loader __len__",
            ) from error
        self._has_loader = True
        return Feed(self.data, loader, self.draw)

    def open(self, **parts: object) -> Checkpointer:
        """Make the checkpointer, which resumes."""
        options: Any = self._options
        checkpointer = Checkpointer(self._path, **options, **parts, dataloader=self.data)  # type: ignore[arg-type]
        if checkpointer.resumed_from is not None:
            self._landing = capture_rng()
        self.checkpointer = checkpointer
        return checkpointer

    @property
    def is_open(self) -> bool:
        """Whether there is a checkpointer that was not closed."""
        return self.checkpointer is not None and not self.checkpointer.is_closed

    def begin(self) -> None:
        """Say that the library's counter stands where it begins now."""
        self._seen_steps = self._host.count_steps()

    def hold(self) -> None:
        """Have the library begin anew, and go on exactly from here."""
        self._landing = capture_rng()
        self.data.is_held = True

    # Steps.

    def add_loss(self, loss: Any) -> None:
        """Add a part of the loss of this step."""
        loss = loss.detach()
        self._loss = loss if self._loss is None else self._loss + loss

    def check(self, grad_norm: Any = None) -> bool:
        """Judge in front of the optimizer step; tell whether it is to be taken."""
        self._grad_norm = grad_norm
        if not self.may_skip_steps or self.checkpointer is None:
            return True
        return self.checkpointer.check(loss=self._loss, grad_norm=grad_norm)

    def draw(self) -> Any:
        """Return the next batch; the step before is complete now."""
        assert self.checkpointer is not None
        self.complete_step()
        if self._landing is not None:
            restore_rng(self._landing)
            self._landing = None
            self._host.land()
        return self.checkpointer.next_batch()

    def complete_step(self) -> RollbackReport | None:
        """Tell the checkpointer of a step that was completed, if one was."""
        done = self._host.count_steps()
        if done <= self._seen_steps or self.checkpointer is None:
            return None
        self._seen_steps = done
        loss, grad_norm, self._loss, self._grad_norm = self._loss, self._grad_norm, None, None
        report = self.checkpointer.step(loss=loss, grad_norm=grad_norm)
        if report is not None:
            self._host.go_on_from(report)
            self._seen_steps = self._host.count_steps()
        return report

    def finish(self, *, is_between: bool) -> RollbackReport | None:
        """Complete the last step of the fit, commit it, and close.

        Args:
            is_between: whether the pass over the data is over, too.

        Returns:
            A report where that step was one too much: the run is rolled back, and not over.
        """
        if self.checkpointer is None or not self.is_open:
            return None
        self.data.is_between = is_between
        report = self.complete_step()
        if report is None and self._landing is None:
            step = self.checkpointer.step_count
            self.checkpointer.close(last=f"step {step}, the last one")
        else:
            self.checkpointer.close()
        return report

    def abandon(self, kind: type[BaseException], error: BaseException) -> None:
        """Close because of an error."""
        if self.checkpointer is not None and self.is_open:
            self.checkpointer.__exit__(kind, error, error.__traceback__)


def measure_gradients(params: Iterable[torch.Tensor]) -> torch.Tensor | None:
    """Return the norm of all gradients together, without waiting for a device; None for none."""
    norms = [torch.linalg.vector_norm(p.grad.detach()) for p in params if p.grad is not None]
    return torch.linalg.vector_norm(torch.stack(norms)) if norms else None
