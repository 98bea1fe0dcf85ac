"""Tensors that a merge takes from a model unchanged, under another name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mvc.errors import UnsupportedError
from mvc.formats.layout import single_tensor
from mvc.sources import ByteSource
from mvc.workspace.tensors import ModelTensor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mvc.workspace.tensors import Reader

_COMPARED_BYTES = 2**22


class _TensorBytes(ByteSource):
    """The bytes of one tensor in the order of its elements, wherever they are."""

    def __init__(self, tensor: ModelTensor) -> None:
        self._tensor = tensor
        self._read: Reader | None = None

    @property
    def size_bytes(self) -> int:
        """Bytes of its elements."""
        return self._tensor.size_bytes

    def read_into(self, offset: int, buffer: memoryview) -> None:
        """Fill the buffer from that offset of the tensor."""
        self._read = self._read or self._tensor.open()
        buffer[:] = self._read(offset, len(buffer)).data


def take(tensor: ModelTensor, name: str) -> ModelTensor:
    """Return a tensor as it is, under a name; stored chunks stay known where they are just its own."""
    segment = single_tensor(name, tensor.view.dtype, tensor.view.shape, 0)
    chunks = tensor.chunks if tensor.segment.is_plain else None
    source = _TensorBytes(tensor)
    return ModelTensor(
        tensor.path, segment.tensors[0], segment, source, 0, chunks, tensor.chunk_bytes
    )


def find_only(name: str, tensors: Sequence[ModelTensor]) -> ModelTensor:
    """Return the one tensor that all are, of elements that cannot be averaged."""
    first = tensors[0]
    for other in tensors[1:]:
        if (first.view.dtype, first.view.shape) != (other.view.dtype, other.view.shape) or not (
            _are_equal(first, other)
        ):
            raise UnsupportedError(
                f"tensor {name!r} is {first.view.dtype}, which cannot be averaged, "
                f"and differs between {first.path} and {other.path}"
            )
    return first


def _are_equal(one: ModelTensor, other: ModelTensor) -> bool:
    if one.id is not None and other.id is not None:
        return one.id == other.id
    first, second = one.open(), other.open()
    return all(
        bytes(first(start, size)) == bytes(second(start, size))
        for start in range(0, one.size_bytes, _COMPARED_BYTES)
        for size in [min(_COMPARED_BYTES, one.size_bytes - start)]
    )
