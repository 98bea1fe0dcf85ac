"""The other processes of a distributed run, and what they have to agree on.

In data-parallel training every rank holds the same model and the same optimizer state, so rank 0
commits them for all. Every rank must take the same kind of step: one that rolls back while another
goes on is a deadlock. So decisions are made in one of three ways:

* from readings that are averaged over the ranks: all see the same, no message is needed;
* from what one rank knows (a signal, the clock, a failed commit): in a note that travels with the
  average of the readings, so that it arrives everywhere at the same step and costs no message;
* by rank 0, which tells the others, when a message costs nothing next to the work: at a commit, at
  a rollback, at the end.

Messages go over the CPU, so that no device has to be waited for; if the process group has no CPU
backend, the ranks make a gloo group. With one process, nothing here does anything.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from torch import distributed

from mvc import MvcError

if TYPE_CHECKING:
    from collections.abc import Callable

_Value = TypeVar("_Value")
_BASE = 1 << 16
_DUE, _FAILED = 1, 1 << 8


class Ranks:
    """All ranks of a run, as one of them sees them. Every rank must make one; it may leave later."""

    def __init__(self) -> None:
        self.rank, self.size, self.has_left = 0, 1, False
        self._group: distributed.ProcessGroup | None = None
        if distributed.is_available() and distributed.is_initialized():
            self.rank, self.size = distributed.get_rank(), distributed.get_world_size()
        # Over the CPU: with NCCL every message would wait for the device.
        if self.size > 1 and not _has_cpu_backend():
            self._group = distributed.new_group(backend="gloo")

    @property
    def is_first(self) -> bool:
        """Whether this is rank 0, the one that writes."""
        return self.rank == 0

    @property
    def is_alone(self) -> bool:
        """Whether there is no other rank to talk to: one process, or this one has left."""
        return self.size == 1 or self.has_left or not distributed.is_initialized()

    def leave(self) -> None:
        """Stop taking part: from now on no other rank is waited for."""
        self.has_left = True

    def share(self, value: _Value) -> _Value:
        """Return rank 0's value on every rank."""
        if self.is_alone:
            return value
        box: list[Any] = [value if self.is_first else None]
        distributed.broadcast_object_list(box, src=0, group=self._group)
        shared: _Value = box[0]
        return shared

    def collect(self, value: Any) -> list[Any]:
        """Return the values of all ranks on rank 0, nothing on the others."""
        if self.is_alone:
            return [value]
        values: list[Any] | None = [None] * self.size if self.is_first else None
        distributed.gather_object(value, values, dst=0, group=self._group)
        return values or []

    def exchange(self, value: Any) -> list[Any]:
        """Return the values of all ranks on every rank."""
        if self.is_alone:
            return [value]
        values: list[Any] = [None] * self.size
        distributed.all_gather_object(values, value, group=self._group)
        return values

    def on_first(self, compute: Callable[[], _Value]) -> _Value | None:
        """Compute on rank 0 only; None on the others. An error there is raised on every rank."""
        if self.is_alone:
            return compute()
        value, error = _try(compute) if self.is_first else (None, None)
        _raise(error, self.share(None if error is None else _describe(error)))
        return value

    def ask_first(self, compute: Callable[[], _Value]) -> _Value:
        """Compute on rank 0, and return the result, or raise the error, on every rank."""
        result: Any = self.share(self.on_first(compute))
        value: _Value = result
        return value

    def together(self, compute: Callable[[], _Value]) -> _Value:
        """Compute on every rank; an error on one is raised on every rank."""
        if self.is_alone:
            return compute()
        value, error = _try(compute)
        said = self.exchange(None if error is None else _describe(error))
        _raise(error, next((one for one in said if one is not None), None))
        result: Any = value
        done: _Value = result
        return done


def _has_cpu_backend() -> bool:
    config = distributed.get_backend_config()
    return any(part.split(":")[0] == "cpu" for part in config.split(","))


def _try(compute: Callable[[], _Value]) -> tuple[_Value | None, MvcError | None]:
    """Return the result or the error; an error of another kind is a bug, and is not caught."""
    try:
        return compute(), None
    except MvcError as error:
        return None, error


def _raise(mine: MvcError | None, said: tuple[str, str, str, str | None] | None) -> None:
    if mine is not None:
        raise mine
    if said is not None:
        module, name, message, hint = said
        raise getattr(importlib.import_module(module), name, MvcError)(message, hint=hint)


def _describe(error: MvcError) -> tuple[str, str, str, str | None]:
    # The error itself may not pickle: its cause can hold anything.
    kind = type(error)
    return kind.__module__, kind.__qualname__, error.message, error.hint


@dataclass(frozen=True, slots=True)
class Note:
    """What one rank notes, or all of them together: a signal, the clock, a failed commit.

    A note is one number that is summed over the ranks along with the readings. In base 65536 its
    digits are: how many ranks caught SIGTERM, how many SIGINT, and the flags of rank 0. A double
    holds three such digits exactly.
    """

    signal: str | None = None
    is_due: bool = False
    has_failed: bool = False

    def encode(self) -> float:
        """Return it as a number that can be summed."""
        number = _DUE * self.is_due + _FAILED * self.has_failed
        number += _BASE * (self.signal == "SIGINT")
        return float(number + _BASE * _BASE * (self.signal == "SIGTERM"))


def decode_notes(total: float) -> Note:
    """Return the notes of all ranks as one; of two signals, the more urgent SIGTERM."""
    rest, said = divmod(int(total), _BASE)
    terminated, interrupted = divmod(rest, _BASE)
    signal = "SIGTERM" if terminated else "SIGINT" if interrupted else None
    failed, due = divmod(said, _FAILED)
    return Note(signal, bool(due), bool(failed))


class Talk:
    """Notes as they go out and come in; ``heard`` is the latest of all ranks."""

    def __init__(self) -> None:
        self._has_asked = False
        self.heard = Note()

    def write(self, signal: str | None, *, is_due: bool, has_failed: bool) -> float:
        """Return the note of this rank for a step.

        Signals and failures are repeated until they are heard, because a rollback throws away
        notes on their way. A commit is asked for once: until the note arrives the clock stays due.
        """
        asks = is_due and not self._has_asked
        self._has_asked = self._has_asked or asks
        return Note(signal, asks, has_failed).encode()

    def read(self, total: float) -> None:
        """Take the notes of all ranks."""
        self.heard = decode_notes(total)

    def take_due(self) -> bool:
        """Return whether a commit was asked for since the last call."""
        due = self.heard.is_due
        if due:
            self._has_asked = False
        return due

    def forget(self) -> None:
        """Forget notes on their way; a rollback throws them away."""
        self._has_asked, self.heard = False, Note()
