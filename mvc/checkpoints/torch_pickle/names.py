"""The names of the tensors in a decoded pickle: the path that leads to each.

A name is the keys and positions from the root joined by dots, as in ``optimizer.state.0.exp_avg``;
for a saved module it is the key its state dict would use. A container that is reached several
times gives names only along the first path, which also ends every cycle; a tensor is named along
every path, because tied weights have several names. Second uses of a name get ``#2`` and so on.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain

from mvc.checkpoints.limits import MAX_NAME_BYTES, MAX_NAMES_BYTES, MAX_TENSORS, Names
from mvc.checkpoints.torch_pickle.objects import StorageRef, TensorRef
from mvc.checkpoints.torch_pickle.values import Opaque, Pairs
from mvc.errors import FormatError

ROOT_NAME = "tensor"
"""Name of a tensor that was saved alone, and so has no key."""
MAX_DEPTH = 1000
"""Containers inside containers; what is deeper gets no name. A module takes three levels."""
_HOLDERS = (list, tuple, Opaque, TensorRef, StorageRef)
_TUPLE_KEY_ITEMS = 8
_STATE_PARTS = 2
_SAME = object()
_LEADING_KEYS = 64  # a module's own attributes come before anything of its subclass
_MODULE_PARTS = ("_parameters", "_buffers", "_modules")


def name_tensors(root: object) -> Iterator[tuple[str, TensorRef]]:
    """Yield every tensor with its unique name, in the order the pickle holds them."""
    names = Names(set(), mark="#")
    total_bytes = 0

    def claim(path: str) -> str:
        nonlocal total_bytes
        name = names.give(path or ROOT_NAME)
        total_bytes += len(name)
        if len(names.taken) > MAX_TENSORS or total_bytes > MAX_NAMES_BYTES:
            raise FormatError(
                f"pickle names more than {MAX_TENSORS:,} tensors, or with too long names"
            )
        return name

    visited: set[int] = set()
    pending: list[Iterator[tuple[str, object]]] = [iter([("", root)])]
    while pending:
        path, value = next(pending[-1], (None, None))
        if path is None:
            pending.pop()
        elif isinstance(value, StorageRef):
            yield claim(path), TensorRef(value, value.dtype, 0, (value.elements,), (1,))
        else:
            if isinstance(value, TensorRef):
                yield claim(path), value
            if id(value) not in visited and len(pending) <= MAX_DEPTH:
                visited.add(id(value))
                pending.append(_children(path, value))


def _children(path: str, value: object) -> Iterator[tuple[str, object]]:
    for key, child in _members(value):
        if not isinstance(child, _HOLDERS):
            continue
        child_path = path if key is _SAME else _join(path, key)
        if child_path is not None:
            yield child_path, child


def _members(value: object) -> Iterable[tuple[object, object]]:
    """Return (key, value) of all that a value holds; ``_SAME`` adds nothing to the path."""
    if isinstance(value, Pairs):
        return value.items_in_order()
    if isinstance(value, (list, tuple)):
        return enumerate(value)
    if isinstance(value, TensorRef):
        return [(_SAME, value.attributes)]
    if not isinstance(value, Opaque):
        return ()
    states = [_state_members(state) for state in value.states or ()]
    return chain([(_SAME, value.args)], *states, [(_SAME, value.members)], [(_SAME, value.pairs)])


def _state_members(state: object) -> Iterable[tuple[object, object]]:
    """Look into an object's attributes: a dictionary, or a pair of it and one for slots."""
    if isinstance(state, tuple):
        return [(_SAME, part) for part in state[:_STATE_PARTS]]
    if not isinstance(state, Pairs):
        return [(_SAME, state)]
    keys = state[: 2 * _LEADING_KEYS : 2]
    if "_parameters" in keys and "_modules" in keys:
        items = state.items_in_order()
        return ((_SAME if key in _MODULE_PARTS else key, value) for key, value in items)
    return [(_SAME, state)]


def _join(path: str, key: object) -> str | None:
    """Return the path to a member; None if a key cannot be part of a name."""
    part = _spell(key)
    if part is None:
        return None
    joined = f"{path}.{part}" if path else part
    return joined if len(joined) <= MAX_NAME_BYTES else None


def _spell(key: object) -> str | None:
    if isinstance(key, str):
        return key if key.isascii() else key.encode("utf-8", "backslashreplace").decode()
    if isinstance(key, bytes):
        return key.decode("latin-1")
    if key is None or isinstance(key, (int, float)):
        return str(key)
    if isinstance(key, tuple) and len(key) <= _TUPLE_KEY_ITEMS:
        parts = [_spell(item) for item in key if isinstance(item, (str, int))]
        return f"({','.join(part for part in parts if part is not None)})"
    return None
