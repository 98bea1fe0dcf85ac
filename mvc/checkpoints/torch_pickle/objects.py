"""What PyTorch's own names in a pickle mean: storages, tensors, and the containers around them.

``reduce_torch`` is the closed list: pure functions from the arguments in the pickle to a value
that says where a tensor is. Anything not on the list stays ``Opaque``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from mvc.checkpoints.torch_pickle.values import Global, Pairs
from mvc.dtypes import MAX_DIMS, MAX_TENSOR_BYTES, TORCH_NAMES, count_elements
from mvc.errors import FormatError

TORCH_DTYPES = {name: dtype for dtype, name in TORCH_NAMES.items()} | {
    "qint8": "QI8", "quint8": "QU8", "qint32": "QI32",
}  # fmt: skip
"""Names in the module ``torch`` to canonical dtype names."""
_STORAGE_CLASSES = {
    "Bool": "BOOL", "Byte": "U8", "Char": "I8", "Short": "I16", "Int": "I32", "Long": "I64",
    "Half": "F16", "BFloat16": "BF16", "Float": "F32", "Double": "F64",
    "ComplexFloat": "C64", "ComplexDouble": "C128",
    "QInt8": "QI8", "QUInt8": "QU8", "QInt32": "QI32", "Untyped": "U8",
}  # fmt: skip
_STORAGES = {
    f"{module}.{name}Storage": dtype
    for module in ("torch", "torch.cuda", "torch.storage")
    for name, dtype in _STORAGE_CLASSES.items()
}
_DTYPES = {f"torch.{name}": dtype for name, dtype in TORCH_DTYPES.items()}


@dataclass(frozen=True, slots=True, eq=False)
class StorageRef:
    """A storage of the archive, the entry ``data/<key>``; its dtype is None if it has no name."""

    dtype: str | None
    key: str
    elements: int


@dataclass(frozen=True, slots=True, eq=False)
class TensorRef:
    """A tensor on a storage, as in ``mvc.formats.layout.TensorView`` but with all in elements.

    ``attributes`` were saved with the tensor and may hold tensors themselves.
    """

    storage: StorageRef
    dtype: str | None
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    attributes: object = None


def find_storage(pid: object) -> StorageRef | None:
    """Return the storage that a persistent id names, or None for an id of another kind.

    The id is (``"storage"``, storage type, key, location, number of elements).
    """
    match pid:
        case ("storage", kind, str(key), _, int(elements), *_) if _is_count(elements):
            dtype = _STORAGES.get(kind.path) if isinstance(kind, Global) else None
            return StorageRef(dtype, key, elements)
        case ("storage", *_):
            raise FormatError("pickle names a storage with an impossible key or length")
        case _:
            return None


def reduce_torch(callee: Global, args: object) -> object | None:
    """Return what a call on the closed list makes, or None for any other call."""
    rebuild = _REBUILD.get(callee.path)
    if rebuild is None or not isinstance(args, tuple):
        return None
    return rebuild(args)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and 0 <= value <= MAX_TENSOR_BYTES


def _counts(value: object, storage: StorageRef) -> tuple[int, ...]:
    if not isinstance(value, (tuple, list)) or len(value) > MAX_DIMS:
        raise FormatError(f"tensor on storage {storage.key[:80]!r} has no shape or strides")
    for item in value:
        if not _is_count(item):
            raise FormatError(f"tensor on storage {storage.key[:80]!r} has impossible dimensions")
    return tuple(value)


def _place(args: tuple[object, ...], dtype: str | None = None) -> TensorRef | None:
    """Read (storage, offset, shape, strides, ...), which begins the arguments of most tensors."""
    match args:
        case (StorageRef() as storage, int(offset), raw_shape, raw_strides, *_):
            pass
        case _:
            return None
    shape, strides = _counts(raw_shape, storage), _counts(raw_strides, storage)
    if not _is_count(offset) or len(shape) != len(strides):
        raise FormatError(f"tensor on storage {storage.key[:80]!r} has an impossible place")
    count_elements(shape)
    return TensorRef(storage, dtype or storage.dtype, offset, shape, strides)


def _rebuild_v2(args: tuple[object, ...]) -> object | None:
    # (storage, offset, shape, strides, requires_grad, hooks[, metadata])
    return _without_lazy_bits(_place(args), args[6:])


def _rebuild_v3(args: tuple[object, ...]) -> object | None:
    # as v2 with the dtype before the metadata; the storage has none
    match args[6:]:
        case (Global(path), *metadata) if path in _DTYPES:
            return _without_lazy_bits(_place(args, _DTYPES[path]), metadata)
        case _:
            return None


def _without_lazy_bits(tensor: TensorRef | None, metadata: Sequence[object]) -> TensorRef | None:
    # A lazily conjugated or negated tensor is not what its bytes say: better no name than wrong
    # values. PyTorch writes the metadata only if one of the two is set.
    return None if any(isinstance(item, Pairs) and item for item in metadata[:1]) else tensor


def _rebuild_quantized(args: tuple[object, ...]) -> object | None:
    tensor = _place(args)
    match args[4:]:
        # Per tensor scale and zero point are numbers, per channel they are tensors.
        case ((_, scales, zero_points, *_), *_) if tensor is not None:
            extra = Pairs(["scales", scales, "zero_points", zero_points])
            return replace(tensor, attributes=extra)
        case _:
            return tensor


def _rebuild_sparse(args: tuple[object, ...]) -> object | None:
    match args:
        case ("torch.sparse_coo", (indices, values, *_), *_):
            return Pairs(["indices", indices, "values", values])
        case (_, (compressed, plain, values, *_), *_):
            names = ("compressed_indices", "plain_indices", "values")
            return Pairs([names[0], compressed, names[1], plain, names[2], values])
        case _:
            return None


def _rebuild_nested(args: tuple[object, ...]) -> object | None:
    match args:
        case (buffer, sizes, strides, offsets):
            named = ("buffer", buffer, "sizes", sizes, "strides", strides, "offsets", offsets)
            return Pairs(named)
        case _:
            return None


def _with_attributes(value: object, attributes: object) -> object:
    if isinstance(value, TensorRef) and value.attributes is None:
        return replace(value, attributes=attributes)
    return value


def _rebuild_with_state(args: tuple[object, ...]) -> object | None:
    match args:
        case (value, _, _, state, *_):
            return _with_attributes(value, state)
        case _:
            return None


def _rebuild_from_type(args: tuple[object, ...]) -> object | None:
    """Read (function, class, its arguments, state): how subclasses of Tensor are saved."""
    match args:
        case (Global() as function, _, inner, state, *_) if function.path not in _FROM_TYPE:
            value = reduce_torch(function, inner)
            return None if value is None else _with_attributes(value, state)
        case _:
            return None


def _first(args: tuple[object, ...]) -> object | None:
    return args[0] if args else None


def _mapping(args: tuple[object, ...]) -> object | None:
    """Make the empty mapping that SETITEMS will fill; Counter brings its dictionary along."""
    match args:
        case (Pairs() as filled, *_):
            return filled
        case (list(), *_):
            return None
        case _:
            return Pairs()


_FROM_TYPE = ("torch._tensor._rebuild_from_type_v2", "torch._tensor._rebuild_from_type")

_REBUILD: dict[str, Callable[[tuple[object, ...]], object | None]] = {
    "torch._utils._rebuild_tensor": _place,
    "torch._utils._rebuild_tensor_v2": _rebuild_v2,
    "torch._utils._rebuild_tensor_v3": _rebuild_v3,
    "torch._utils._rebuild_qtensor": _rebuild_quantized,
    "torch._utils._rebuild_sparse_tensor": _rebuild_sparse,
    "torch._utils._rebuild_nested_tensor": _rebuild_nested,
    "torch._utils._rebuild_parameter": _first,
    "torch._utils._rebuild_parameter_with_state": _rebuild_with_state,
    "torch._utils._rebuild_device_tensor_from_cpu_tensor": _first,
    **dict.fromkeys(_FROM_TYPE, _rebuild_from_type),
    "torch.serialization._get_layout": _first,
    "torch.Size": _first,
    "torch.jit._pickle.restore_type_tag": _first,
    "torch.jit._pickle.build_intlist": _first,
    "torch.jit._pickle.build_tensorlist": _first,
    "collections.OrderedDict": _mapping,
    "collections.defaultdict": _mapping,
    "collections.Counter": _mapping,
    "builtins.set": _first,
    "__builtin__.set": _first,
    "builtins.frozenset": _first,
    "__builtin__.frozenset": _first,
}
