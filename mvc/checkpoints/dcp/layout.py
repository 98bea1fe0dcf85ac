"""The files of a DCP folder: whole files of ``torch.save``, one for each item, end to end.

What the items are called is in the ``.metadata`` of the folder. Without one, or with that of another
checkpoint, they are found from the end of the file, where each zip archive says how long it is, and
only numbered.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from mvc.checkpoints.dcp.metadata import (
    MAX_METADATA_BYTES,
    name_box,
    parse_dcp_metadata,
)
from mvc.checkpoints.limits import MAX_TENSORS, Names, check_limit, checked_layout
from mvc.checkpoints.names import METADATA_NAME
from mvc.checkpoints.torch_pickle.names import ROOT_NAME
from mvc.checkpoints.torch_zip import layout_torch
from mvc.checkpoints.zip_directory import find_archive_start, parse_zip_directory
from mvc.errors import FormatError
from mvc.formats.layout import FileLayout, Segment
from mvc.sources import ByteSource, SlicedSource, read_beside

if TYPE_CHECKING:
    from mvc.checkpoints.dcp.metadata import DcpItem, DcpMetadata


def parse_distcp(source: ByteSource, name: str) -> FileLayout:
    """Name the tensors of a file of a DCP folder, with the folder's metadata if there are any."""
    if not source.size_bytes:  # of a rank that holds nothing
        return FileLayout("dcp", 0)
    try:
        metadata = find_metadata(source, name)
    except FormatError as error:
        return _layout_numbered(source, f"{METADATA_NAME} cannot be read ({error.message})")
    if metadata is None:
        return _layout_numbered(source, f"no {METADATA_NAME} beside it names them")
    try:
        return _layout_named(source, metadata, metadata.files[name])
    except FormatError as error:
        return _layout_numbered(
            source, f"{METADATA_NAME} is of another checkpoint ({error.message})"
        )


def find_metadata(source: ByteSource, name: str) -> DcpMetadata | None:
    """Return the metadata beside a file that name items of it; each rank may have its own."""
    rank = name.removeprefix("__").partition("_")[0]
    for candidate in (METADATA_NAME, f"__{rank}{METADATA_NAME}"):
        data = read_beside(source, candidate, MAX_METADATA_BYTES)
        if data is not None:
            metadata = parse_dcp_metadata(data)
            if name in metadata.files:
                return metadata
    return None


def _layout_named(
    source: ByteSource, metadata: DcpMetadata, items: Iterable[DcpItem]
) -> FileLayout:
    segments: list[Segment] = []
    names = Names(set(), mark="#")
    position, transformed = 0, ""
    for item in items:
        if not position <= item.start <= item.end <= source.size_bytes:
            raise FormatError(f"item {item.key[:80]!r} overlaps another, or is outside the file")
        position = item.end
        if item.transforms:
            transformed = item.transforms[0]
            continue
        segments += _layout_item(source, metadata, item, names)
    warning = (
        f"its items went through {transformed}: they are stored as bytes" if transformed else None
    )
    return checked_layout("dcp", source.size_bytes, segments, warning)


def _layout_item(
    source: ByteSource, metadata: DcpMetadata, item: DcpItem, names: Names
) -> list[Segment]:
    tensor = metadata.entries[item.key]
    try:
        segments = _layout_archive(source, item.start, item.end)
    except FormatError:
        if tensor is None:
            return []  # an object may be written in any way
        raise
    if tensor is None or item.box is None:
        return _rename(segments, item.key, names)
    view = next(
        (segment.tensors[0] for segment in segments if segment.tensors[0].name == ROOT_NAME), None
    )
    if view is None or (view.shape, view.dtype) != (item.box.sizes, tensor.dtype):
        raise FormatError(f"item {item.key[:80]!r} has another shape or dtype")
    return _rename(segments, name_box(item.key, tensor.shape, item.box), names)


def _layout_numbered(source: ByteSource, reason: str) -> FileLayout:
    starts = []
    end = source.size_bytes
    while end:
        starts.append(find_archive_start(SlicedSource(source, 0, end)))
        end = starts[-1]
        check_limit("file has more than", len(starts), "items", MAX_TENSORS)
    starts.reverse()
    segments: list[Segment] = []
    names = Names(set(), mark="#")
    for number, (start, stop) in enumerate(
        zip(starts, [*starts[1:], source.size_bytes], strict=True)
    ):
        segments += _rename(_layout_archive(source, start, stop), f"item.{number}", names)
    return checked_layout("dcp", source.size_bytes, segments, f"its tensors are numbered: {reason}")


def _layout_archive(source: ByteSource, start: int, stop: int) -> list[Segment]:
    archive = SlicedSource(source, start, stop - start)
    segments = layout_torch(archive, parse_zip_directory(archive)).segments
    return [replace(segment, start=start + segment.start) for segment in segments]


def _rename(segments: Iterable[Segment], item: str, names: Names) -> list[Segment]:
    """Put the name of an item before those of the tensors in it; it is that of a tensor saved alone."""
    return [
        replace(
            segment,
            tensors=tuple(
                replace(
                    view, name=names.give(item if view.name == ROOT_NAME else f"{item}.{view.name}")
                )
                for view in segment.tensors
            ),
        )
        for segment in segments
    ]
