"""Models as files of torch and as DCP folders, nested as their leaves say."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from mvc.checkpoints.dcp.encode import encode_dcp_metadata
from mvc.checkpoints.dcp.metadata import DcpItem, DcpMetadata, DcpTensor
from mvc.checkpoints.names import METADATA_NAME
from mvc.checkpoints.torch_writer import plan_torch, refer
from mvc.fs import DurableFile
from mvc.numbers.boxes import whole_box
from mvc.workspace.dcp_folders import copy_items
from mvc.workspace.model_files import Output, Piece, whole, write_small
from mvc.workspace.model_tree import ModelTree, StoredObject
from mvc.workspace.tensors import ModelTensor

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from mvc.checkpoints.dcp.metadata import Path as Steps
    from mvc.numbers.boxes import Box
    from mvc.progress import ByteProgress
    from mvc.workspace.context import Context

BOX_BYTES = 2**29
"""Most of a tensor in one item of a DCP folder, which PyTorch reads whole: rows of 512 MiB."""
DCP_FILE = "__0_0.distcp"


def write_torch(context: Context, output: Path, model: ModelTree, progress: ByteProgress) -> int:
    """Write a model whose leaves are tensors and plain data to a file of torch; return its length."""
    value, pieces = _refer(_nest(model))
    with DurableFile(output.parent) as file:
        size_bytes = Output(context, file, progress).write_archive(0, value, pieces)
        file.publish(output, expected_bytes=size_bytes)
    return size_bytes


class _Branch(dict[str | int, object]):
    """What steps of paths lead to."""


def _nest(model: ModelTree) -> object:
    """Return the nested value; flat if its paths contradict each other."""
    root = _Branch()
    if all(_put(root, path, leaf) for path, leaf in model.leaves.values()) and _fits(root):
        return _settle(root)
    return {key: leaf for key, (_, leaf) in model.leaves.items()}


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


def _refer(value: object) -> tuple[object, list[Piece]]:
    """Return a value as its pickle has it, and the tensors that it refers to by number."""
    pieces: list[Piece] = []

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
    pieces: Sequence[Piece]


def write_dcp(context: Context, folder: Path, model: ModelTree, progress: ByteProgress) -> int:
    """Write a flat model to a DCP folder; return the length of its files.

    Tensors are cut into items by rows, so that who loads a part of one reads little more.
    """
    jobs = _plan_items(model)
    size_bytes = jobs[-1].item.end
    starts = {job.item.key: job.item.start for job in jobs}
    stored = [job.value for job in jobs if isinstance(job.value, StoredObject)]
    with DurableFile(folder) as file:
        to = Output(context, file, progress)
        for source in {one.folder.path: one.folder for one in stored}.values():
            items = [one.item for one in stored if one.folder is source]
            copy_items(context, source, model.tree, items, partial(_copy, to, starts))
        for job in jobs:
            if not isinstance(job.value, StoredObject):
                to.write_archive(job.item.start, job.value, job.pieces)
        with suppress(FileNotFoundError):  # never beside a file that it does not describe
            os.unlink(folder / METADATA_NAME)
        file.publish(folder / DCP_FILE, expected_bytes=size_bytes)
    entries = {key: _describe(leaf) for key, (_, leaf) in model.leaves.items()}
    paths = {key: path for key, (path, _) in model.leaves.items()}
    items = [job.item for job in jobs]
    data = encode_dcp_metadata(DcpMetadata(entries, {DCP_FILE: tuple(items)}, paths))
    write_small(folder / METADATA_NAME, data)
    return size_bytes + len(data)


def _copy(to: Output, starts: Mapping[str, int], item: DcpItem, at: int, part: memoryview) -> None:
    to.file.write_at(part, starts[item.key] + at)


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


def _cut_leaf(leaf: object) -> Iterator[tuple[Box | None, object, Sequence[Piece]]]:
    """Yield box, value and tensors of the items that a leaf becomes."""
    if isinstance(leaf, StoredObject):
        yield None, leaf, ()
    elif not isinstance(leaf, ModelTensor):
        yield None, *_refer(leaf)
    else:
        done = 0
        for box in _cut_rows(leaf):
            piece = Piece(leaf, box.sizes, done)
            yield box, refer(0, leaf.view.dtype, box.sizes), [piece]
            done += piece.size_bytes


def _describe(leaf: object) -> DcpTensor | None:
    if not isinstance(leaf, ModelTensor):
        return None
    return DcpTensor(leaf.view.dtype, leaf.view.shape, tuple(_cut_rows(leaf)))


def _cut_rows(tensor: ModelTensor) -> Iterator[Box]:
    box = whole_box(tensor.view.shape)
    if tensor.size_bytes <= BOX_BYTES or not tensor.view.shape:
        yield box
        return
    rows = box.sizes[0]
    step = max(BOX_BYTES * rows // tensor.size_bytes, 1)
    for start in range(0, rows, step):
        yield box.narrow(start, min(start + step, rows))
