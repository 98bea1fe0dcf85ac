"""Names of DCP ⇄ places in a nested state.

DCP's planners flatten a state dict: a name is the keys and indexes that lead to a value, joined by dots.
They say which path each name stands for, so a state is nested in a commit as it was before.

DCP passes on what is not a tensor as the bytes of ``torch.save``. Plain data is stored as such, so it can be read, compared and merged. Any other object is kept as those
bytes; to load it again is to run what is in them, so the reader has to be told to.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from mvc import MvcError, UnsupportedError
from mvc.training import ArrayOutline, layout_state

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

Path: TypeAlias = tuple[str | int, ...]
PICKLE = "torch.save"
"""Key of a mapping, alone in it, that stands for an object that is not plain data."""


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
    return all(
        _is_leaf(item)
        and not (isinstance(item, ArrayOutline) and item.kind in ("tensor", "sparse"))
        for item in value
    )


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
    existing = inner.get(step) if isinstance(inner, dict) else inner[step]
    if kind is None:
        inner[step] = value
    elif existing is None:
        existing = inner[step] = kind()
    return existing


def unpack_object(data: io.BytesIO, *, can_have_arrays: bool = True) -> Any:
    """Return what a commit holds of an object that this process has just saved.

    Without ``can_have_arrays`` there will be nothing in it that a commit keeps in a file of tensors.
    """
    raw = data.getvalue()
    try:
        # Not from a repository: the planner has made it, of an object of this process.
        value = torch.load(io.BytesIO(raw), map_location="cpu", weights_only=False)
        files = layout_state({"value": value}).files
    except MvcError:
        return _keep(raw, can_have_arrays=can_have_arrays)
    except Exception:  # noqa: BLE001  whatever an object of the user does when it is loaded
        return _keep(raw, can_have_arrays=can_have_arrays)
    if is_pickle(value) or (len(files) > 1 and not can_have_arrays):
        return _keep(raw, can_have_arrays=can_have_arrays)
    return value


def _keep(raw: bytes, *, can_have_arrays: bool) -> dict[str, object]:
    return {PICKLE: raw if can_have_arrays else base64.b64encode(raw).decode()}


def pack_object(value: Any, name: str, *, allow_pickle: bool) -> io.BytesIO:
    """Return the bytes that a planner takes for a stored object.

    UnsupportedError: it is not plain data, and that is not allowed.
    """
    if is_pickle(value):
        raw = value[PICKLE]
        raw = base64.b64decode(raw) if isinstance(raw, str) else bytes(raw)
        if allow_pickle:
            return io.BytesIO(raw)
        value = _load_safely(raw, name)
    packed = io.BytesIO()
    torch.save(value, packed)
    packed.seek(0)
    return packed


def _load_safely(raw: bytes, name: str) -> Any:
    try:
        return torch.load(io.BytesIO(raw), map_location="cpu", weights_only=True)
    except Exception as error:
        raise UnsupportedError(
            f"{name!r} is stored as a pickled object, which could run anything when it is loaded",
            hint="leave it out, or pass allow_pickle=True if you trust whoever made the commit",
        ) from error
