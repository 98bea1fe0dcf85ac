"""A state that is in memory already, as a source to restore from."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from mvc_hooks.parts.tree import ABSENT, find_at, format_path, map_tensors, outline

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(frozen=True, slots=True)
class ValuesSource:
    """A nested state; it stays the caller's, nothing live will share memory with it.

    Attributes:
        state: the state.
    """

    state: Mapping[str, Any]

    def outline(self) -> dict[str, Any]:
        """Return its structure."""
        result: dict[str, Any] = outline(self.state)
        return result

    def load(self, into: Mapping[str, object]) -> dict[str, Any]:
        """Return a copy of it, in which the tensors of ``into`` stand, filled."""
        result: dict[str, Any] = _copy(dict(self.state), into)
        return result

    def check(self, state: Mapping[str, object]) -> tuple[str, ...]:
        """Return a line for every difference of a live state."""
        return tuple(
            f"{format_path(path)} differs" for path, _, _ in find_differences(state, self.state)
        )


def _copy(stored: Any, live: Any) -> Any:
    if isinstance(stored, torch.Tensor):
        if not isinstance(live, torch.Tensor):
            return stored.detach().clone()
        with torch.no_grad():
            live.detach().copy_(stored)
        return live
    if isinstance(stored, np.ndarray):
        return stored.copy()
    if isinstance(stored, (dict, list, deque)):
        result = map_tensors(stored, lambda tensor: tensor)
        items = stored.items() if isinstance(stored, dict) else enumerate(stored)
        for key, item in items:
            result[key] = _copy(item, find_at(live, (key,)))
        return result
    if type(stored) is tuple:
        return tuple(_copy(item, find_at(live, (i,))) for i, item in enumerate(stored))
    return stored


def find_differences(
    live: Any, stored: Any, path: tuple[object, ...] = ()
) -> Iterator[tuple[tuple[object, ...], Any, Any]]:
    """Yield path, live and stored value of everything that differs in a bit."""
    if isinstance(live, Mapping) and isinstance(stored, Mapping):
        for key in {**stored, **live}:
            ours, theirs = live.get(key, ABSENT), stored.get(key, ABSENT)
            yield from find_differences(ours, theirs, (*path, key))
    elif isinstance(live, (list, tuple, deque)) and type(live) is type(stored):
        for index in range(max(len(live), len(stored))):
            ours, theirs = find_at(live, (index,)), find_at(stored, (index,))
            yield from find_differences(ours, theirs, (*path, index))
    elif not _is_same(live, stored):
        yield path, live, stored


def _is_same(live: Any, stored: Any) -> bool:
    if isinstance(live, torch.Tensor) and isinstance(stored, torch.Tensor):
        return outline(live) == outline(stored) and _same_bits(live.detach(), stored.detach())
    if type(live) is not type(stored):
        return False
    if isinstance(live, np.ndarray):
        return bool(live.dtype == stored.dtype and live.tobytes() == stored.tobytes())
    return live is stored or bool(repr(live) == repr(stored))


def _same_bits(live: torch.Tensor, stored: torch.Tensor) -> bool:
    if live.layout is torch.sparse_coo:
        parts = [(t._indices(), t._values()) for t in (live, stored)]  # noqa: SLF001  the public ones refuse uncoalesced tensors
        return all(a.shape == b.shape and _same_bits(a, b) for a, b in zip(*parts, strict=True))
    if live.layout is not torch.strided:
        return bool(torch.equal(live, stored))
    plain = [t.cpu().resolve_conj().resolve_neg().contiguous().reshape(-1) for t in (live, stored)]
    return torch.equal(*(t.view(torch.uint8) for t in plain))
