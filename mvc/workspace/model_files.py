"""Models as new files: what streams tensors, and safetensors files, one or shards of the Hub.

Tensors are streamed: chunks are read in parallel and written where they belong, and no more is in
memory. Every file is whole or not there; what names the others comes last.
"""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mvc.checkpoints.safetensors import DTYPES, METADATA_KEY, encode_header
from mvc.checkpoints.torch_writer import find_torch_name, plan_torch
from mvc.checkpoints.zip_frame import join_crc32
from mvc.chunkstore.parallel import for_each
from mvc.dtypes import get_dtype, size_in_bytes
from mvc.errors import UnsupportedError
from mvc.fs import DurableFile

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from mvc.progress import ByteProgress
    from mvc.workspace.context import Context
    from mvc.workspace.tensors import ModelTensor

SHARD_BYTES = 5 * 10**9
"""Tensors of one file of the Hub, unless a single one is larger: what the Hub's own tools write."""
HUB_INDEX = "model.safetensors.index.json"


@dataclass(frozen=True, slots=True)
class Piece:
    """Elements of a tensor that follow each other, in C order."""

    tensor: ModelTensor
    shape: tuple[int, ...]
    offset_bytes: int = 0

    @property
    def size_bytes(self) -> int:
        """Bytes of these elements."""
        return size_in_bytes(get_dtype(self.tensor.view.dtype), self.shape)


def whole(tensor: ModelTensor) -> Piece:
    """Return all of a tensor."""
    return Piece(tensor, tensor.view.shape)


@dataclass(frozen=True, slots=True)
class Output:
    """A file that is being written from many threads."""

    context: Context
    file: DurableFile
    progress: ByteProgress

    def write_piece(self, position: int, piece: Piece) -> int:
        """Write the elements at a position; return their CRC-32."""
        read, step, size_bytes = piece.tensor.open(), piece.tensor.chunk_bytes, piece.size_bytes
        # In steps of the tensor's chunks, wherever in them the piece begins.
        begin = piece.offset_bytes - piece.offset_bytes % step
        starts = range(begin, piece.offset_bytes + size_bytes, step)
        crc32s: dict[int, tuple[int, int]] = {}

        def copy(start: int, _: None) -> int:
            low = max(start, piece.offset_bytes)
            high = min(start + step, piece.offset_bytes + size_bytes)
            data = read(low, high - low).data
            crc32s[start] = zlib.crc32(data), high - low
            self.file.write_at(data, position + low - piece.offset_bytes)
            return high - low

        threads = self.context.store.threads
        for_each(starts, lambda: None, copy, threads=threads, progress=self.progress)
        joined = 0
        for start in starts:
            joined = join_crc32(joined, *crc32s[start])
        return joined

    def write_archive(self, position: int, value: object, pieces: Sequence[Piece]) -> int:
        """Write a file of torch that refers to pieces by number; return its length."""
        plan = plan_torch(value, [piece.size_bytes for piece in pieces])
        crc32s = []
        for number, member in enumerate(plan.zip.members):
            start, data = position + member.data_start, plan.known.get(number)
            if data is None:
                crc32s.append(self.write_piece(start, pieces[number - plan.first_tensor]))
            else:
                crc32s.append(zlib.crc32(data))
                self.file.write_at(memoryview(data), start)
            header = plan.zip.encode_local(number, crc32s[-1])
            self.file.write_at(memoryview(header), position + member.local_start)
        end = plan.zip.encode_directory(crc32s)
        self.file.write_at(memoryview(end), position + plan.zip.directory_start)
        return plan.zip.directory_start + len(end)


def write_safetensors(
    context: Context, output: Path, tensors: Sequence[ModelTensor], progress: ByteProgress
) -> int:
    """Write tensors to one safetensors file; return its length."""
    header = encode_header(
        (one.name, one.view.dtype, one.view.shape, one.size_bytes) for one in tensors
    )
    position = len(header)
    with DurableFile(output.parent) as file:
        file.write([header])
        to = Output(context, file, progress)
        for tensor in tensors:
            to.write_piece(position, whole(tensor))
            position += tensor.size_bytes
        file.publish(output, expected_bytes=position)
    return position


def plan_shards(tensors: Sequence[ModelTensor], shard_bytes: int) -> dict[str, list[ModelTensor]]:
    """Return name → tensors of the files of a folder of the Hub, in their order."""
    shards: list[list[ModelTensor]] = [[]]
    size_bytes = 0
    for tensor in tensors:
        if shards[-1] and size_bytes + tensor.size_bytes > shard_bytes:
            shards.append([])
            size_bytes = 0
        shards[-1].append(tensor)
        size_bytes += tensor.size_bytes
    count = len(shards)
    if count == 1:
        return {"model.safetensors": shards[0]}
    return {
        f"model-{number:05d}-of-{count:05d}.safetensors": shard
        for number, shard in enumerate(shards, start=1)
    }


def write_hub(
    context: Context,
    folder: Path,
    shards: dict[str, list[ModelTensor]],
    progress: ByteProgress,
) -> int:
    """Write files of the Hub, and the index of several; return their length."""
    size_bytes = 0
    for name, tensors in shards.items():
        size_bytes += write_safetensors(context, folder / name, tensors, progress)
    if len(shards) == 1:
        return size_bytes
    index = {
        "metadata": {"total_size": sum(one.size_bytes for row in shards.values() for one in row)},
        "weight_map": {one.name: name for name, row in shards.items() for one in row},
    }
    data = (json.dumps(index, indent=2, ensure_ascii=False) + "\n").encode()
    write_small(folder / HUB_INDEX, data)
    return size_bytes + len(data)


def write_small(path: Path, data: bytes) -> None:
    """Write a file that is in memory, whole or not at all."""
    with DurableFile(path.parent) as file:
        file.write([data])
        file.publish(path)


def check_writable(tensors: Sequence[ModelTensor], kind: str) -> None:
    """Check that a format can hold tensors: ``safetensors``, or ``torch`` and ``dcp``."""
    for tensor in tensors:
        name, dtype = tensor.view.name, tensor.view.dtype
        if kind != "safetensors" and find_torch_name(dtype) is None:
            what = f"is {dtype}, for which torch has no type"
        elif kind == "safetensors" and name == METADATA_KEY:
            what = "has the one name that safetensors reserves"
        elif kind == "safetensors" and dtype not in DTYPES:
            what = f"is {dtype}, which safetensors cannot hold"
        else:
            continue
        raise UnsupportedError(
            f"tensor {name!r} of {tensor.path} {what}", hint="leave it out with `tensors`"
        )
