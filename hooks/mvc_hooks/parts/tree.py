"""Nested states as trees of arrays: outlines, differences, edits.

A path is the keys and indexes from the top; messages and patterns write it dotted:
``optimizer.state.3.exp_avg``. Scalars, strings and bytes are values, not arrays: they come back as
they were stored and are no matter of structure.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch

from mvc import ArrayOutline

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ABSENT: Final = object()
"""In place of a value where there is none."""
_SEQUENCES = (list, tuple, deque)
_LONGLONG = {"q": "longlong", "Q": "ulonglong"}


@dataclass(frozen=True, slots=True)
class Difference:
    """Something that is otherwise here than in the stored state.

    Attributes:
        path: where.
        live: what is here; None: nothing.
        stored: what is stored; None: nothing.
    """

    path: tuple[object, ...]
    live: str | None
    stored: str | None

    def __str__(self) -> str:
        """Return it as messages name it."""
        where = format_path(self.path)
        if self.stored is None:
            return f"{where} is not in the stored state"
        if self.live is None:
            return f"{where} is only in the stored state"
        return f"{where} is {self.live} here, {self.stored} in the stored state"


def format_path(path: tuple[object, ...]) -> str:
    """Return a path dotted."""
    return ".".join(map(str, path))


def is_array(value: object) -> bool:
    """Tell whether a value is a tensor, a NumPy array, or the outline of one."""
    if isinstance(value, ArrayOutline):
        return value.kind != "bytes"
    return isinstance(value, (torch.Tensor, np.ndarray))


def outline(value: object) -> Any:
    """Return a live state with an ``ArrayOutline`` in place of every array."""
    if isinstance(value, torch.Tensor):
        kind = "tensor" if value.layout is torch.strided else "sparse"
        return ArrayOutline(kind, str(value.dtype).removeprefix("torch."), tuple(value.shape))
    if isinstance(value, np.ndarray):
        return ArrayOutline("array", _spell(value.dtype), value.shape)
    if isinstance(value, Mapping):
        return {key: outline(item) for key, item in value.items()}
    if isinstance(value, (list, deque)):
        return [outline(item) for item in value]
    return tuple(map(outline, value)) if type(value) is tuple else value


def _spell(dtype: np.dtype[Any]) -> str:
    if dtype.type.__module__ == "ml_dtypes":
        return dtype.type.__name__
    return _LONGLONG.get(dtype.char, dtype.str) if dtype.isnative else dtype.str


def compare_arrays(live: object, stored: object, path: tuple[object, ...]) -> Iterator[Difference]:
    """Return every array that only one of two outlines has, or that they have otherwise."""
    if isinstance(live, Mapping) and isinstance(stored, Mapping):
        for key in [*live, *(key for key in stored if key not in live)]:
            ours, theirs = live.get(key, ABSENT), stored.get(key, ABSENT)
            yield from compare_arrays(ours, theirs, (*path, key))
    elif isinstance(live, _SEQUENCES) and isinstance(stored, _SEQUENCES):
        for index in range(max(len(live), len(stored))):
            ours, theirs = find_at(live, (index,)), find_at(stored, (index,))
            yield from compare_arrays(ours, theirs, (*path, index))
    elif is_array(live) and is_array(stored):
        if live != stored:
            yield Difference(path, str(live), str(stored))
    elif (live is ABSENT or stored is ABSENT) and not has_arrays(live) and not has_arrays(stored):
        return
    elif has_arrays(live) or has_arrays(stored):
        yield Difference(path, describe(live), describe(stored))


def compare_keys(live: object, stored: object, path: tuple[object, ...]) -> Iterator[Difference]:
    """Return every key, arrays or not, that only one of two mappings has at the top."""
    if not isinstance(live, Mapping) or not isinstance(stored, Mapping):
        yield Difference(path, type(live).__name__, type(stored).__name__)
        return
    for key in live:
        if key not in stored:
            yield Difference((*path, key), describe(live[key]), None)
    for key in stored:
        if key not in live:
            yield Difference((*path, key), None, describe(stored[key]))


def describe(value: object) -> str | None:
    """Return what a difference says of one side; None where there is nothing."""
    if value is ABSENT:
        return None
    return str(value) if isinstance(value, ArrayOutline) else f"of type {type(value).__name__}"


def has_arrays(value: object) -> bool:
    """Tell whether an array lies anywhere in a value."""
    if isinstance(value, Mapping):
        return any(map(has_arrays, value.values()))
    return any(map(has_arrays, value)) if isinstance(value, _SEQUENCES) else is_array(value)


def find_at(value: Any, path: tuple[object, ...]) -> Any:
    """Return what lies at a path, or ABSENT."""
    for key in path:
        try:
            value = value[key]
        except (KeyError, IndexError, TypeError):
            return ABSENT
    return value


def edit_at(value: Any, path: tuple[Any, ...], new: object) -> Any:
    """Return a copy of nested containers with another value at a path; arrays are not copied.

    Args:
        value: the containers.
        path: of the value; containers that are missing on the way are made as dicts.
        new: the value to put there; ABSENT takes away what is there.
    """
    if not path:
        return new
    key, rest = path[0], path[1:]
    if type(value) is tuple:
        return tuple(edit_at(list(value), path, new))
    result = {} if value is ABSENT else copy.copy(value)
    if not rest and new is ABSENT:
        if find_at(result, (key,)) is not ABSENT:
            del result[key]
        return result
    inner = edit_at(find_at(result, (key,)), rest, new)
    if isinstance(result, (list, deque)) and key >= len(result):
        result.append(inner)
    else:
        result[key] = inner
    return result


def order_like(value: Any, model: Any) -> Any:
    """Return nested containers in the form of others, where that form is no part of the state.

    That is the order of the keys of mappings, and the ``_metadata`` of state dicts: versions of the
    classes, and the names of modules that hold nothing.
    """
    if isinstance(value, Mapping) and isinstance(model, Mapping):
        result: Any = copy.copy(value)
        if value.keys() == model.keys() and list(value) != list(model):
            result.clear()
            result.update((key, value[key]) for key in model)
        for key, item in value.items():
            result[key] = order_like(item, model.get(key, ABSENT))
        if hasattr(value, "_metadata") and hasattr(model, "_metadata"):
            result._metadata = model._metadata  # noqa: SLF001  the name torch gives it
        return result
    if type(value) in (list, tuple) and isinstance(model, _SEQUENCES) and len(value) == len(model):
        return type(value)(map(order_like, value, model))
    return value


def pick_targets(lent: object, stored: object) -> object:
    """Return what of the lent tensors the stored state has too, of the same type and shape.

    Args:
        lent: nested live tensors.
        stored: outline of the stored state.

    Returns:
        Nested as both, with None in sequences where nothing fits; ABSENT where nothing does.
    """
    if isinstance(lent, Mapping) and isinstance(stored, Mapping):
        picked = {
            key: pick_targets(item, stored[key]) for key, item in lent.items() if key in stored
        }
        return {key: item for key, item in picked.items() if item is not ABSENT} or ABSENT
    if isinstance(lent, _SEQUENCES) and isinstance(stored, _SEQUENCES):
        items = [pick_targets(*pair) for pair in zip(lent, stored, strict=False)]
        if all(item is ABSENT for item in items):
            return ABSENT
        return [None if item is ABSENT else item for item in items]
    is_fit = isinstance(lent, torch.Tensor) and can_fill(lent) and outline(lent) == stored
    return lent if is_fit else ABSENT


def can_fill(tensor: torch.Tensor) -> bool:
    """Tell whether a tensor's memory can take bytes: dense, and no element is there twice."""
    if tensor.layout is not torch.strided or tensor.is_conj() or tensor.is_neg():
        return False
    return all(
        step or size < 2  # noqa: PLR2004  one element overlaps with nothing
        for size, step in zip(tensor.shape, tensor.stride(), strict=True)
    )


def locate(tensor: torch.Tensor) -> tuple[object, ...] | None:
    """Return where the elements of a tensor lie; two of the same place are one. None: nowhere."""
    if tensor.layout is not torch.strided or not tensor.numel():
        return None
    return (tensor.device, tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())


def map_tensors(value: Any, convert: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Return nested containers, copied, with every tensor converted."""
    if isinstance(value, torch.Tensor):
        return convert(value)
    if isinstance(value, (dict, list, deque)):
        result = copy.copy(value)
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, item in items:
            result[key] = map_tensors(item, convert)
        return result
    if type(value) is tuple:
        return tuple(map_tensors(item, convert) for item in value)
    return value


def place_like(stored: Any, live: object) -> Any:
    """Return a stored state, copied, with its tensors on the devices of the live ones."""
    if isinstance(stored, torch.Tensor):
        return stored.to(live.device) if isinstance(live, torch.Tensor) else stored
    if isinstance(stored, (dict, list, deque)):
        result = copy.copy(stored)
        items = stored.items() if isinstance(stored, dict) else enumerate(stored)
        for key, item in items:
            result[key] = place_like(item, find_at(live, (key,)))
        return result
    if type(stored) is tuple:
        return tuple(place_like(item, find_at(live, (i,))) for i, item in enumerate(stored))
    return stored


def is_growth(difference: Difference, live: object, stored: object) -> bool:
    """Tell whether a difference is that of something that fills or grows while a run goes on.

    That is an array of another length in its first dimension, or that is empty on one side; items at the
    end of a list; what lies in a dict that is empty on one side; a value that was None.

    Args:
        difference: found between the two.
        live: outline that its path leads into.
        stored: the other one.
    """
    keys = difference.path
    ours, theirs = find_at(live, keys), find_at(stored, keys)
    if isinstance(ours, ArrayOutline) and isinstance(theirs, ArrayOutline):
        is_same_type = (ours.kind, ours.dtype) == (theirs.kind, theirs.dtype)
        is_longer = len(ours.shape) == len(theirs.shape) > 0 and ours.shape[1:] == theirs.shape[1:]
        return is_same_type and (is_longer or 0 in ours.shape or 0 in theirs.shape)
    if ours is None or theirs is None:
        return True
    around = [find_at(side, keys[:-1]) for side in (live, stored)] if keys else []
    if any(isinstance(side, _SEQUENCES) for side in around):
        return ours is ABSENT or theirs is ABSENT
    return bool(around) and any(isinstance(side, Mapping) and not side for side in around)
