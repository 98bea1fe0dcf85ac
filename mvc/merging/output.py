"""A planned merge as a file: the bytes of a safetensors file, computed as they are read."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate
from typing import TYPE_CHECKING

from mvc.checkpoints.safetensors import DTYPES, encode_header
from mvc.errors import UnsupportedError
from mvc.fs import DurableFile
from mvc.progress import announce
from mvc.sources import JoinedSource, MemorySource

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from mvc.progress import ByteProgress
    from mvc.sources import ByteSource
    from mvc.workspace.tensors import ModelTensor

_PIECE_BYTES = 2**22


def header_of(tensors: Sequence[ModelTensor]) -> bytes:
    """Return the header of a safetensors file of some tensors, in their order."""
    for one in tensors:
        if one.view.dtype not in DTYPES:
            raise UnsupportedError(
                f"tensor {one.name!r} is {one.view.dtype}, which safetensors cannot hold"
            )
    return encode_header(
        (one.name, one.view.dtype, one.view.shape, one.size_bytes) for one in tensors
    )


def in_file_order(tensors: Sequence[ModelTensor]) -> list[ModelTensor]:
    """Return tensors as the safetensors library orders them: wide elements first, then by name."""
    return sorted(tensors, key=lambda one: (-DTYPES.get(one.view.dtype, 0), one.name))


def file_source(tensors: Sequence[ModelTensor]) -> ByteSource:
    """Return the whole file; every tensor has a source of its own, from its first byte on."""
    parts: list[ByteSource] = [MemorySource(header_of(tensors))]
    parts += [one.source for one in tensors if one.size_bytes]
    return JoinedSource(parts, [*accumulate((one.size_bytes for one in parts), initial=0)])


def write_file(
    tensors: Sequence[ModelTensor], output: Path, threads: int, progress: ByteProgress = None
) -> int:
    """Write some tensors to a safetensors file, whole or not at all; return its length."""
    source = file_source(in_file_order(tensors))
    announce(progress, source.size_bytes)
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
                if progress is not None:
                    progress(size_bytes)
        file.publish(output, expected_bytes=source.size_bytes)
    return source.size_bytes
