"""Nested states as trees of arrays: one walk over them, outlines, differences, edits.

A path is the keys and indexes from the top; messages and patterns write it dotted:
``optimizer.state.3.exp_avg``. Scalars, strings and bytes are values, not arrays: they come back as
they were stored, and do not count as structure.
"""

from __future__ import annotations

import copy
import hashlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, TypeAlias

import numpy as np
import torch

from mvc.training import ArrayOutline

Steps: TypeAlias = "tuple[object, ...]"  # a path in a state
ABSENT: Final = object()  # in place of a value if there is none
_SEQUENCES = (list, tuple, deque)


@dataclass(frozen=True, slots=True)
class Difference:
    """What differs between the live and the stored state at a path; None stands for nothing.

    ``may_fit`` says that the live object has its own way to load, which decides.
    """

    path: Steps
    live: str | None
    stored: str | None
    may_fit: bool = False

    def __str__(self) -> str:
        where = format_path(self.path)
        if self.stored is None:
            return f"{where} is not in the stored state"
        if self.live is None:
            return f"{where} is only in the stored state"
        return f"{where} is {self.live} here, {self.stored} in the stored state"


def format_path(path: Steps) -> str:
    """Return a path dotted."""
    return ".".join(map(str, path))


def list_items(value: Any, most: int | None = None) -> list[tuple[Any, Any]] | None:
    """Return key or index and child of everything in a container; None for any other value.

    It looks at ``most`` of them at the most: a data set may hold millions.
    """
    if isinstance(value, Mapping):
        return list(islice(value.items(), most))
    return list(enumerate(islice(value, most))) if isinstance(value, _SEQUENCES) else None


def walk_leaves(value: Any, path: Steps = ()) -> Iterator[tuple[Steps, Any]]:
    """Yield path and value of everything nested that is not a container; a module is not one."""
    items = None if isinstance(value, torch.nn.Module) else list_items(value)
    if items is None:
        yield path, value
    for key, item in items or ():
        yield from walk_leaves(item, (*path, key))


def hash_values(value: Any) -> str:
    """Return a short hash of the arrays, texts and numbers in a nested value; objects do not count."""
    hasher = hashlib.sha256()
    for _, leaf in walk_leaves(value):
        if isinstance(leaf, torch.Tensor) and leaf.layout is torch.strided:
            array = leaf.detach().cpu().contiguous()
            hasher.update(array.reshape(-1).view(torch.uint8).numpy().data)
        elif isinstance(leaf, np.ndarray) and not leaf.dtype.hasobject:
            hasher.update(np.ascontiguousarray(leaf).tobytes())
        elif isinstance(leaf, (str, bytes, int, float)):
            hasher.update(repr(leaf).encode())
    return hasher.hexdigest()[:16]


def pair_leaves(
    live: Any, stored: Any, path: Steps, *, same_type: bool = False
) -> Iterator[tuple[Steps, Any, Any]]:
    """Yield path, live and stored value where two nested values stop having the same containers.

    One side is ABSENT where only the other has something; the order is that of ``live``. With
    ``same_type``, a list and a tuple, say, are not the same container.
    """
    sides = (live, stored)
    is_mapping = all(isinstance(side, Mapping) for side in sides)
    is_sequence = all(isinstance(side, _SEQUENCES) for side in sides)
    if is_sequence and same_type:
        is_sequence = type(live) is type(stored)
    if not is_mapping and not is_sequence:
        yield path, live, stored
        return
    keys = {**live, **stored} if is_mapping else range(max(map(len, sides)))
    for key in keys:
        # The longer side goes on: what only one of them has is paired with ABSENT.
        ours, theirs = (find_at(side, (key,)) for side in sides)
        yield from pair_leaves(ours, theirs, (*path, key), same_type=same_type)


def map_leaves(value: Any, convert: Callable[[Any, Any], Any], beside: object = ABSENT) -> Any:
    """Return nested containers, copied, with every leaf converted.

    ``convert`` is given a leaf, and what is at its place in ``beside`` (or ABSENT).
    """
    if type(value) is tuple:
        return tuple(
            map_leaves(item, convert, find_at(beside, (at,)))
            for at, item in list_items(value) or ()
        )
    if not isinstance(value, (dict, list, deque)):
        return convert(value, beside)
    result = copy.copy(value)
    for key, item in list_items(value) or ():
        result[key] = map_leaves(item, convert, find_at(beside, (key,)))
    return result


def map_tensors(value: Any, convert: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Return nested containers, copied, with every tensor converted."""
    return map_leaves(
        value, lambda leaf, _: convert(leaf) if isinstance(leaf, torch.Tensor) else leaf
    )


def is_sharded(value: object) -> bool:
    """Return whether a value is a DTensor, this process holding a part of it."""
    return hasattr(type(value), "__create_chunk_list__") and hasattr(value, "placements")


def to_local(tensor: Any) -> torch.Tensor:
    """Return the part of a DTensor that is here, or the tensor itself if it is not one."""
    if not is_sharded(tensor):
        return tensor  # type: ignore[no-any-return]  # a tensor
    local = tensor._local_tensor  # noqa: SLF001  to_local() makes a node of autograd each time
    return local if type(local) is torch.Tensor else tensor.detach().to_local()


def place_like(stored: Any, live: object) -> Any:
    """Return a stored state, copied, with its tensors on the devices of the live ones."""

    def place(leaf: Any, mine: Any) -> Any:
        is_both = isinstance(leaf, torch.Tensor) and isinstance(mine, torch.Tensor)
        return leaf.to(mine.device) if is_both else leaf

    return map_leaves(stored, place, live)


def read_bits(leaf: Any) -> tuple[str, Any]:
    """Return what a leaf is and its bytes; both are equal only for leaves that are the same bit by bit.

    The bytes of a DTensor are those that are here.
    """
    if isinstance(leaf, torch.Tensor):
        what = f"{leaf.layout}{leaf.dtype}{tuple(leaf.shape)}"
        plain = to_local(leaf.detach())
        if plain.layout is torch.sparse_coo:
            parts = (plain._indices(), plain._values())  # noqa: SLF001  the public ones refuse uncoalesced tensors
            bits = [read_bits(part) for part in parts]
            return f"{what}{bits[0][0]}", b"".join(data for _, data in bits)
        plain = plain.cpu()
        plain = plain if plain.layout is torch.strided else plain.to_dense()
        flat = plain.resolve_conj().resolve_neg().contiguous().reshape(-1)
        return what, flat.view(torch.uint8).numpy().data
    if isinstance(leaf, np.ndarray):
        return f"{leaf.dtype}{leaf.shape}", leaf.tobytes()
    return type(leaf).__name__, repr(leaf).encode("utf-8", "surrogatepass")


def count_writes(tensor: torch.Tensor) -> int:
    """Return torch's own count of writes to a tensor; one of inference mode has none."""
    return 0 if tensor.is_inference() else tensor._version  # noqa: SLF001  its only name


def find_changes(live: Any, stored: Any) -> Iterator[tuple[tuple[object, ...], Any, Any]]:
    """Yield path, live and stored value of everything that is not the same bit by bit."""
    for path, theirs, ours in pair_leaves(stored, live, (), same_type=True):
        if ours is not theirs and read_bits(ours) != read_bits(theirs):
            yield path, ours, theirs


def is_array(value: object) -> bool:
    """Return whether a value is a tensor, a NumPy array, or the outline of one."""
    if isinstance(value, ArrayOutline):
        return value.kind != "bytes"
    return isinstance(value, (torch.Tensor, np.ndarray))


def outline(value: object) -> Any:
    """Return a live state with an ``ArrayOutline`` in place of every array."""
    if isinstance(value, (torch.Tensor, np.ndarray)):
        return ArrayOutline.of(value)
    if isinstance(value, Mapping):
        return {key: outline(item) for key, item in value.items()}
    if isinstance(value, (list, deque)):
        return [outline(item) for item in value]
    return tuple(map(outline, value)) if type(value) is tuple else value


def compare_arrays(live: object, stored: object, path: Steps) -> Iterator[Difference]:
    """Yield every array that only one of two outlines has, or that is not the same in both."""
    for place, ours, theirs in pair_leaves(live, stored, path):
        if is_array(ours) and is_array(theirs):
            if ours != theirs:
                yield Difference(place, str(ours), str(theirs))
        elif has_arrays(ours) or has_arrays(theirs):
            yield Difference(place, describe(ours), describe(theirs))


def compare_fixed_arrays(live: object, stored: object, path: Steps) -> Iterator[Difference]:
    """Compare as ``compare_arrays``, except what fills or grows while a run goes on."""
    for difference in compare_arrays(live, stored, path):
        if not is_growth(difference.path[len(path) :], live, stored):
            yield difference


def compare_keys(live: object, stored: object, path: Steps) -> Iterator[Difference]:
    """Yield every key, arrays or not, that only one of two mappings has at the top."""
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
    """Return what a difference says of one side; None for ABSENT."""
    if value is ABSENT:
        return None
    return str(value) if isinstance(value, ArrayOutline) else f"of type {type(value).__name__}"


def has_arrays(value: object) -> bool:
    """Return whether an array is anywhere in a value."""
    return any(is_array(leaf) for _, leaf in walk_leaves(value))


def find_at(value: Any, path: Steps) -> Any:
    """Return what is at a path, or ABSENT."""
    for key in path:
        try:
            # A defaultdict would make the item that it lacks, a Counter would say 0.
            value = value.get(key, ABSENT) if isinstance(value, Mapping) else value[key]
        except (KeyError, IndexError, TypeError):
            return ABSENT
    return value


def edit_at(value: Any, path: tuple[Any, ...], new: object) -> Any:
    """Return a copy of nested containers with another value at a path; arrays are not copied.

    Containers that are missing on the way become dicts; ABSENT removes what is there.
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
    """Return nested containers in the form of others, as far as that form is not part of the state.

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
    """Return those of the lent live tensors that an outline has too, of the same type and shape.

    Nested as both; None in a sequence, and ABSENT anywhere else, stand for what does not fit.
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
    """Return whether a tensor's memory can take bytes: strided, and no two elements share a place."""
    tensor = to_local(tensor)
    if tensor.layout is not torch.strided or tensor.is_conj() or tensor.is_neg():
        return False
    return all(
        step or size < 2  # noqa: PLR2004  one element overlaps with nothing
        for size, step in zip(tensor.shape, tensor.stride(), strict=True)
    )


def locate(tensor: torch.Tensor) -> tuple[object, ...] | None:
    """Return where a tensor's elements are, the same for tied ones; None if it has none."""
    if tensor.layout is not torch.strided or not tensor.numel():
        return None
    here = to_local(tensor)
    place = (here.device, here.data_ptr(), tensor.dtype, tensor.shape, here.stride())
    if here.numel():
        return place
    # What is here of a DTensor may be nothing; it has no address, but a storage all the same.
    return (*place, here.untyped_storage()._cdata, here.storage_offset())  # noqa: SLF001  the only name of its identity


def is_growth(keys: Steps, live: object, stored: object) -> bool:
    """Return whether two outlines differ at a path because of filling or growing during a run.

    That is an array of another length in its first dimension, or empty on one side; items at the
    end of a list; what is in a dict that is empty on one side; a value that was None.
    """
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
