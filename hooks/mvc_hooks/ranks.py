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

A commit holds rank 0's state, stored where that of a single process would be, and what differs on
the other ranks: generators, the position in the data, gradients that accumulate and are not averaged
yet, errors of a compressing hook, and buffers that their batches changed. Under ``ranks`` are, for
each other rank, the parts and buffers in which it differs from rank 0:
``{"2": [{"at": ["rng"], "value": ...}, ...]}``. Parameters and optimizer state are the same
everywhere. That is checked once, before the first commit, because a run of another kind (sharded, or
each rank on its own) would come back wrong.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar, cast

import blake3
import torch
from torch import distributed
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from mvc import ConflictError, MvcError, UnsupportedError
from mvc_hooks.parts.module import ModulePart, clean_name
from mvc_hooks.parts.optimizer import OptimizerPart
from mvc_hooks.parts.part import DETAILS, flatten_parts
from mvc_hooks.parts.sources import StateSource
from mvc_hooks.parts.tree import (
    ABSENT,
    edit_at,
    find_at,
    format_path,
    list_items,
    map_tensors,
    order_like,
    read_bits,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from mvc_hooks.parts.part import Part

RANKS = "ranks"
"""The top-level name of the pieces of ranks other than 0."""
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
        more = ((rank, line) for rank, one in enumerate(others, 1) for line in one)
        return [*first, *(f"rank {rank}: {line}" for rank, line in more if line not in first)]

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
        return cast("_Value", self.share(self.on_first(compute)))

    def together(self, compute: Callable[[], _Value]) -> _Value:
        """Compute on every rank; an error on one is raised on every rank."""
        if self.is_alone:
            return compute()
        value, error = _try(compute)
        said = self.exchange(None if error is None else _describe(error))
        _raise(error, next((one for one in said if one is not None), None))
        return cast("_Value", value)


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


class RankState:
    """Gathers the pieces of all ranks, and finds this rank's among them."""

    def __init__(self, ranks: Ranks, parts: Mapping[str, Part]) -> None:
        self._ranks, self._parts = ranks, parts
        self._is_checked = False

    def gather(self, state: dict[str, Any]) -> dict[str, Any]:
        """Return the state, on rank 0 with the pieces of all ranks; every rank must call it."""
        ranks = self._ranks
        if ranks.is_alone:
            return state
        if not self._is_checked:
            self._check_replicas(state)
            self._is_checked = True
        mine = {path: find_at(state, path) for path in self._own_paths(state)}
        # Hashes first: most pieces are the same everywhere, and need not travel or be stored.
        digests = {path: _digest(value) for path, value in mine.items()}
        theirs = ranks.share(digests)
        pieces = [
            {
                "at": list(path),
                "value": map_tensors(mine[path], lambda tensor: tensor.detach().cpu()),
            }
            for path, digest in digests.items()
            if theirs.get(path) != digest
        ]
        gathered = ranks.collect(pieces)
        if not ranks.is_first:
            return state
        others = {str(rank): one for rank, one in enumerate(gathered) if rank}
        return {**state, RANKS: {"size": ranks.size, **others}}

    def open(
        self, source: StateSource, allow: Sequence[str]
    ) -> tuple[StateSource, Collection[str]]:
        """Return the state as this rank has it, and which parts of it are not stored."""
        if source.is_own:
            return source, ()
        outline = source.outline()
        stored = outline.get(RANKS)
        size = stored.get("size") if isinstance(stored, dict) else 1
        if size != self._ranks.size and RANKS not in allow:
            raise ConflictError(
                f"the run has {_count(self._ranks.size)}, but the commit was made by {_count(size)}",
                hint=f'start as many ranks, or pass allow=["{RANKS}"]: each then goes on with the '
                "position in the data and the random numbers that it has now",
            )
        is_known = type(size) is int and self._ranks.rank < size
        unknown = () if is_known else {str(path[0]) for path in self._own_parts()}
        if stored is None:
            return source, unknown
        mine = _RankSource(source, outline, self._ranks.rank)
        return StateSource(mine.outline, mine.load, mine.check), unknown

    def _own_parts(self) -> Iterator[tuple[Any, ...]]:
        """Yield the paths of the parts that may differ from rank to rank."""
        for entry in flatten_parts(self._parts):
            is_same = isinstance(entry.part, (ModulePart, OptimizerPart))
            if not (is_same or entry.path[0] == DETAILS or _is_shared(entry.part)):
                yield entry.path

    def _own_paths(self, state: Mapping[str, Any]) -> Iterator[tuple[Any, ...]]:
        """Yield the paths at which the state may differ from rank to rank."""
        for entry in flatten_parts(self._parts):
            if isinstance(entry.part, ModulePart):
                params = entry.part.module.named_parameters(remove_duplicate=False)
                names = {clean_name(name) for name, _ in params}
                held = find_at(state, entry.path)
                yield from ((*entry.path, name) for name in held if name not in names)
        yield from self._own_parts()

    def _check_replicas(self, state: Mapping[str, Any]) -> None:
        found: dict[str, bytes] = {}
        for entry in flatten_parts(self._parts):
            if isinstance(entry.part, ModulePart):
                for name, param in entry.part.module.named_parameters():
                    found[format_path((*entry.path, name))] = _digest(param)
            elif isinstance(entry.part, OptimizerPart):
                found[format_path(entry.path)] = _digest(find_at(state, entry.path))
        every = self._ranks.exchange(found)
        for rank, other in enumerate(every):
            for name in {**every[0], **other}:
                if every[0].get(name) != other.get(name):
                    raise UnsupportedError(
                        f"{name} differs between rank 0 and rank {rank}",
                        hint="ranks are committed as replicas of one model; wrap it in "
                        "DistributedDataParallel",
                    )


class _RankSource:
    """A state as one rank has it: rank 0's, with the pieces of that rank."""

    def __init__(self, source: StateSource, outline: dict[str, Any], rank: int) -> None:
        self._source, self._rank = source, str(rank)
        self._outline = outline
        self._base: dict[str, Any] = {}

    def outline(self) -> dict[str, Any]:
        return _overlay(self._outline, self._rank)

    def load(self, into: Mapping[str, object]) -> dict[str, Any]:
        """Return it; live tensors at this rank's own pieces are not filled here."""
        # The source would fill them with the values of rank 0.
        for path, _ in _pieces(self._outline, self._rank):
            if find_at(into, path) is not ABSENT:
                into = edit_at(into, path, None if type(path[-1]) is int else ABSENT)
        self._base = self._source.load(into)
        return _overlay(self._base, self._rank)

    def check(self, state: Mapping[str, object]) -> tuple[str, ...]:
        # Put this rank's values where the commit has them, and rank 0's back in their places.
        whole: Any = {**state, RANKS: self._base[RANKS]}
        for number, (path, _) in enumerate(_pieces(self._base, self._rank)):
            whole = edit_at(whole, (RANKS, self._rank, number, "value"), find_at(state, path))
            whole = edit_at(whole, path, find_at(self._base, path))
        return self._source.check(order_like(whole, self._base))


def _pieces(state: Mapping[str, Any], rank: str) -> list[tuple[tuple[Any, ...], Any]]:
    pieces = find_at(state, (RANKS, rank))
    if not isinstance(pieces, list):
        return []
    return [(tuple(one["at"]), one["value"]) for one in pieces]


def _overlay(state: dict[str, Any], rank: str) -> dict[str, Any]:
    pieces = _pieces(state, rank)
    result: Any = {name: value for name, value in state.items() if name != RANKS}
    for path, value in pieces:
        result = edit_at(result, path, value)
    return dict(result)


def _is_shared(part: Part) -> bool:
    """Return whether a part is the same on every rank because of what it is computed from."""
    value = getattr(part, "_value", None)
    return isinstance(value, (Optimizer, LRScheduler, torch.amp.GradScaler))


def _digest(value: Any) -> bytes:
    """Return a hash of a nested state; equal hashes mean equal bits."""
    hasher = blake3.blake3()
    items = list_items(value)
    if items is None:
        what, data = read_bits(value)
        hasher.update(what.encode())
        hasher.update(data)
    else:
        hasher.update(f"{type(value).__name__} {len(items)}".encode())
    for key, item in items or ():
        hasher.update(repr(key).encode())
        hasher.update(_digest(item))
    return hasher.digest()


def _count(size: object) -> str:
    return f"{size} rank" if size == 1 else f"{size} ranks"
