"""Values as a node depends on them: how one of each kind is read (``KINDS``).

An object of the user's counts by its class and its attributes, or by what its ``__getstate__`` returns.
One of a library counts by the arguments of its constructor, if it keeps them under their names, and
otherwise by what it would be pickled as. Of a dataset, however long, no item is read: large attributes
count by kind and length.
"""

from __future__ import annotations

import copyreg
import enum
import functools
import hashlib
import inspect
import json
import os
import re
import struct
import sys
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from contextlib import suppress
from pathlib import Path, PurePath
from types import (
    BuiltinFunctionType,
    CodeType,
    FunctionType,
    GeneratorType,
    MappingProxyType,
    MethodDescriptorType,
    MethodType,
    ModuleType,
    WrapperDescriptorType,
)
from typing import TYPE_CHECKING, Any, NoReturn

from mvc import UsageError
from mvc_data.functions import (
    digest_builtin,
    digest_class,
    digest_function,
    digest_method,
    digest_module,
    digest_partial,
)
from mvc_data.reading import PLAIN, File, NodeReading, digest_plain, is_constant
from mvc_data.source import digest_parts
from mvc_hooks.installed import is_library_class

if TYPE_CHECKING:
    from mvc_data.reading import Read

MARK = "_mvc_node"  # the attribute of an object that says that it is a node
_MOST_ITEMS, _MOST_ITEM_BYTES = 1000, 2**20  # of an attribute of a dataset
_MOST_FILE_BYTES = 64 * 2**20
_SPEED = (
    *("num_workers", "prefetch_factor", "pin_memory", "pin_memory_device", "persistent_workers"),
    *("timeout", "multiprocessing_context", "max_concurrent", "snapshot_frequency"),
    *("rank", "num_replicas"),
)
"""Arguments of libraries' loaders and samplers that change no sample, or are each rank's own."""
_PLACE = "name_or_path"  # attribute of libraries' models that say where they came from
_REDUCED = ("made_by", "arguments", "state", "items", "pairs")
_SETTINGS = (
    *("model_max_length", "padding_side", "truncation_side", "special_tokens_map"),
    *("chat_template", "clean_up_tokenization_spaces"),
)
_BASES: tuple[Any, ...] = (str, bytes, int, float)
_MISSING = object()


def digest_file(path: str) -> bytes:
    """Return the SHA-256 of a file; UsageError if it cannot be read."""
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").digest()
    except OSError as error:
        why = error.strerror or "it cannot be read"
        raise UsageError(f"file {os.fspath(path)!r}: {why.lower()}") from None


def digest_path(_: NodeReading, value: PurePath, __: str) -> bytes:
    """Return the digest of the file at a path; of anything but a file of moderate size, of the name."""
    place = Path(value)
    if not place.is_file():
        return digest_parts("path", value.name if value.is_absolute() else value.as_posix())
    size_bytes = place.stat().st_size
    if size_bytes > _MOST_FILE_BYTES:
        return digest_parts("path", value.name, str(size_bytes))
    return digest_parts("file", digest_file(str(place)))


def digest_array(reading: NodeReading, value: Any, path: str) -> bytes:
    """Return the digest of a NumPy array or scalar: dtype, shape, elements."""
    reading.count_bytes(value.nbytes, path)
    if value.dtype.hasobject:
        return digest_parts("array", str(value.shape), reading.digest(value.tolist(), path))
    dtype = str(value.dtype.descr) if value.dtype.names else value.dtype.str
    return digest_parts("array", dtype, str(value.shape), value.tobytes())


def digest_tensor(reading: NodeReading, value: Any, path: str) -> bytes:
    """Return the digest of a tensor, wherever it is: dtype, shape, elements."""
    reading.count_bytes(value.nelement() * value.element_size(), path)
    plain = value.detach().cpu().contiguous().reshape(-1)
    data = plain.view(sys.modules["torch"].uint8).numpy().tobytes() if plain.numel() else b""
    return digest_parts("tensor", str(value.dtype), str(tuple(value.shape)), data)


def digest_torch_module(reading: NodeReading, value: Any, path: str) -> bytes:
    """Return the digest of a model: its layers, in order, and its state."""
    layers = (
        digest_parts(name, *_digest_layer(reading, layer, f"{path}.{name}".strip(".")))
        for name, layer in value.named_modules()
    )
    return digest_parts("module", *layers, reading.digest(dict(value.state_dict()), path))


def _digest_layer(reading: NodeReading, layer: Any, path: str) -> Iterator[bytes]:
    """Yield the digests of a layer's class and attributes; of a library's, of the plain public ones."""
    yield reading.digest(type(layer), path)
    common = vars(sys.modules["torch"].nn.Module()).keys() | {MARK}
    is_librarys = is_library_class(type(layer))
    for name, value in sorted(vars(layer).items()):
        is_flat = is_constant(tuple(value) if isinstance(value, list) else value)
        is_left_out = is_librarys and (name.startswith("_") or name == _PLACE or not is_flat)
        if name not in common and not is_left_out:
            yield digest_parts(name, reading.digest(value, f"{path}.{name}".strip(".")))


def digest_tokenizer(reading: NodeReading, value: Any, path: str) -> bytes:
    """Return the digest of a tokenizer of transformers.

    Padding and truncation of its backend are left out: each call sets them as it needs.
    """
    backend = {**json.loads(value.backend_tokenizer.to_str()), "padding": None, "truncation": None}
    settings = {name: _as_plain(getattr(value, name, None)) for name in _SETTINGS}
    parts = (reading.digest(part, path) for part in (type(value), backend, settings))
    return digest_parts("tokenizer", *parts)


def _as_plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _as_plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_as_plain(item) for item in value]
    return value if isinstance(value, (int, float, type(None))) else str(value)


def digest_hf_dataset(reading: NodeReading, value: Any, path: str) -> bytes:
    """Return the digest of a dataset of HF: columns, rows, split. Its own fingerprint may be random."""
    features = None if value.features is None else value.features.to_dict()
    facts = (type(value), features, getattr(value, "num_rows", None), str(value.split))
    return digest_parts("dataset", *(reading.digest(fact, path) for fact in facts))


def digest_object(reading: NodeReading, value: Any, path: str) -> bytes:
    """Return the digest of any other object."""
    kind = type(value)
    parts = [reading.digest(kind, path)]
    inner = getattr(value, "__wrapped__", None)  # what a cache wraps, for one
    if inner is not None:
        parts.append(reading.digest(inner, path))
    elif not reading.by_code:
        attributes = list_attributes(value)
        if attributes is None:
            _refuse(reading, value, path)
        for name, attribute in attributes.items():
            place = f"{path}.{name}".lstrip(".")
            parts.append(digest_parts(name, reading.digest(attribute, place)))
    return digest_parts("object", *parts)


def list_attributes(value: Any) -> dict[str, Any] | None:
    """Return the attributes that an object counts by, in order of their names; None: it has none."""
    held = _find_attributes(value)
    kind = type(value)
    has_items = hasattr(kind, "__getitem__") and hasattr(kind, "__len__")
    bases = {base.__name__ for base in kind.__mro__}
    is_dataset = has_items or not bases.isdisjoint(("IterableDataset", "Dataset", "BaseNode"))
    if held is None or not is_dataset:
        return held and dict(sorted(held.items()))
    bounded = {name: _bound(attribute) for name, attribute in held.items()}
    with suppress(Exception):  # a method of the user's, which may not be there
        bounded.setdefault("len", len(value))
    return dict(sorted(bounded.items()))


def _find_attributes(value: Any) -> dict[str, Any] | None:
    kind = type(value)
    own = [
        base
        for base in kind.__mro__
        if not is_library_class(base) and base.__module__ != "builtins"
    ]
    if any(name in vars(base) for base in own for name in ("__getstate__", "__reduce__")):
        return _reduce(value)
    if own:
        return list_own(value)
    arguments = _list_arguments(value)
    return _reduce(value) if arguments is None else arguments


def list_own(value: Any) -> dict[str, Any]:
    """Return what an object holds, in slots too; of str, list and the like also that."""
    held = dict(getattr(value, "__dict__", {}))
    for kind in type(value).__mro__:
        slots = vars(kind).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            held[name] = getattr(value, name, _MISSING)
    for base in _BASES:
        if isinstance(value, base):
            held["value"] = base(value)
    left_out = (MARK, "__weakref__", "__dict__")
    return {
        name: item for name, item in held.items() if item is not _MISSING and name not in left_out
    }


def _list_arguments(value: Any) -> dict[str, Any] | None:
    """Return the arguments of a library object's constructor that it keeps, if it keeps all of them."""
    try:
        given = inspect.signature(type(value).__init__).parameters.values()
    except (TypeError, ValueError):
        return None
    names = [arg.name for arg in given][1:]
    if not names or any(arg.kind in (arg.VAR_KEYWORD, arg.VAR_POSITIONAL) for arg in given):
        return None
    held = getattr(value, "__dict__", {})
    arguments = {
        name: held.get(name, held.get(f"_{name}", _MISSING)) for name in names if name not in _SPEED
    }
    return None if any(item is _MISSING for item in arguments.values()) else arguments


def _reduce(value: Any) -> dict[str, Any] | None:
    """Return what an object would be pickled as, or None if it cannot be."""
    try:
        registered = copyreg.dispatch_table.get(type(value))
        reduced: Any = registered(value) if registered else value.__reduce_ex__(4)
    except Exception:  # noqa: BLE001  whatever its own method raises
        return None
    if isinstance(reduced, str):
        known = getattr(sys.modules.get(type(value).__module__), reduced, None)
        return {"name": reduced} if known is value or not registered else None
    parts = [list(part) if hasattr(part, "__next__") else part for part in reduced]
    named: dict[str, Any] = dict(zip(_REDUCED, parts, strict=False))
    if isinstance(named.get("state"), dict):
        named["state"] = {key: item for key, item in named["state"].items() if key != MARK}
    return {name: part for name, part in named.items() if part is not None}


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


# How a value of each kind is read, in the order in which kinds are tried.


def _digest_items(reading: NodeReading, value: Sequence[object], path: str) -> bytes:
    items = (reading.digest(item, f"{path}[{index}]") for index, item in enumerate(value))
    return digest_parts(type(value).__name__, *items, *_digest_beside(reading, value, path))


def _digest_beside(reading: NodeReading, value: object, path: str) -> Iterator[bytes]:
    """Yield the digests of what a container has besides its items, unless it is a plain one."""
    for name in ("default_factory", "maxlen"):
        if getattr(value, name, None) is not None:
            yield digest_parts(name, reading.digest(getattr(value, name), f"{path}.{name}"))
    if not is_library_class(type(value)):
        yield reading.digest(type(value), path)
        for name, item in sorted(list_own(value).items()):
            yield digest_parts(name, reading.digest(item, f"{path}.{name}".lstrip(".")))


def _digest_set(reading: NodeReading, value: set[object], path: str) -> bytes:
    items = sorted(reading.digest(item, f"{path}[...]") for item in value)
    return digest_parts("set", *items, *_digest_beside(reading, value, path))


def _digest_dict(reading: NodeReading, value: Mapping[object, object], path: str) -> bytes:
    """Return the digest of a dict: equal ones have the same, as have equal OrderedDicts."""
    pairs = []
    for key, item in value.items():
        place = "" if type(item) in PLAIN else f"{path}[{key!r:.40}]"
        pairs.append(
            digest_parts(reading.digest(key, f"a key of {path}"), reading.digest(item, place))
        )
    ordered = pairs if isinstance(value, OrderedDict) else sorted(pairs)
    return digest_parts(type(value).__name__, *ordered, *_digest_beside(reading, value, path))


def _digest_float(_: NodeReading, value: complex, __: str) -> bytes:
    value = complex(value)
    return digest_parts("float", struct.pack("<dd", value.real, value.imag))


def _digest_pattern(reading: NodeReading, value: re.Pattern[Any], path: str) -> bytes:
    return digest_parts("pattern", reading.digest(value.pattern, path), str(int(value.flags)))


def _digest_numpy_generator(reading: NodeReading, value: Any, path: str) -> bytes:
    bits = getattr(value, "bit_generator", None)
    state = value.get_state(legacy=False) if bits is None else bits.state
    return digest_parts("generator", reading.digest(state, path))


def _refuse(reading: NodeReading, value: object, path: str) -> NoReturn:
    kind = type(value)
    name = f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins.")
    reading.refuse(path, f"is a {name}, which has no content that lasts")


def _read_as(name: str, *read: Callable[[Any], object]) -> Read:
    """Return how a value is read that counts by some parts: texts as they are, others by their digests."""

    def digest(reading: NodeReading, value: Any, path: str) -> bytes:
        parts = (find(value) for find in read)
        return digest_parts(
            name, *(part if type(part) is str else reading.digest(part, path) for part in parts)
        )

    return digest


def _is_exactly(*kinds: type) -> Callable[[object], bool]:
    return lambda value: type(value) in kinds


def _is_a(*kinds: type) -> Callable[[object], bool]:
    return lambda value: isinstance(value, kinds)


def _is_of(library: str, *names: str) -> Callable[[object], bool]:
    """Return a test for classes of a library, which is not imported for it."""
    wanted = {(library, name) for name in names}
    return lambda value: any(
        # Of a class in C, __module__ may be anything.
        (str(base.__module__).partition(".")[0], base.__name__) in wanted
        for base in type(value).__mro__
    )


_CLASSES = (BuiltinFunctionType, MethodDescriptorType, WrapperDescriptorType)
KINDS: tuple[tuple[Callable[[Any], bool], Read], ...] = (
    (_is_exactly(float, complex), _digest_float),
    (_is_exactly(*PLAIN), lambda _, value, __: digest_plain(value)),
    (_is_exactly(File), lambda _, value, __: digest_parts("file", digest_file(value))),
    (_is_a(enum.Enum), _read_as("enum", type, lambda value: value.name)),
    (_is_a(list, tuple, deque), _digest_items),
    (_is_a(set, frozenset), _digest_set),
    (_is_a(dict, MappingProxyType), _digest_dict),
    (_is_a(slice), _read_as("slice", lambda value: (value.start, value.stop, value.step))),
    (_is_a(re.Pattern), _digest_pattern),
    (_is_of("_regex", "Pattern"), _digest_pattern),
    (_is_a(FunctionType), digest_function),
    (_is_a(MethodType), digest_method),
    (_is_a(functools.partial), digest_partial),
    (_is_a(*_CLASSES), digest_builtin),
    (_is_a(type), digest_class),
    (_is_a(ModuleType), digest_module),
    (_is_a(PurePath), digest_path),
    (_is_a(GeneratorType, CodeType), _refuse),
    (_is_of("_io", "_IOBase"), _refuse),
    (_is_of("numpy", "ndarray", "generic"), digest_array),
    (_is_of("torch", "Tensor"), digest_tensor),
    (_is_of("torch", "Module"), digest_torch_module),
    (_is_of("numpy", "Generator", "RandomState"), _digest_numpy_generator),
    (_is_of("torch", "Generator"), _read_as("seed", lambda value: str(value.initial_seed()))),
    (_is_of("torch", "dtype", "device"), _read_as("torch", str)),
    (_is_of("transformers", "PreTrainedTokenizerFast", "TokenizersBackend"), digest_tokenizer),
    (_is_of("tokenizers", "Tokenizer"), _read_as("tokenizer", type, lambda value: value.to_str())),
    (_is_of("datasets", "Dataset", "IterableDataset"), digest_hf_dataset),
    (lambda _: True, digest_object),
)
"""(whether a value is of a kind, how it is read)."""
