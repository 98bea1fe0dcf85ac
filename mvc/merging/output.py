"""A planned merge as a file: the bytes of a safetensors file, computed as they are read."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate
from typing import TYPE_CHECKING

from mvc.checkpoints.safetensors import DTYPES, encode_header
from mvc.errors import UnsupportedError
from mvc.formats.layout import single_tensor
from mvc.fs import DurableFile
from mvc.progress import announce, report
from mvc.sources import ByteSource, JoinedSource, MemorySource
from mvc.workspace.tensors import ModelTensor

if TYPE_CHECKING:
    from pathlib import Path

    from mvc.workspace.tensors import Reader


_PIECE_BYTES = 2**22


def header_of(tensors: Sequence[ModelTensor]) -> bytes:
    """Return the header of a safetensors file of some tensors, in their order."""
    for tensor in tensors:
        if tensor.view.dtype not in DTYPES:
            raise UnsupportedError(
                f"tensor {tensor.name!r} is {tensor.view.dtype}, which safetensors cannot hold"
            )
    return encode_header(
        (tensor.name, tensor.view.dtype, tensor.view.shape, tensor.size_bytes) for tensor in tensors
    )


def in_file_order(tensors: Sequence[ModelTensor]) -> list[ModelTensor]:
    """Return tensors as the safetensors library orders them: wide elements first, then by name."""
    return sorted(tensors, key=lambda tensor: (-DTYPES.get(tensor.view.dtype, 0), tensor.name))


def file_source(tensors: Sequence[ModelTensor]) -> ByteSource:
    """Return the whole file; every tensor has a source of its own, from its first byte on."""
    parts: list[ByteSource] = [MemorySource(header_of(tensors))]
    parts += [tensor.source for tensor in tensors if tensor.size_bytes]
    return JoinedSource(parts, [*accumulate((part.size_bytes for part in parts), initial=0)])


def write_file(tensors: Sequence[ModelTensor], output: Path, threads: int) -> int:
    """Write some tensors to a safetensors file, whole or not at all; return its length."""
    source = file_source(in_file_order(tensors))
    announce(source.size_bytes)
    with DurableFile(output.parent) as file:
        own = threading.local()  # a buffer for every thread: new memory has to be cleared

        def copy(start: int) -> int:
            if not hasattr(own, "buffer"):
                own.buffer = memoryview(bytearray(_PIECE_BYTES))
            piece = own.buffer[: min(_PIECE_BYTES, source.size_bytes - start)]
            source.read_into(start, piece)
            file.write_at(piece, start)
            return len(piece)

        with ThreadPoolExecutor(threads, "mvc-merge") as crew:
            for size_bytes in crew.map(copy, range(0, source.size_bytes, _PIECE_BYTES)):
                report(size_bytes)
        file.publish(output, expected_bytes=source.size_bytes)
    return source.size_bytes


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


def _are_equal(tensor: ModelTensor, other: ModelTensor) -> bool:
    if tensor.id is not None and other.id is not None:
        return tensor.id == other.id
    first, second = tensor.open(), other.open()
    return all(
        bytes(first(start, size)) == bytes(second(start, size))
        for start in range(0, tensor.size_bytes, _COMPARED_BYTES)
        for size in [min(_COMPARED_BYTES, tensor.size_bytes - start)]
    )
