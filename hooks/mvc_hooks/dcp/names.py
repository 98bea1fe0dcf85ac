"""Names of DCP ⇄ places in a nested state.

DCP's planners flatten a state dict: a name is the keys and indexes that lead to a value, joined by dots.
They say which path each name stands for, so a state is nested in a commit as it was before.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeAlias

from mvc import UnsupportedError
from mvc.training import ArrayOutline

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

Path: TypeAlias = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Leaf:
    """A value as DCP counts them: ``keys`` lead to it in the state, ``path`` is what DCP calls that."""

    path: Path
    keys: tuple[object, ...]
    value: Any

    @property
    def name(self) -> str:
        """Its name."""
        return ".".join(map(str, self.path))

    @property
    def tensor(self) -> ArrayOutline | None:
        """Its outline if it is a tensor."""
        is_tensor = isinstance(self.value, ArrayOutline) and self.value.kind == "tensor"
        return self.value if is_tensor else None


def flatten(outline: object, path: Path = (), keys: tuple[object, ...] = ()) -> Iterator[Leaf]:
    """Yield the values of an outlined state that DCP would give names of their own."""
    if isinstance(outline, Mapping) and not is_pickle(outline):
        for key, value in outline.items():
            yield from flatten(value, (*path, str(key)), (*keys, key))
    elif isinstance(outline, list) and not _is_leaf(outline):
        for index, value in enumerate(outline):
            yield from flatten(value, (*path, index), (*keys, index))
    else:
        yield Leaf(path, keys, outline)


def _is_leaf(value: object) -> bool:
    """Return whether DCP takes a value as one: a list is, if no mapping or tensor is in it."""
    if not isinstance(value, list):
        return not isinstance(value, Mapping)
    return all(_is_leaf(one) and not _is_tensor(one) for one in value)


def _is_tensor(value: object) -> bool:
    return isinstance(value, ArrayOutline) and value.kind in ("tensor", "sparse")


PICKLE = "torch.save"
"""Key of a mapping, alone in it, that stands for an object that is not plain data."""


def is_pickle(value: object) -> bool:
    """Return whether a stored value stands for an object that is not plain data."""
    return isinstance(value, Mapping) and value.keys() == {PICKLE}


def nest(values: Iterable[tuple[Path, object]]) -> dict[str, Any]:
    """Return the nested state of values, given their paths; what a list lacks is None.

    UnsupportedError: one path goes through a value.
    """
    root: dict[str, Any] = {}
    for path, value in values:
        inner: Any = root
        for step, following in pairwise(path):
            inner = _enter(inner, step, dict if isinstance(following, str) else list, path)
        _enter(inner, path[-1], None, path, value)
    return root


def _enter(inner: Any, step: str | int, kind: Any, path: Path, value: object = None) -> Any:
    """Return the container at a step, which is made if missing; without a kind, set a value there."""
    if isinstance(step, int) and isinstance(inner, list):
        inner.extend([None] * (step + 1 - len(inner)))
    elif not (isinstance(step, str) and isinstance(inner, dict)):
        raise UnsupportedError(f"the state has something at, and something below, {path[:-1]}")
    found = inner.get(step) if isinstance(inner, dict) else inner[step]
    if kind is None:
        inner[step] = value
    elif found is None:
        found = inner[step] = kind()
    return found
