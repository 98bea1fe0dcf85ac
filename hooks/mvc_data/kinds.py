"""How a value of each kind is read, in the order in which kinds are tried."""

from __future__ import annotations

import enum
import functools
import re
import struct
from collections import OrderedDict, deque
from pathlib import PurePath
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
from typing import TYPE_CHECKING, Any

from mvc_data.functions import (
    digest_builtin,
    digest_class,
    digest_function,
    digest_method,
    digest_module,
    digest_partial,
)
from mvc_data.objects import (
    digest_array,
    digest_file,
    digest_hf_dataset,
    digest_object,
    digest_path,
    digest_tensor,
    digest_tokenizer,
    digest_torch_module,
    list_own,
)
from mvc_data.reading import PLAIN, File, digest_plain
from mvc_data.spelling import digest_parts
from mvc_hooks.installed import is_library_class

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from mvc_data.reading import Read, Reading


def _digest_items(reading: Reading, value: Sequence[object], path: str) -> bytes:
    items = (reading.digest(one, f"{path}[{index}]") for index, one in enumerate(value))
    return digest_parts(type(value).__name__, *items, *_digest_beside(reading, value, path))


def _digest_beside(reading: Reading, value: object, path: str) -> Iterator[bytes]:
    """Yield the digests of what a container has besides its items, if it is no plain one."""
    for name in ("default_factory", "maxlen"):
        if getattr(value, name, None) is not None:
            yield digest_parts(name, reading.digest(getattr(value, name), f"{path}.{name}"))
    if not is_library_class(type(value)):
        yield reading.digest(type(value), path)
        for name, one in sorted(list_own(value).items()):
            yield digest_parts(name, reading.digest(one, f"{path}.{name}".lstrip(".")))


def _digest_set(reading: Reading, value: set[object], path: str) -> bytes:
    items = sorted(reading.digest(one, f"{path}[...]") for one in value)
    return digest_parts("set", *items, *_digest_beside(reading, value, path))


def _digest_dict(reading: Reading, value: Mapping[object, object], path: str) -> bytes:
    """Return the digest of a dict: equal ones have the same, as have equal OrderedDicts."""
    pairs = []
    for key, one in value.items():
        place = "" if type(one) in PLAIN else f"{path}[{key!r:.40}]"
        pairs.append(
            digest_parts(reading.digest(key, f"a key of {path}"), reading.digest(one, place))
        )
    ordered = pairs if isinstance(value, OrderedDict) else sorted(pairs)
    return digest_parts(type(value).__name__, *ordered, *_digest_beside(reading, value, path))


def _digest_float(_: Reading, value: complex, __: str) -> bytes:
    value = complex(value)
    return digest_parts("float", struct.pack("<dd", value.real, value.imag))


def _digest_pattern(reading: Reading, value: re.Pattern[Any], path: str) -> bytes:
    return digest_parts("pattern", reading.digest(value.pattern, path), str(int(value.flags)))


def _digest_slice(reading: Reading, value: slice, path: str) -> bytes:
    return digest_parts("slice", reading.digest((value.start, value.stop, value.step), path))


def _digest_enum(reading: Reading, value: enum.Enum, path: str) -> bytes:
    return digest_parts("enum", reading.digest(type(value), path), value.name)


def _digest_numpy_generator(reading: Reading, value: Any, path: str) -> bytes:
    bits = getattr(value, "bit_generator", None)
    state = value.get_state(legacy=False) if bits is None else bits.state
    return digest_parts("generator", reading.digest(state, path))


def _digest_backend(reading: Reading, value: Any, path: str) -> bytes:
    return digest_parts("tokenizer", reading.digest(type(value), path), value.to_str())


def _refuse(reading: Reading, value: object, path: str) -> bytes:
    kind = type(value)
    name = f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins.")
    reading.refuse(path, f"is a {name}, which has no content that lasts")


def _is_exactly(*kinds: type) -> Callable[[object], bool]:
    return lambda value: type(value) in kinds


def _is_a(*kinds: type) -> Callable[[object], bool]:
    return lambda value: isinstance(value, kinds)


def _is_of(library: str, *names: str) -> Callable[[object], bool]:
    """Return a test for classes of a library, which is not imported for it."""
    wanted = {(library, name) for name in names}
    return lambda value: any(
        # Of a class in C, __module__ may be anything.
        (str(one.__module__).partition(".")[0], one.__name__) in wanted
        for one in type(value).__mro__
    )


_CLASSES = (BuiltinFunctionType, MethodDescriptorType, WrapperDescriptorType)
KINDS: tuple[tuple[Callable[[Any], bool], Read], ...] = (
    (_is_exactly(float, complex), _digest_float),
    (_is_exactly(*PLAIN), lambda _, value, __: digest_plain(value)),
    (_is_exactly(File), lambda _, value, __: digest_parts("file", digest_file(value))),
    (_is_a(enum.Enum), _digest_enum),
    (_is_a(list, tuple, deque), _digest_items),
    (_is_a(set, frozenset), _digest_set),
    (_is_a(dict, MappingProxyType), _digest_dict),
    (_is_a(slice), _digest_slice),
    (
        lambda value: isinstance(value, re.Pattern) or _is_of("_regex", "Pattern")(value),
        _digest_pattern,
    ),
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
    (
        _is_of("torch", "Generator"),
        lambda _, one, __: digest_parts("seed", str(one.initial_seed())),
    ),
    (_is_of("torch", "dtype", "device"), lambda _, one, __: digest_parts("torch", str(one))),
    (_is_of("transformers", "PreTrainedTokenizerFast", "TokenizersBackend"), digest_tokenizer),
    (_is_of("tokenizers", "Tokenizer"), _digest_backend),
    (_is_of("datasets", "Dataset", "IterableDataset"), digest_hf_dataset),
    (lambda _: True, digest_object),
)
"""(whether a value is of a kind, how it is read)."""
