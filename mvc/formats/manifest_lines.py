"""Manifests as bytes: the lines of docs/format.md, section 2, through msgspec.

Apart from their values, because importing msgspec takes longer than most commands that meet no manifest.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, cast

import msgspec

from mvc.errors import FormatError, UnsupportedError
from mvc.formats.layout import Segment, TensorView, check_layout, single_tensor
from mvc.formats.manifest import (
    MANIFEST_PREFIX,
    MAX_FILE_BYTES,
    MAX_MANIFEST_BYTES,
    VERSION,
    Manifest,
    StoredSegment,
    check_chunk_bytes,
    is_manifest,
    tensor_id,
)
from mvc.ids import ID_BYTES, ChunkId, TensorId, hash_tensor

if TYPE_CHECKING:
    Content = tuple[str, bytes]


class _Header(msgspec.Struct, forbid_unknown_fields=True):
    version: int = msgspec.field(name="mvc-manifest")
    format: str
    size: int
    chunk_bytes: int
    gaps: list[str]


class _Version(msgspec.Struct):
    version: int = msgspec.field(name="mvc-manifest")


class _Box(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    offset: list[int]
    shape: list[int]
    chunks: list[str]


class _Line(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True, gc=False):
    """Any line below the header; exactly one of the first three is given."""

    tensor: str | None = None
    storage: str | None = None
    view: str | None = None
    dtype: str | None = None
    shape: list[int] | None = None
    at: int | None = None
    size: int | None = None
    offset: int | None = None
    strides: list[int] | None = None
    chunks: list[str] | None = None
    boxes: list[_Box] | None = None


_HEADER = msgspec.json.Decoder(_Header)
_LINES = msgspec.json.Decoder(_Line)
_ENCODER = msgspec.json.Encoder()
_PLAIN = re.compile(
    rb'\{"tensor":"([^"\\\n]*(?:\\.[^"\\\n]*)*)","dtype":"(\w{1,16})","shape":\[([0-9,]{0,999})\],'
    rb'"at":[0-9]+,"chunks":\[((?:"[0-9a-f]{64}",?)*)\]\}'
)


def encode_manifest(manifest: Manifest) -> bytes:
    """Return the canonical bytes of a manifest."""
    header = _Header(
        VERSION,
        manifest.format,
        manifest.size_bytes,
        manifest.chunk_bytes,
        [chunk.hex() for chunk in manifest.gaps],
    )
    lines: list[_Header | _Line] = [header]
    for stored in manifest.segments:
        lines.extend(_segment_lines(stored))
    try:
        return _ENCODER.encode_lines(lines)
    except (UnicodeEncodeError, OverflowError) as error:
        raise FormatError(f"a tensor name cannot be written: {error}") from error


def _segment_lines(stored: StoredSegment) -> Iterator[_Line]:
    segment = stored.segment
    chunks = [chunk.hex() for chunk in stored.chunks]
    if segment.is_plain:
        view = segment.tensors[0]
        shape = list(view.shape)
        yield _Line(
            tensor=view.name, dtype=view.dtype, shape=shape, at=segment.start, chunks=chunks
        )
        return
    yield _Line(storage=segment.dtype, at=segment.start, size=segment.size_bytes, chunks=chunks)
    for view in segment.tensors:
        yield _Line(
            view=view.name,
            dtype=view.dtype,
            shape=list(view.shape),
            offset=view.offset_bytes,
            strides=None if view.strides is None else list(view.strides),
        )


def parse_manifest(data: bytes) -> Manifest:
    """Return the manifest that ``data`` holds, every rule of the format checked."""
    if not is_manifest(data[: len(MANIFEST_PREFIX)]):
        raise FormatError("not a manifest: the header line is missing")
    if len(data) > MAX_MANIFEST_BYTES:
        raise FormatError(f"manifest of {len(data):,} bytes is over the limit")
    head, _, rest = data.partition(b"\n")
    header = _parse_header(head)
    try:
        lines = _LINES.decode_lines(rest)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise FormatError(f"manifest has a malformed line: {error}") from error
    segments = tuple(_parse_segments(lines, header.chunk_bytes))
    check_layout(header.size, [stored.segment for stored in segments])
    manifest = Manifest(
        header.format, header.size, header.chunk_bytes, _parse_ids(header.gaps), segments
    )
    _check_chunk_count(manifest.gaps, manifest.gap_bytes, header.chunk_bytes, "the gap stream")
    return manifest


def find_contents(
    data: bytes, known: Mapping[bytes, Content] | None = None
) -> dict[bytes, Content]:
    """Return line → (name, content) of every tensor: equal contents are equal tensors, bit for bit.

    For walks along many versions: lines ``known`` from another one are not looked at, plain and
    canonical ones not parsed, and then the rules of the format are not checked. ``content_id`` makes
    ids of contents.
    """
    if not is_manifest(data[: len(MANIFEST_PREFIX)]):
        raise FormatError("not a manifest: the header line is missing")
    known = known or {}
    content_of: dict[bytes, Content] = {}
    for line in data.split(b"\n")[1:-1]:
        content = known.get(line) or _find_content(line)
        if content is None:  # a storage with its views, or not canonical
            tensors = parse_manifest(data).tensors()
            contents = ((view.name, _content(view, stored)) for view, stored in tensors)
            return {f"@{name}".encode(): (name, content) for name, content in contents}
        content_of[line] = content
    return content_of


def _find_content(line: bytes) -> Content | None:
    match = _PLAIN.fullmatch(line)
    if match is None:
        return None
    name, *content = match.groups()
    try:
        if b"\\" in name:
            return msgspec.json.decode(b'"%s"' % name, type=str), b" ".join(content)
        return name.decode(), b" ".join(content)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise FormatError(f"manifest has a malformed name: {error}") from error


def _content(view: TensorView, stored: StoredSegment) -> bytes:
    if not stored.segment.is_plain:
        return f"@{tensor_id(view, stored)}".encode()
    chunks = ",".join(f'"{chunk.hex()}"' for chunk in stored.chunks)
    return f"{view.dtype} {','.join(map(str, view.shape))} {chunks}".encode()


def content_id(content: bytes) -> TensorId:
    """Return the id of a tensor from its content."""
    if content.startswith(b"@"):
        return TensorId(content[1:].decode())
    dtype, shape, chunks = content.decode().split(" ")
    ids = _parse_ids([text[1:-1] for text in chunks.split(",") if text])
    return hash_tensor(dtype, [int(text) for text in shape.split(",") if text], ids)


def _parse_header(head: bytes) -> _Header:
    try:
        # The version first: a later one may have fields that this one refuses.
        version = msgspec.json.decode(head, type=_Version).version
        if version > VERSION:
            raise UnsupportedError(
                f"manifest of version {version}; this mvc reads up to {VERSION}",
                hint="upgrade mvc to read it",
            )
        header = _HEADER.decode(head)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise FormatError(f"manifest has a malformed header: {error}") from error
    if version < 1 or not 0 <= header.size <= MAX_FILE_BYTES:
        raise FormatError("manifest header is out of range")
    check_chunk_bytes(header.chunk_bytes)
    return header


def _parse_segments(lines: Sequence[_Line], chunk_bytes: int) -> Iterator[StoredSegment]:
    position = 0
    while position < len(lines):
        line = lines[position]
        position += 1
        if line.boxes is not None:
            raise UnsupportedError("tensor stored in boxes", hint="upgrade mvc to read it")
        if line.tensor is not None:
            segment = _plain_segment(line)
        else:
            views = position
            while position < len(lines) and lines[position].view is not None:
                position += 1
            segment = _storage_segment(line, lines[views:position])
        chunks = _parse_ids(line.chunks or [])
        _check_chunk_count(chunks, segment.size_bytes, chunk_bytes, segment.tensors[0].name)
        yield StoredSegment(segment, chunks)


def _plain_segment(line: _Line) -> Segment:
    if line.tensor is None or line.dtype is None or line.shape is None or line.at is None:
        raise FormatError(f"tensor line {line.tensor!r} lacks a field")
    extra = (line.storage, line.view, line.size, line.offset, line.strides)
    if extra != (None, None, None, None, None):
        raise FormatError(f"tensor line {line.tensor!r} has a field too many")
    return single_tensor(line.tensor, line.dtype, line.shape, line.at)


def _storage_segment(line: _Line, views: Sequence[_Line]) -> Segment:
    if line.storage is None or line.at is None or line.size is None or line.size < 0:
        raise FormatError("manifest line is neither a tensor nor a storage")
    if line.dtype is not None or line.shape is not None or line.view is not None:
        raise FormatError("storage line has a field too many")
    if not views:
        raise FormatError(f"storage at {line.at} carries no tensor")
    tensors = tuple(_view(view) for view in views)
    return Segment(line.at, line.size, line.storage, tensors)


def _view(line: _Line) -> TensorView:
    if line.view is None or line.dtype is None or line.shape is None or line.offset is None:
        raise FormatError(f"view line {line.view!r} lacks a field")
    if line.storage is not None or line.chunks is not None or line.at is not None:
        raise FormatError(f"view line {line.view!r} has a field too many")
    strides = None if line.strides is None else tuple(line.strides)
    return TensorView(line.view, line.dtype, tuple(line.shape), line.offset, strides)


def _parse_ids(texts: Sequence[str]) -> tuple[ChunkId, ...]:
    joined = "".join(texts)
    try:
        ids = tuple(map(bytes.fromhex, texts))
    except ValueError as error:
        raise FormatError(f"manifest has a malformed chunk id: {error}") from error
    if b"".join(ids).hex() != joined or not {ID_BYTES}.issuperset(map(len, ids)):
        raise FormatError("manifest has a chunk id that is not 64 lower-case hex digits")
    return cast("tuple[ChunkId, ...]", ids)


def _check_chunk_count(
    chunks: Sequence[ChunkId], size_bytes: int, chunk_bytes: int, what: str
) -> None:
    wanted = -(-size_bytes // chunk_bytes)
    if len(chunks) != wanted:
        raise FormatError(f"{what} of {size_bytes} bytes has {len(chunks)} chunks, not {wanted}")
