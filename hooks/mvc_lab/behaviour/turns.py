"""Two models that take turns: each runs until its next module returns, then waits.

So that at most one output of each is held, however large the model. Only one of the two computes at a
time, and each has its own state of the random number generators, as if it ran alone.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from torch import nn


@dataclass(frozen=True, slots=True)
class ModelCall:
    """The arguments of a model."""

    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PlacedModel:
    """One of the two models, and where it runs; None is where its parameters are."""

    model: nn.Module
    device: torch.device | None = None
    threads: int | None = None


@dataclass(frozen=True, slots=True)
class Returned:
    """The output of one module."""

    name: str
    kind: str
    output: Any


class _StoppedError(BaseException):
    """The rest of a run is not needed."""


class Turn:
    """One call of a model, in a thread of its own that runs only while ``advance`` waits for it."""

    def __init__(self, side: PlacedModel, call: ModelCall, seed: int) -> None:
        self._model, self._call, self._threads = side.model, call, side.threads
        before = _read_random()
        torch.manual_seed(seed)
        self._random = _read_random()
        _set_random(before)
        self._go, self._handed = threading.Semaphore(0), threading.Semaphore(0)
        self._returned: Returned | None = None
        self._is_stopped = self._is_done = False
        self._error: BaseException | None = None
        self.output: Any = None
        self._thread = threading.Thread(target=self._run, name="mvc-turn", daemon=True)

    def advance(self) -> Returned | None:
        """Return what the next module returned; None at the end of the call. What the call raised is raised here."""
        if self._is_done:
            return None
        if self._thread.ident is None:
            self._thread.start()
        self._go.release()
        self._handed.acquire()
        if self._error is not None:
            raise self._error
        returned, self._returned = self._returned, None
        return returned

    def close(self) -> None:
        """End the call, wherever it is."""
        if self._thread.ident is not None:
            self._is_stopped = True
            self._go.release()
            self._thread.join()

    def hand(self, returned: Returned) -> None:
        """Wait for the next turn, if this is called in the thread of this run."""
        if threading.get_ident() != self._thread.ident:
            return
        self._returned = returned
        del returned  # the other side does not wait for its memory
        self._random = _read_random()
        self._handed.release()
        self._wait()

    def _wait(self) -> None:
        self._go.acquire()
        if self._is_stopped:
            raise _StoppedError
        _set_random(self._random)
        if self._threads is not None:
            torch.set_num_threads(self._threads)

    def _run(self) -> None:
        try:
            self._wait()
            with torch.no_grad():
                self.output = self._model(*self._call.args, **self._call.kwargs)
        except _StoppedError:
            pass
        except BaseException as error:  # noqa: BLE001  raised again by advance
            self._error = error
        self._is_done = True
        self._handed.release()


def run_in_turns(
    sides: tuple[PlacedModel, PlacedModel],
    calls: Sequence[ModelCall],
    *,
    seed: int,
    with_modules: bool,
) -> Iterator[tuple[Returned | None, Returned | None]]:
    """Yield what the next module of each model returned, and at the end what the models did."""
    models = [side.model for side in sides]
    turns = [Turn(side, call, seed) for side, call in zip(sides, calls, strict=True)]
    try:
        with _hooks(models, turns, with_modules=with_modules):
            while (pair := (turns[0].advance(), turns[1].advance())) != (None, None):
                yield pair
    finally:
        for turn in turns:
            turn.close()
    outputs = zip(models, turns, strict=True)
    first, second = (Returned("", type(model).__name__, turn.output) for model, turn in outputs)
    yield first, second


@contextmanager
def _hooks(
    models: Sequence[nn.Module], turns: Sequence[Turn], *, with_modules: bool
) -> Iterator[None]:
    """Make each module below the top hand over what it returns."""

    def hand(name: str, turn: Turn, module: nn.Module, _inputs: object, output: object) -> None:
        turn.hand(Returned(name, type(module).__name__, output))

    handles = []
    try:
        for model, turn in zip(models, turns, strict=True):
            # What was compiled (torch.compile) runs as a whole, and calls no hooks of its modules.
            if not with_modules or hasattr(model, "_orig_mod"):
                continue
            for name, module in model.named_modules():
                if name and not isinstance(module, torch.jit.ScriptModule):
                    handles.append(module.register_forward_hook(partial(hand, name, turn)))
        yield
    finally:
        for handle in handles:
            handle.remove()


def _read_random() -> list[torch.Tensor]:
    devices = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []  # type: ignore[no-untyped-call]
    return [torch.get_rng_state(), *devices]


def _set_random(states: Sequence[torch.Tensor]) -> None:
    torch.set_rng_state(states[0])
    if states[1:]:
        torch.cuda.set_rng_state_all(states[1:])
