"""Names of DCP ⇄ places in a nested state.

DCP's planners flatten a state dict: a name is the keys and indexes that lead to a value, joined by dots.
They say which path each name stands for, so a state is nested in a commit as it was before.

DCP passes on what is not a tensor as the bytes of ``torch.save``. Plain data is stored as such, so it can be read, compared and merged. Any other object is kept as those
bytes; to load it again is to run what is in them, so the reader has to be told to.

Extensions of DCP make streams of bytes, which are kept as they are. One may encrypt, so nothing can be said of what is in a stream, and boxes of tensors are not put
together. Each rank keeps its own streams, in ``ranks/N`` from the second rank on.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec
import torch
from torch.distributed.checkpoint.filesystem import (
    _StorageReaderTransforms,
    _StorageWriterTransforms,
)

from mvc import FormatError, MvcError, UnsupportedError
from mvc.training import ArrayOutline, layout_state

if TYPE_CHECKING:
    from torch.distributed.checkpoint._extension import ExtensionRegistry, StreamTransformExtension
    from torch.distributed.checkpoint.planner import ReadItem, WriteItem


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


STREAMS = "torch.streams"  # key of a state, alone in it, that has streams


class ExtensionStream(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A stream of a commit, but for its bytes, which are at ``keys`` in the state of ``folder``.

    ``dtype`` is None for an object, which has neither shape nor place.
    """

    folder: str | None
    keys: tuple[str | int, ...]
    name: str
    path: tuple[str | int, ...]
    extensions: tuple[str, ...]
    dtype: str | None
    shape: tuple[int, ...]
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]

    def read(self, data: bytes, item: ReadItem, registry: ExtensionRegistry | None) -> bytes:
        """Return what the extensions were given."""
        opened = _StorageReaderTransforms(registry)
        raw = io.BytesIO(data)
        return bytes(opened.transform_load_stream(item, self.extensions, raw).read(-1))

    def view(self, plain: bytes) -> torch.Tensor:
        """Return the box of a tensor that those bytes are."""
        dtype = getattr(torch, self.dtype or "uint8")
        if len(plain) != dtype.itemsize * torch.Size(self.sizes).numel():
            raise FormatError(
                f"the stream of {self.name!r} has {len(plain):,} bytes, not its box's"
            )
        if not plain:
            return torch.empty(self.sizes, dtype=dtype)
        return torch.frombuffer(bytearray(plain), dtype=dtype).view(self.sizes)


def make_stream(
    item: WriteItem,
    path: Path,
    value: torch.Tensor | io.BytesIO,
    extensions: Sequence[StreamTransformExtension],
) -> dict[str, Any]:
    """Return what a state has of an item that goes through extensions."""
    target = io.BytesIO()
    into, names = _StorageWriterTransforms(extensions).transform_save_stream(item, target)
    words: dict[str, Any] = dict.fromkeys(("shape", "offsets", "sizes"), ())
    words |= {"name": item.index.fqn, "path": list(path), "extensions": names, "dtype": None}
    if isinstance(value, torch.Tensor):
        assert item.tensor_data is not None
        chunk = item.tensor_data.chunk
        flat = value.detach().cpu().contiguous().reshape(-1)
        into.write(flat.view(torch.uint8).numpy().data)
        words["dtype"] = str(value.dtype).removeprefix("torch.")
        words["shape"] = tuple(item.tensor_data.size)
        words["offsets"], words["sizes"] = tuple(chunk.offsets), tuple(chunk.sizes)
    else:
        into.write(value.getbuffer())
    into.close()
    return {**words, "data": target.getvalue()}


def list_streams(outline: Mapping[Any, Any], folder: str | None) -> Iterator[ExtensionStream]:
    """Yield the streams of an outlined state; FormatError if they are none."""
    for number, held in enumerate(outline[STREAMS]):
        place = {"folder": folder, "keys": (STREAMS, number, "data")}
        try:
            words = {key: value for key, value in held.items() if key != "data"}
            stream = msgspec.convert(words | place, ExtensionStream)
        except (AttributeError, msgspec.ValidationError) as error:
            raise FormatError(
                f"{STREAMS!r} of the state holds something else than streams: {error}"
            ) from None
        is_type = isinstance(getattr(torch, stream.dtype or "uint8", None), torch.dtype)
        if not is_type or not stream.path:
            raise FormatError(f"the stream of {stream.name[:80]!r} is of no tensor")
        yield stream
