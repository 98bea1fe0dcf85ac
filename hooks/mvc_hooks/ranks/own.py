"""What belongs to one rank of a run: captured with the state that all share, and found again.

In data-parallel training every rank holds the same model and the same optimizer state, so rank 0
commits them for all. A commit holds rank 0's state, stored where that of a single process would be,
and what differs on the other ranks: generators, the position in the data, gradients that accumulate
and are not averaged yet, errors of a compressing hook, and buffers that their batches changed. Under
``ranks`` are, for each other rank, the parts and buffers in which it differs from rank 0:
``{"2": [{"at": ["rng"], "value": ...}, ...]}``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from mvc import ConflictError
from mvc_hooks.parts.module import ModulePart, clean_name
from mvc_hooks.parts.optimizer import OptimizerPart
from mvc_hooks.parts.part import DETAILS, flatten_parts
from mvc_hooks.parts.sources import StateSource
from mvc_hooks.parts.tree import find_at, map_tensors
from mvc_hooks.ranks.replicas import check_replicas, digest_state
from mvc_hooks.ranks.stored import RANKS, RankSource

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from mvc_hooks.parts.part import Part
    from mvc_hooks.ranks.group import Ranks


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
            check_replicas(ranks, self._parts, state)
            self._is_checked = True
        mine = {path: find_at(state, path) for path in self._own_paths(state)}
        # Hashes first: most pieces are the same everywhere, and need not travel or be stored.
        digests = {path: digest_state(value) for path, value in mine.items()}
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
        mine = RankSource(source, outline, self._ranks.rank)
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


def _is_shared(part: Part) -> bool:
    """Return whether a part is the same on every rank because of what it is computed from."""
    value = getattr(part, "_value", None)
    return isinstance(value, (Optimizer, LRScheduler, torch.amp.GradScaler))


def _count(size: object) -> str:
    return f"{size} rank" if size == 1 else f"{size} ranks"
