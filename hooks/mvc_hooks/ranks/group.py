"""The processes of a distributed run, as one of them sees them, and what they tell each other.

Messages go over the CPU, so that no device has to be waited for; if the process group has no CPU
backend, the ranks make a gloo group. They cost something, so none is sent while nothing happens:
only where all ranks meet anyway, at the start, at a rollback, when a commit failed, and at the end.
"""

from __future__ import annotations

import atexit
import glob
import importlib
import time
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar, cast

import torch
from torch import distributed

from mvc import MvcError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence


_LEAVE_S, _MOST_LEAVE_S = 0.05, 5.0
_Value = TypeVar("_Value")
_Told = TypeVar("_Told")


class Ranks:
    """All ranks of a run, as one of them sees them. Every rank must make one; it may leave later."""

    def __init__(self) -> None:
        self.rank, self.size, self.has_left = 0, 1, False
        self._group: distributed.ProcessGroup | None = None
        if distributed.is_available() and distributed.is_initialized():
            self.rank, self.size = distributed.get_rank(), distributed.get_world_size()
        if self.size > 1:
            _wait_at_exit()
        # Over the CPU: with NCCL every message would wait for the device.
        if self.size > 1 and "cpu" not in find_backends():
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
        return cast("_Value", box[0])

    def collect(self, value: Any) -> list[Any]:
        """Return the values of all ranks on rank 0, nothing on the others."""
        if self.is_alone:
            return [value]
        values: list[Any] | None = [None] * self.size if self.is_first else None
        distributed.gather_object(value, values, dst=0, group=self._group)
        return values or []

    def merge(self, lines: Iterable[str]) -> list[str]:
        """Return the lines of all ranks on rank 0; those that it does not have name their rank."""
        first, *others = self.collect(list(lines)) or [[]]
        more = ((rank, line) for rank, lines in enumerate(others, 1) for line in lines)
        return [*first, *(f"rank {rank}: {line}" for rank, line in more if line not in first)]

    def exchange(self, value: Any) -> list[Any]:
        """Return the values of all ranks on every rank."""
        if self.is_alone:
            return [value]
        values: list[Any] = [None] * self.size
        distributed.all_gather_object(values, value, group=self._group)
        return values

    def exchange_bytes(self, data: bytes) -> list[bytes]:
        """Return what all ranks have, of the same length, on every rank; costs less than ``exchange``."""
        if self.is_alone:
            return [data]
        mine = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        gathered = [torch.empty_like(mine) for _ in range(self.size)]
        distributed.all_gather(gathered, mine, group=self._group)
        return [tensor.numpy().tobytes() for tensor in gathered]

    def send(self, data: torch.Tensor, source: int) -> None:
        """Fill a tensor on the host with the one of the rank ``source``, on every rank."""
        if not self.is_alone:
            distributed.broadcast(data, src=source, group=self._group)

    def on_first(self, compute: Callable[[], _Value]) -> _Value | None:
        """Compute on rank 0 only; None on the others. An error there is raised on every rank."""
        if self.is_alone:
            return compute()
        value, error = _try(compute) if self.is_first else (None, None)
        _raise(error, self.share(None if error is None else _describe(error)))
        return value

    def ask_first(self, compute: Callable[[], _Value]) -> _Value:
        """Compute on rank 0, and return the result, or raise the error, on every rank."""
        if self.is_alone:
            return compute()
        value, error = _try(compute) if self.is_first else (None, None)
        value, said = self.share((value, None if error is None else _describe(error)))
        _raise(error, said)
        return cast("_Value", value)

    def attempt(self, compute: Callable[[], _Value]) -> tuple[_Value, dict[int, MvcError]]:
        """Compute on every rank; return the result, and the errors by rank, alike on every rank.

        The result counts only if there are none.
        """
        value, error = _try(compute)
        said = self.exchange(None if error is None else _describe(error))
        errors = {
            rank: _rebuild(*failure) for rank, failure in enumerate(said) if failure is not None
        }
        if error is not None:
            errors[self.rank if len(said) > 1 else 0] = error
        return cast("_Value", value), errors

    def together(self, compute: Callable[[], _Value]) -> _Value:
        """Compute on every rank; an error on one is raised on every rank."""
        return self.meet(lambda: (compute(), None))[0]

    def ask_all(self, compute: Callable[[], _Value]) -> list[_Value]:
        """Compute on every rank, and return all results on every rank; an error on one is raised on all."""
        return self.meet(lambda: (None, compute()))[1]

    def meet(self, compute: Callable[[], tuple[_Value, _Told]]) -> tuple[_Value, list[_Told]]:
        """Compute on every rank something for itself, and what it tells all; an error on one is raised on all."""
        if self.is_alone:
            value, message = compute()
            return value, [message]
        answer, error = _try(compute)
        said = None if error is None else _describe(error)
        answers = self.exchange((None if answer is None else answer[1], said))
        _raise(error, next((said for _, said in answers if said is not None), None))
        assert answer is not None
        return answer[0], [value for value, _ in answers]


@cache
def _wait_at_exit() -> None:
    """Let the interpreter end only after the threads of gloo are idle.

    One that still drops a tensor of the last message needs the interpreter's lock. If it gets to ask for
    that too late, Python ends the thread in the middle of C++, and that ends the process: by SIGABRT, or by
    a second drop of the same tensor.
    """
    atexit.register(_let_gloo_end)


def _let_gloo_end() -> None:
    """Give them a moment, and on a busy machine as long as one waits for a processor."""
    end_s = time.monotonic() + _MOST_LEAVE_S
    time.sleep(_LEAVE_S)
    while _is_gloo_running() and time.monotonic() < end_s:
        time.sleep(_LEAVE_S / 10)


def _is_gloo_running() -> bool:
    """Return whether a thread of gloo is at work or waits for a processor; only Linux tells."""
    for path in glob.iglob("/proc/self/task/*/stat"):
        with suppress(OSError), open(path, encoding="utf-8", errors="replace") as file:
            name, _, rest = file.read().rpartition(") ")
            if "gloo" in name and rest.startswith("R"):
                return True
    return False


def find_backends() -> dict[str, str]:
    """Return device type → backend of the process group; empty without several ranks."""
    if not (distributed.is_available() and distributed.is_initialized()):
        return {}
    if distributed.get_world_size() < 2:  # noqa: PLR2004  # alone there is nothing to average
        return {}
    pairs = (part.split(":") for part in distributed.get_backend_config().split(",") if ":" in part)
    return {pair[0]: pair[1] for pair in pairs}


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
        raise _rebuild(*said)


def _rebuild(module: str, name: str, message: str, hint: str | None) -> MvcError:
    kind: type[MvcError] = getattr(importlib.import_module(module), name, MvcError)
    return kind(message, hint=hint)


def _describe(error: MvcError) -> tuple[str, str, str, str | None]:
    # The error itself may not pickle: its cause can hold anything.
    kind = type(error)
    return kind.__module__, kind.__qualname__, error.message, error.hint


_MOST = 6


def spell_ranks(ranks: Sequence[int]) -> str:
    """Return ranks as a text: ``ranks 1 to 3 and 7``."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    words: list[str] = []
    for run in runs:
        words += [f"{run[0]} to {run[-1]}"] if len(run) > 2 else map(str, run)  # noqa: PLR2004
    return f"rank{'s' * (len(ranks) > 1)} {join_words(words)}"


def spell_size(size: object) -> str:
    """Return how many ranks there are as a text: ``1 rank``, ``4 ranks``."""
    return f"{size} rank" if size == 1 else f"{size} ranks"


def join_words(words: Iterable[str], before: str = "") -> str:
    """Return words as a list in a sentence: ``a, b and c``; of many, the first six."""
    each = [before + word for word in words]
    each = [*each[:_MOST], "more"] if len(each) > _MOST else each
    return " and ".join([", ".join(each[:-1]), each[-1]] if len(each) > 1 else each)
