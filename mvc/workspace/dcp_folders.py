"""DCP folders of a commit as whole models: shards put together where they are read."""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mvc.checkpoints.dcp.metadata import MAX_METADATA_BYTES, DcpItem, name_box, parse_dcp_metadata
from mvc.checkpoints.names import METADATA_NAME
from mvc.dtypes import get_dtype, size_in_bytes
from mvc.errors import FormatError, UnsupportedError
from mvc.formats.layout import Segment, TensorView
from mvc.numbers.boxes import Box, Shape, count_part, find_fault, locate_part, scatter
from mvc.sources import ByteSource, FileSource, read_bytes
from mvc.workspace.content import GapStream, read_requests
from mvc.workspace.manifests import find_manifest, stored_size
from mvc.workspace.state_files import read_small_file
from mvc.workspace.tensors import ModelTensor

if TYPE_CHECKING:
    from pathlib import Path

    from mvc.checkpoints.dcp.metadata import DcpMetadata, DcpTensor
    from mvc.chunkstore.values import ReadRequest
    from mvc.history.values import TreeEntry
    from mvc.workspace.context import Context

MAX_STEP_BYTES = 32 * 2**20
"""Most that is put together at once of a tensor that is cut across its rows."""


@dataclass(frozen=True, slots=True)
class DcpFolder:
    """One folder of a tree, with what its ``.metadata`` says; ``path`` is empty for the top."""

    path: str
    metadata: DcpMetadata

    def file(self, name: str) -> str:
        """Return the path of a file in it."""
        return f"{self.path}/{name}" if self.path else name


def list_folders(paths: Iterable[str], read: Callable[[str], bytes | None]) -> list[DcpFolder]:
    """Return the DCP folders that some paths are in, given what reads metadata."""
    places = dict.fromkeys(path.rpartition("/")[0] for path in paths if path.endswith(".distcp"))
    folders: list[DcpFolder] = []
    for place in places:
        data = read(f"{place}/{METADATA_NAME}" if place else METADATA_NAME)
        with suppress(FormatError):  # then its tensors are numbered
            if data is not None:
                folders.append(DcpFolder(place, parse_dcp_metadata(data)))
    return folders


def find_gap(folder: DcpFolder, is_there: Callable[[str], bool]) -> str | None:
    """Return in words which files of a folder are missing, or None."""
    missing = [name for name in folder.metadata.files if not is_there(folder.file(name))]
    if not missing:
        return None
    more = f" and {len(missing) - 1} more, which are" if len(missing) > 1 else ", which is"
    return f"names {missing[0]}{more} not there: the checkpoint is incomplete"


def find_folders(
    paths: Collection[str], read: Callable[[str], bytes | None], is_there: Callable[[str], bool]
) -> list[DcpFolder]:
    """Return the DCP folders whose files are all among some paths; FormatError if one is incomplete."""
    folders: list[DcpFolder] = []
    for folder in list_folders(paths, read):
        if all(folder.file(name) in paths for name in folder.metadata.files):
            folders.append(folder)
        elif gap := find_gap(folder, is_there):
            raise FormatError(
                f"{folder.file(METADATA_NAME)} {gap}",
                hint='"mvc export --format files" writes the files that are there',
            )
    return folders


def find_stored_folders(
    context: Context, tree: Mapping[str, TreeEntry], paths: Iterable[str]
) -> list[DcpFolder]:
    """Return the same of files of a tree."""

    def read(path: str) -> bytes | None:
        entry = tree.get(path)
        if entry is None or stored_size(context, entry.blob) > MAX_METADATA_BYTES:
            return None
        return read_small_file(context, entry.blob)

    return find_folders(set(paths), read, tree.__contains__)


def find_worktree_folders(worktree: Path, paths: Iterable[str]) -> list[DcpFolder]:
    """Return the same of files below a folder."""
    return find_folders(set(paths), *_looks(worktree))


def find_gaps(worktree: Path, paths: Iterable[str]) -> list[tuple[str, str]]:
    """Return path of the metadata, and what is missing, of incomplete folders that files are in."""
    read, is_there = _looks(worktree)
    folders = list_folders(paths, read)
    gaps = [(folder.file(METADATA_NAME), find_gap(folder, is_there)) for folder in folders]
    return [(path, gap) for path, gap in gaps if gap is not None]


def _looks(worktree: Path) -> tuple[Callable[[str], bytes | None], Callable[[str], bool]]:
    """Return what reads the metadata of a folder, and what says whether a file is there."""

    def read(path: str) -> bytes | None:
        with suppress(OSError, UnsupportedError), FileSource.open(worktree / path) as source:
            if source.size_bytes <= MAX_METADATA_BYTES:
                return read_bytes(source, 0, source.size_bytes)
        return None

    return read, lambda path: os.path.lexists(worktree / path)


def join_shards(
    folder: DcpFolder, shards: Iterable[ModelTensor], keys: Collection[str] | None = None
) -> dict[str, ModelTensor]:
    """Return key → whole tensor of a folder, given the tensors of its files; of some keys or of all.

    FormatError names a tensor whose boxes do not cover it once, or are not all there, and
    UnsupportedError one whose bytes were compressed.
    """
    held = {(shard.path, shard.name): shard for shard in shards}
    parts: dict[str, list[tuple[Box, ModelTensor]]] = {}
    for item, box, tensor in iterate_boxes(folder.metadata):
        if keys is not None and item.key not in keys:
            continue
        if item.transforms:
            raise UnsupportedError(
                f"tensor {item.key!r} of {folder.path or '.'} went through {item.transforms[0]}",
                hint="save it without extensions",
            )
        path = folder.file(item.file)
        name = name_box(item.key, tensor.shape, box)
        shard = held.get((path, name)) or held.get((path, item.key))
        if shard is None or (shard.view.dtype, shard.view.shape) != (tensor.dtype, box.sizes):
            raise FormatError(
                f"tensor {item.key!r} of {folder.path or '.'} lacks {name!r} in {path}"
            )
        parts.setdefault(item.key, []).append((box, shard))
    wholes = (
        (key, entry)
        for key, entry in folder.metadata.entries.items()
        if entry is not None and (keys is None or key in keys)
    )
    return {key: _join(folder, key, tensor, parts.get(key, [])) for key, tensor in wholes}


def iterate_boxes(metadata: DcpMetadata) -> Iterator[tuple[DcpItem, Box, DcpTensor]]:
    """Yield the items that hold boxes of tensors."""
    for items in metadata.files.values():
        for item in items:
            tensor = metadata.entries[item.key]
            if tensor is not None and item.box is not None:
                yield item, item.box, tensor


def _join(
    folder: DcpFolder, key: str, tensor: DcpTensor, parts: Sequence[tuple[Box, ModelTensor]]
) -> ModelTensor:
    fault = find_fault(tensor.shape, [box for box, _ in parts])
    if fault is not None:
        raise FormatError(f"the shards of tensor {key!r} of {folder.path or '.'} {fault}")
    if len(parts) == 1 and parts[0][1].name == key:
        return parts[0][1]
    if tensor.dtype is None:  # and so without elements
        raise FormatError(f"tensor {key!r} of {folder.path or '.'} has an unknown type")
    source = BoxesSource(tensor.dtype, tensor.shape, parts)
    view = TensorView(key, tensor.dtype, tensor.shape)
    segment = Segment(0, source.size_bytes, tensor.dtype, (view,))
    return ModelTensor(folder.path, view, segment, source, 0, None, source.step_bytes)


def shards_of(tensor: ModelTensor) -> Sequence[ModelTensor]:
    """Return what a tensor is put together from, or itself."""
    return tensor.source.shards if isinstance(tensor.source, BoxesSource) else [tensor]


class BoxesSource(ByteSource):
    """A tensor in C order, read from boxes that cover it once."""

    def __init__(self, dtype: str, shape: Shape, parts: Sequence[tuple[Box, ModelTensor]]) -> None:
        self.shards = [shard for _, shard in parts]
        self._shape = shape
        self._item_bytes = get_dtype(dtype).block_bytes
        self._size_bytes = size_in_bytes(get_dtype(dtype), shape)
        self._parts = [(box, one) for box, one in parts if box.elements]
        # Boxes side by side: one step should read about one chunk of each of them.
        beside = len({box.offsets[1:] for box, _ in self._parts})
        chunk_bytes = max((one.chunk_bytes for _, one in parts), default=0) or 2**22
        most = max(MAX_STEP_BYTES // chunk_bytes, 1)
        self.step_bytes = chunk_bytes * max(1, min(beside, most))

    @property
    def size_bytes(self) -> int:
        """Length of the tensor."""
        return self._size_bytes

    def read_into(self, offset: int, buffer: memoryview) -> None:
        """Fill the whole buffer from ``offset`` on."""
        import numpy as np  # noqa: PLC0415  import cost

        item = self._item_bytes
        first, last = offset // item, -(-(offset + len(buffer)) // item)
        run = np.empty((last - first) * item, np.uint8)
        for box, shard in self._parts:
            count = count_part(self._shape, box, first, last)
            if count:
                at = locate_part(self._shape, box, first)
                part = shard.open()(at * item, count * item)
                scatter(part, run, self._shape, box, first, item)
        inside = offset - first * item
        buffer[:] = run[inside : inside + len(buffer)].data


def read_items(
    context: Context, folder: DcpFolder, tree: Mapping[str, TreeEntry], items: Sequence[DcpItem]
) -> dict[str, bytes]:
    """Return key → bytes of small items."""
    found = {item.key: bytearray(item.size_bytes) for item in items}

    def write(item: DcpItem, offset: int, part: memoryview) -> None:
        found[item.key][offset : offset + len(part)] = part

    copy_items(context, folder, tree, items, write)
    return {key: bytes(data) for key, data in found.items()}


def copy_items(
    context: Context,
    folder: DcpFolder,
    tree: Mapping[str, TreeEntry],
    items: Iterable[DcpItem],
    write: Callable[[DcpItem, int, memoryview], None],
) -> None:
    """Hand out the bytes of items as they are stored: (item, offset in it, bytes), in any order."""
    by_file: dict[str, list[DcpItem]] = {}
    for item in items:
        by_file.setdefault(item.file, []).append(item)
    for file, wanted in by_file.items():
        _copy_from(
            context, folder.file(file), tree, sorted(wanted, key=lambda change: change.start), write
        )


def _copy_from(
    context: Context,
    path: str,
    tree: Mapping[str, TreeEntry],
    items: Sequence[DcpItem],
    write: Callable[[DcpItem, int, memoryview], None],
) -> None:
    manifest = find_manifest(context, tree[path].blob) if path in tree else None
    if manifest is None or manifest.size_bytes < items[-1].end:
        raise FormatError(f"{path} does not hold {items[-1].key!r}")
    gaps = GapStream(manifest.gap_ranges())

    def ranges(request: ReadRequest, plain: memoryview) -> Iterator[tuple[int, memoryview]]:
        if request.offset >= 0:
            return iter([(request.offset, plain)])
        return gaps.split(-1 - request.offset, plain)

    def sink(request: ReadRequest, plain: memoryview) -> None:
        for start, part in ranges(request, plain):
            for item, low, high in _find_met(items, start, len(part)):
                write(item, low - item.start, part[low - start : high - start])

    def is_wanted(request: ReadRequest) -> bool:
        runs = ranges(request, blank[: request.plain_size_bytes])
        return any(any(_find_met(items, start, len(part))) for start, part in runs)

    blank = memoryview(bytearray(manifest.chunk_bytes))
    context.store.read_many([*filter(is_wanted, read_requests(manifest, path))], sink)


def _find_met(
    items: Sequence[DcpItem], start: int, size_bytes: int
) -> Iterator[tuple[DcpItem, int, int]]:
    """Yield which of some items, ascending, meet a range of the file, and from where to where."""
    first = bisect_right(items, start, key=lambda item: item.start) - 1
    for number in range(max(first, 0), len(items)):
        item = items[number]
        if item.start >= start + size_bytes:
            return
        low, high = max(item.start, start), min(item.end, start + size_bytes)
        if low < high:
            yield item, low, high
