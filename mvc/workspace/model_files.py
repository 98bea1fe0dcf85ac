"""Models as new files: what streams tensors, and safetensors files, one or shards of the Hub.

Tensors are streamed: chunks are read in parallel and written where they belong, and no more is in
memory. Every file is whole or not there; what names the others comes last.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mvc.checkpoints.dcp.encode import encode_dcp_metadata
from mvc.checkpoints.dcp.metadata import DcpItem, DcpMetadata, DcpTensor
from mvc.checkpoints.dcp.metadata import Path as Steps
from mvc.checkpoints.names import METADATA_NAME
from mvc.checkpoints.safetensors import DTYPES, METADATA_KEY, encode_header
from mvc.checkpoints.torch_writer import find_torch_name, plan_torch, refer
from mvc.checkpoints.zip_frame import join_crc32
from mvc.chunkstore.parallel import for_each
from mvc.dtypes import get_dtype, size_in_bytes
from mvc.errors import UnsupportedError
from mvc.fs import DurableFile
from mvc.numbers.boxes import Box, whole_box
from mvc.progress import report
from mvc.workspace.dcp_folders import copy_items
from mvc.workspace.model_tree import ModelTree, StoredObject
from mvc.workspace.tensors import ModelTensor

if TYPE_CHECKING:
    from pathlib import Path

    from mvc.workspace.context import Context


SHARD_BYTES = 5 * 10**9
"""Tensors of one file of the Hub, unless a single one is larger: what the Hub's own tools write."""
HUB_INDEX = "model.safetensors.index.json"


@dataclass(frozen=True, slots=True)
class TensorRun:
    """Elements of a tensor that follow each other, in C order."""

    tensor: ModelTensor
    shape: tuple[int, ...]
    offset_bytes: int = 0

    @property
    def size_bytes(self) -> int:
        """Bytes of these elements."""
        return size_in_bytes(get_dtype(self.tensor.view.dtype), self.shape)


def whole(tensor: ModelTensor) -> TensorRun:
    """Return all of a tensor."""
    return TensorRun(tensor, tensor.view.shape)


@dataclass(frozen=True, slots=True)
class OutputFile:
    """A file that is being written from many threads."""

    context: Context
    file: DurableFile

    def write_piece(self, position: int, piece: TensorRun) -> int:
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
        for_each(starts, lambda: None, copy, threads=threads, progress=report)
        joined = 0
        for start in starts:
            joined = join_crc32(joined, *crc32s[start])
        return joined

    def write_archive(self, position: int, value: object, pieces: Sequence[TensorRun]) -> int:
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


def write_safetensors(context: Context, output: Path, tensors: Sequence[ModelTensor]) -> int:
    """Write tensors to one safetensors file; return its length."""
    header = encode_header(
        (tensor.name, tensor.view.dtype, tensor.view.shape, tensor.size_bytes) for tensor in tensors
    )
    position = len(header)
    with DurableFile(output.parent) as file:
        file.write([header])
        to = OutputFile(context, file)
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


def write_hub(context: Context, folder: Path, shards: dict[str, list[ModelTensor]]) -> int:
    """Write files of the Hub, and the index of several; return their length."""
    size_bytes = 0
    for name, tensors in shards.items():
        size_bytes += write_safetensors(context, folder / name, tensors)
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


BOX_BYTES = 2**29
"""Most of a tensor in one item of a DCP folder, which PyTorch reads whole: rows of 512 MiB."""
DCP_FILE = "__0_0.distcp"


def write_torch(context: Context, output: Path, model: ModelTree) -> int:
    """Write a model whose leaves are tensors and plain data to a file of torch; return its length."""
    root = _Branch()
    if all(_put(root, path, leaf) for path, leaf in model.leaves.values()) and _fits(root):
        nested = _settle(root)
    else:  # its paths contradict each other
        nested = {key: leaf for key, (_, leaf) in model.leaves.items()}
    value, pieces = _refer(nested)
    with DurableFile(output.parent) as file:
        size_bytes = OutputFile(context, file).write_archive(0, value, pieces)
        file.publish(output, expected_bytes=size_bytes)
    return size_bytes


class _Branch(dict[str | int, object]):
    """What steps of paths lead to."""


def _put(branch: _Branch, path: Steps, leaf: object) -> bool:
    """Put a leaf in its place; return False if something else is there, or on the way."""
    for step in path[:-1]:
        inner = branch.setdefault(step, _Branch())
        if not isinstance(inner, _Branch):
            return False
        branch = inner
    return branch.setdefault(path[-1], leaf) is leaf


def _fits(value: object) -> bool:
    """Return whether every branch is a list, its steps counting from 0, or has only text as keys."""
    if not isinstance(value, _Branch):
        return True
    is_dict = all(isinstance(key, str) for key in value)
    return (is_dict or value.keys() == {*range(len(value))}) and all(map(_fits, value.values()))


def _settle(value: object) -> object:
    if not isinstance(value, _Branch):
        return value
    if 0 in value:
        return [_settle(value[place]) for place in range(len(value))]
    return {key: _settle(one) for key, one in value.items()}


def _refer(value: object) -> tuple[object, list[TensorRun]]:
    """Return a value as its pickle has it, and the tensors that it refers to by number."""
    pieces: list[TensorRun] = []

    def replace(one: object) -> object:
        if isinstance(one, ModelTensor):
            pieces.append(whole(one))
            return refer(len(pieces) - 1, one.view.dtype, one.view.shape)
        if isinstance(one, dict):
            return {key: replace(item) for key, item in one.items()}
        if isinstance(one, (list, tuple)):
            return type(one)(map(replace, one))
        return one

    return replace(value), pieces


@dataclass(frozen=True, slots=True)
class _Job:
    """An item of a DCP folder that is yet to be written."""

    item: DcpItem
    value: object
    pieces: Sequence[TensorRun]


def write_dcp(context: Context, folder: Path, model: ModelTree) -> int:
    """Write a flat model to a DCP folder; return the length of its files.

    Tensors are cut into items by rows, so that who loads a part of one reads little more.
    """
    jobs = _plan_items(model)
    size_bytes = jobs[-1].item.end
    starts = {job.item.key: job.item.start for job in jobs}
    stored = [job.value for job in jobs if isinstance(job.value, StoredObject)]
    with DurableFile(folder) as file:
        to = OutputFile(context, file)

        def copy(item: DcpItem, at: int, part: memoryview) -> None:
            file.write_at(part, starts[item.key] + at)

        for source in {one.folder.path: one.folder for one in stored}.values():
            items = [one.item for one in stored if one.folder is source]
            copy_items(context, source, model.tree, items, copy)
        for job in jobs:
            if not isinstance(job.value, StoredObject):
                to.write_archive(job.item.start, job.value, job.pieces)
        with suppress(FileNotFoundError):  # never beside a file that it does not describe
            os.unlink(folder / METADATA_NAME)
        file.publish(folder / DCP_FILE, expected_bytes=size_bytes)
    entries = {
        key: DcpTensor(leaf.view.dtype, leaf.view.shape, tuple(_cut_rows(leaf)))
        if isinstance(leaf, ModelTensor)
        else None
        for key, (_, leaf) in model.leaves.items()
    }
    paths = {key: path for key, (path, _) in model.leaves.items()}
    items = [job.item for job in jobs]
    data = encode_dcp_metadata(DcpMetadata(entries, {DCP_FILE: tuple(items)}, paths))
    write_small(folder / METADATA_NAME, data)
    return size_bytes + len(data)


def _plan_items(model: ModelTree) -> list[_Job]:
    jobs: list[_Job] = []
    position = 0
    for key, (_, leaf) in model.leaves.items():
        for box, value, pieces in _cut_leaf(leaf):
            if isinstance(value, StoredObject):
                size_bytes, transforms = value.item.size_bytes, value.item.transforms
            else:
                sizes = [piece.size_bytes for piece in pieces]
                size_bytes, transforms = plan_torch(value, sizes).zip.size_bytes, ()
            item = DcpItem(key, box, DCP_FILE, position, size_bytes, transforms)
            jobs.append(_Job(item, value, pieces))
            position += size_bytes
    return jobs


def _cut_leaf(leaf: object) -> Iterator[tuple[Box | None, object, Sequence[TensorRun]]]:
    """Yield box, value and tensors of the items that a leaf becomes."""
    if isinstance(leaf, StoredObject):
        yield None, leaf, ()
    elif not isinstance(leaf, ModelTensor):
        yield None, *_refer(leaf)
    else:
        done = 0
        for box in _cut_rows(leaf):
            piece = TensorRun(leaf, box.sizes, done)
            yield box, refer(0, leaf.view.dtype, box.sizes), [piece]
            done += piece.size_bytes


def _cut_rows(tensor: ModelTensor) -> Iterator[Box]:
    box = whole_box(tensor.view.shape)
    if tensor.size_bytes <= BOX_BYTES or not tensor.view.shape:
        yield box
        return
    rows = box.sizes[0]
    step = max(BOX_BYTES * rows // tensor.size_bytes, 1)
    for start in range(0, rows, step):
        yield box.narrow(start, min(start + step, rows))
