"""Models as an entry builds them, with the weights of a checkpoint.

An entry that takes no argument builds a model, and its weights are loaded here. One that takes an argument
gets the path of the checkpoint and loads it itself, as libraries do that keep weights in another form
than their models.
"""

from __future__ import annotations

import inspect
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from mvc import MvcError, UsageError, open_model
from mvc_lab.behaviour.comparing import run_once
from mvc_lab.behaviour.loading import load_weights

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import ExitStack

    from torch import nn

    from mvc import Repo
    from mvc_lab.behaviour.inputs import Batch

_HINT = (
    "it returns the model: without arguments as it is before weights are loaded, "
    "or with one, the path of a checkpoint, as it is loaded from there"
)


class ModelLoader:
    """Makes models of an entry; ``sample`` is what each runs on once before it gets its weights."""

    def __init__(
        self, build: Callable[..., object], repo: Repo | None, seed: int, stack: ExitStack
    ) -> None:
        self._build, self._repo, self._seed, self._stack = build, repo, seed, stack
        self._takes_path = _count_arguments(build) == 1
        self._folders: dict[str, Path] = {}  # of commits whose files were written
        self.sample: Batch | None = None

    def load(self, operand: str | None) -> nn.Module:
        """Return a new model with the weights of a revision, of the worktree or of files."""
        model = self.make(operand)
        if self.sample is not None and not self._takes_path:
            run_once(model, self.sample)  # makes what modules make when they first run
        self.fill(model, operand)
        return model

    def make(self, operand: str | None) -> nn.Module:
        """Return what the entry builds, from the seed.

        Raises:
            UsageError: the entry fails or returns something else.
        """
        arguments = [self._find_path(operand)] if self._takes_path else []
        torch.manual_seed(self._seed)
        try:
            model = self._build(*arguments)
        except MvcError:
            raise
        except (Exception, SystemExit) as error:
            said = (str(error).strip() or "no message").splitlines()[0]
            raise UsageError(
                f"the entry failed: {type(error).__name__}: {said}", hint=_HINT
            ) from error
        if not isinstance(model, torch.nn.Module):
            raise UsageError(
                f"the entry returned {type(model).__name__}, not a torch.nn.Module", hint=_HINT
            )
        return model

    def fill(self, model: nn.Module, operand: str | None) -> None:
        """Load weights into a model, unless its entry did."""
        if not self._takes_path:
            with open_model(operand, self._repo) as stored:
                load_weights(model, stored)

    def _find_path(self, operand: str | None) -> str:
        """Return the file or folder of a checkpoint; a revision's is written to a scratch folder."""
        if operand is None:
            assert self._repo is not None
            return str(self._repo.worktree)
        with open_model(operand, self._repo) as stored:
            commit = stored.commit
        if commit is None or self._repo is None:
            return operand
        if commit not in self._folders:
            scratch = tempfile.TemporaryDirectory(prefix="mvc-verify-")
            self._folders[commit] = Path(self._stack.enter_context(scratch), "files")
            self._repo.export(commit, self._folders[commit])
        return str(self._folders[commit] / operand.partition(":")[2])


def _count_arguments(build: Callable[..., object]) -> int:
    """Return how many arguments an entry needs."""
    try:
        parameters = inspect.signature(build).parameters.values()
    except (TypeError, ValueError):
        return 0
    needed = [
        one
        for one in parameters
        if one.default is one.empty and one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)
    ]
    if len(needed) > 1:
        raise UsageError(f"the entry takes {len(needed)} arguments", hint=_HINT)
    return len(needed)
