"""What extensions of DCP make of a state: streams of bytes, which are kept as they are.

An extension may encrypt, so nothing can be said of what is in a stream, and boxes of tensors are not put
together. Each rank keeps its own streams, in ``ranks/N`` from the second rank on.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
import torch
from torch.distributed.checkpoint.filesystem import (
    _StorageReaderTransforms,
    _StorageWriterTransforms,
)

from mvc import FormatError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from torch.distributed.checkpoint._extension import ExtensionRegistry, StreamTransformExtension
    from torch.distributed.checkpoint.planner import ReadItem, WriteItem

    from mvc_hooks.dcp.names import Path

STREAMS = "torch.streams"
"""Key of a state, alone in it, that has streams."""


@dataclass(frozen=True, slots=True)
class ExtensionStream:
    """A stream of a commit, but for its bytes, which are at ``keys`` in the state of ``folder``.

    ``dtype`` is None for an object, which has neither shape nor place.
    """

    folder: str | None
    keys: tuple[object, ...]
    name: str
    path: Path
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


class _Words(msgspec.Struct, forbid_unknown_fields=True):
    """What a state says of a stream, its bytes aside."""

    name: str
    path: tuple[str | int, ...]
    extensions: tuple[str, ...]
    dtype: str | None
    shape: tuple[int, ...]
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]


def list_streams(outline: Mapping[Any, Any], folder: str | None) -> Iterator[ExtensionStream]:
    """Yield the streams of an outlined state; FormatError if they are none."""
    for number, held in enumerate(outline[STREAMS]):
        try:
            words = {key: value for key, value in held.items() if key != "data"}
            fields = msgspec.structs.asdict(msgspec.convert(words, _Words))
        except (AttributeError, msgspec.ValidationError) as error:
            raise FormatError(
                f"{STREAMS!r} of the state holds something else than streams: {error}"
            ) from None
        is_type = isinstance(getattr(torch, fields["dtype"] or "uint8", None), torch.dtype)
        if not is_type or not fields["path"]:
            raise FormatError(f"the stream of {fields['name'][:80]!r} is of no tensor")
        yield ExtensionStream(folder, (STREAMS, number, "data"), **fields)
