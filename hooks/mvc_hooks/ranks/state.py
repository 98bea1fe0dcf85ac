"""What differs from rank to rank, in one commit: rank 0's state, and the pieces of the others.

Each rank has its own generators, position in the data, gradients that accumulate and are not
averaged yet, errors of a compressing hook, and buffers that its batches changed. Rank 0's are stored
where those of a single process would be. Under ``ranks`` are, for each other rank, the parts and
buffers in which it differs from rank 0: ``{"2": [{"at": ["rng"], "value": ...}, ...]}``.
Parameters and optimizer state are the same everywhere. That is checked once, before the first
commit, because a run of another kind (sharded, or each rank on its own) would come back wrong.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import blake3
import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from mvc import ConflictError, UnsupportedError
from mvc_hooks.parts.module import ModulePart, clean_name
from mvc_hooks.parts.optimizer import OptimizerPart
from mvc_hooks.parts.part import DETAILS, flatten_parts
from mvc_hooks.parts.sources import ImageSource
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
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from mvc_hooks.parts.part import Part
    from mvc_hooks.parts.sources import StateSource
    from mvc_hooks.ranks.ranks import Ranks

RANKS = "ranks"
"""The top-level name of the pieces of ranks other than 0."""


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
        if isinstance(source, ImageSource):  # this rank's own snapshot
            return source, ()
        outline = source.outline()
        stored = outline.get(RANKS)
        size = stored.get("size") if isinstance(stored, dict) else 1
        if size != self._ranks.size and RANKS not in allow:
            raise ConflictError(
                f"the run has {_count(self._ranks.size)}, the commit is of {_count(size)}",
                hint=f'start as many ranks, or pass allow=["{RANKS}"]: each then goes on with the '
                "position in the data and the random numbers that it has now",
            )
        is_known = type(size) is int and self._ranks.rank < size
        unknown = () if is_known else {str(path[0]) for path in self._own_parts()}
        if stored is None:
            return source, unknown
        return _RankSource(source, outline, self._ranks.rank), unknown

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
    _feed(hasher, value)
    return hasher.digest()


def _feed(hasher: Any, value: Any) -> None:
    items = list_items(value)
    if items is None:
        what, data = read_bits(value)
        hasher.update(what.encode())
        hasher.update(data)
        return
    hasher.update(f"{type(value).__name__} {len(items)}".encode())
    for key, item in items:
        hasher.update(repr(key).encode())
        _feed(hasher, item)


def _count(size: object) -> str:
    return f"{size} rank" if size == 1 else f"{size} ranks"
