"""Arrays, files and objects as a node depends on them.

An object of the user's counts by its class and its attributes, or by what its ``__getstate__`` returns.
One of a library counts by the arguments of its constructor, if it keeps them under their names, and
otherwise by what it would be pickled as. Of a dataset, however long, no item is read: large attributes
count by kind and length.
"""

from __future__ import annotations

import copyreg
import hashlib
import inspect
import json
import os
import sys
from collections.abc import Sized
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mvc import UsageError
from mvc_data.reading import is_constant
from mvc_data.spelling import digest_parts
from mvc_hooks.installed import is_library_class

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import PurePath

    from mvc_data.reading import Reading

MARK = "_mvc_node"
"""The attribute of an object that says that it is a node."""
_MOST_ITEMS, _MOST_ITEM_BYTES = 1000, 2**20  # of an attribute of a dataset
_MOST_FILE_BYTES = 64 * 2**20
_BLOCK = 2**20
_SPEED = frozenset(
    [
        "num_workers",
        "prefetch_factor",
        "pin_memory",
        "pin_memory_device",
        "persistent_workers",
        "timeout",
        "multiprocessing_context",
        "max_concurrent",
        "snapshot_frequency",
        "rank",
        "num_replicas",
    ]
)
"""Arguments of libraries' loaders and samplers that change no sample, or are each rank's own."""
_PLACES = frozenset(["name_or_path"])
"""Attributes of libraries' models that say where they came from."""
_REDUCED = ("made_by", "arguments", "state", "items", "pairs")
_SETTINGS = (
    *("model_max_length", "padding_side", "truncation_side", "special_tokens_map"),
    *("chat_template", "clean_up_tokenization_spaces"),
)
_BASES: tuple[Any, ...] = (str, bytes, int, float)
_MISSING = object()


def digest_file(path: str) -> bytes:
    """Return the SHA-256 of a file; UsageError if it cannot be read."""
    found = hashlib.sha256()
    try:
        with open(path, "rb") as file:
            while block := file.read(_BLOCK):
                found.update(block)
    except OSError as error:
        why = error.strerror or "it cannot be read"
        raise UsageError(f"file {os.fspath(path)!r}: {why.lower()}") from None
    return found.digest()


def digest_path(_: Reading, value: PurePath, __: str) -> bytes:
    """Return the digest of the file at a path; of anything but a file of moderate size, of the name."""
    place = Path(value)
    if not place.is_file():
        return digest_parts("path", value.name if value.is_absolute() else value.as_posix())
    size_bytes = place.stat().st_size
    if size_bytes > _MOST_FILE_BYTES:
        return digest_parts("path", value.name, str(size_bytes))
    return digest_parts("file", digest_file(str(place)))


def digest_array(reading: Reading, value: Any, path: str) -> bytes:
    """Return the digest of a NumPy array or scalar: dtype, shape, elements."""
    reading.count_bytes(value.nbytes, path)
    if value.dtype.hasobject:
        return digest_parts("array", str(value.shape), reading.digest(value.tolist(), path))
    dtype = str(value.dtype.descr) if value.dtype.names else value.dtype.str
    return digest_parts("array", dtype, str(value.shape), value.tobytes())


def digest_tensor(reading: Reading, value: Any, path: str) -> bytes:
    """Return the digest of a tensor, wherever it is: dtype, shape, elements."""
    reading.count_bytes(value.nelement() * value.element_size(), path)
    plain = value.detach().cpu().contiguous().reshape(-1)
    data = plain.view(sys.modules["torch"].uint8).numpy().tobytes() if plain.numel() else b""
    return digest_parts("tensor", str(value.dtype), str(tuple(value.shape)), data)


def digest_torch_module(reading: Reading, value: Any, path: str) -> bytes:
    """Return the digest of a model: its layers, in order, and its state."""
    layers = (
        digest_parts(name, *_digest_layer(reading, one, f"{path}.{name}".strip(".")))
        for name, one in value.named_modules()
    )
    return digest_parts("module", *layers, reading.digest(dict(value.state_dict()), path))


def _digest_layer(reading: Reading, layer: Any, path: str) -> Iterator[bytes]:
    """Yield the digests of a layer's class and attributes; of a library's, of the plain public ones."""
    yield reading.digest(type(layer), path)
    common = vars(sys.modules["torch"].nn.Module()).keys() | {MARK}
    is_librarys = is_library_class(type(layer))
    for name, one in sorted(vars(layer).items()):
        is_left = is_librarys and (name.startswith("_") or name in _PLACES or not _is_flat(one))
        if name not in common and not is_left:
            yield digest_parts(name, reading.digest(one, f"{path}.{name}".strip(".")))


def _is_flat(value: object) -> bool:
    return is_constant(tuple(value) if isinstance(value, list) else value)


def digest_tokenizer(reading: Reading, value: Any, path: str) -> bytes:
    """Return the digest of a tokenizer of transformers.

    Padding and truncation of its backend are left out: each call sets them as it needs.
    """
    backend = {**json.loads(value.backend_tokenizer.to_str()), "padding": None, "truncation": None}
    settings = {name: _as_plain(getattr(value, name, None)) for name in _SETTINGS}
    parts = (reading.digest(one, path) for one in (type(value), backend, settings))
    return digest_parts("tokenizer", *parts)


def _as_plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _as_plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_as_plain(one) for one in value]
    return value if isinstance(value, (int, float, type(None))) else str(value)


def digest_hf_dataset(reading: Reading, value: Any, path: str) -> bytes:
    """Return the digest of a dataset of HF: columns, rows, split. Its own fingerprint may be random."""
    features = None if value.features is None else value.features.to_dict()
    facts = (type(value), features, getattr(value, "num_rows", None), str(value.split))
    return digest_parts("dataset", *(reading.digest(one, path) for one in facts))


def digest_object(reading: Reading, value: Any, path: str) -> bytes:
    """Return the digest of any other object."""
    kind = type(value)
    parts = [reading.digest(kind, path)]
    inner = getattr(value, "__wrapped__", None)  # what a cache wraps, for one
    if inner is not None:
        parts.append(reading.digest(inner, path))
    elif not reading.by_code:
        attributes = list_attributes(value)
        if attributes is None:
            name = f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins.")
            reading.refuse(path, f"is a {name}, which has no content that lasts")
        for name, one in attributes.items():
            place = f"{path}.{name}".lstrip(".")
            parts.append(digest_parts(name, reading.digest(one, place)))
    return digest_parts("object", *parts)


def list_attributes(value: Any) -> dict[str, Any] | None:
    """Return the attributes that an object counts by, in order of their names; None: it has none."""
    found = _find_attributes(value)
    if found is None or not _is_dataset(value):
        return found and dict(sorted(found.items()))
    bounded = {name: _bound(one) for name, one in found.items()}
    with suppress(Exception):  # a method of the user's, which may not be there
        bounded.setdefault("len", len(value))
    return dict(sorted(bounded.items()))


def _find_attributes(value: Any) -> dict[str, Any] | None:
    kind = type(value)
    own = [one for one in kind.__mro__ if one is not object and not is_library_class(one)]
    own = [one for one in own if one.__module__ != "builtins"]
    if any(name in vars(one) for one in own for name in ("__getstate__", "__reduce__")):
        return _reduce(value)
    if own:
        return list_own(value)
    found = _list_arguments(value)
    return _reduce(value) if found is None else found


def list_own(value: Any) -> dict[str, Any]:
    """Return what an object holds, in slots too; of str, list and the like also that."""
    found = dict(getattr(value, "__dict__", {}))
    for kind in type(value).__mro__:
        slots = vars(kind).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            item = getattr(value, name, _MISSING)
            if item is not _MISSING:
                found[name] = item
    for kind in _BASES:
        if isinstance(value, kind):
            found["value"] = kind(value)
    return {
        name: one for name, one in found.items() if name not in (MARK, "__weakref__", "__dict__")
    }


def _list_arguments(value: Any) -> dict[str, Any] | None:
    """Return the arguments of a library object's constructor that it keeps, if it keeps all of them."""
    try:
        given = inspect.signature(type(value).__init__).parameters.values()
    except (TypeError, ValueError):
        return None
    names = [one.name for one in given][1:]
    if not names or any(one.kind in (one.VAR_KEYWORD, one.VAR_POSITIONAL) for one in given):
        return None
    held = getattr(value, "__dict__", {})
    found = {name: held.get(name, held.get(f"_{name}", _MISSING)) for name in names}
    found = {name: one for name, one in found.items() if name not in _SPEED}
    return None if any(one is _MISSING for one in found.values()) else found


def _reduce(value: Any) -> dict[str, Any] | None:
    """Return what an object would be pickled as, or None if it cannot be."""
    try:
        registered = copyreg.dispatch_table.get(type(value))
        found: Any = registered(value) if registered else value.__reduce_ex__(4)
    except Exception:  # noqa: BLE001  whatever its own method raises
        return None
    if isinstance(found, str):
        known = getattr(sys.modules.get(type(value).__module__), found, None)
        return {"name": found} if known is value or not registered else None
    parts = [list(one) if hasattr(one, "__next__") else one for one in found]
    named: dict[str, Any] = dict(zip(_REDUCED, parts, strict=False))
    if isinstance(named.get("state"), dict):
        named["state"] = {key: one for key, one in named["state"].items() if key != MARK}
    return {name: one for name, one in named.items() if one is not None}


def _is_dataset(value: object) -> bool:
    """Return whether an object looks like a source of samples."""
    names = {one.__name__ for one in type(value).__mro__}
    has_items = hasattr(type(value), "__getitem__") and hasattr(type(value), "__len__")
    return has_items or not names.isdisjoint(("IterableDataset", "Dataset", "BaseNode"))


def _bound(value: Any) -> Any:
    """Return an attribute of a dataset, or what says how large it is."""
    size_bytes = getattr(value, "nbytes", None)
    if isinstance(size_bytes, int) and size_bytes > _MOST_ITEM_BYTES:
        return ("large", str(value.dtype), tuple(value.shape))
    if not isinstance(value, Sized) or isinstance(value, (str, bytes)):
        return value
    try:
        size = len(value)
    except Exception:  # noqa: BLE001  a method of the user's, or of a library that does not know
        return value
    is_plain = isinstance(value, (list, tuple, dict, set, frozenset)) or size_bytes is not None
    return ("large", type(value).__name__, size) if is_plain and size > _MOST_ITEMS else value
