"""The header of a safetensors file: which bytes are which tensor.

A file is an 8-byte little-endian header length, a JSON object, and the tensors' bytes. The rules
that make it safe are all checked: a capped header, no key twice, extents that follow each other
without hole or overlap to the very end of the file, and shape x dtype equal to the extent.

JSON decoders silently keep the last of two equal keys. But the strings of a header can be counted:
every decoded tensor accounts for five and every line of the metadata for two, so any other string
in the text is a key that came twice.

Also the index of a sharded model of the Hub (``model.safetensors.index.json`` and
``pytorch_model.bin.index.json``), which names the file of each tensor.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

import msgspec

from mvc.checkpoints.limits import MAX_TENSORS, check_limit, checked_layout
from mvc.errors import FormatError
from mvc.formats.layout import FileLayout, Segment, single_tensor
from mvc.sources import ByteSource, read_bytes

LENGTH_BYTES = 8
METADATA_KEY = "__metadata__"
MAX_HEADER_BYTES = 100_000_000
"""The format's own limit."""
MAX_INDEX_BYTES = 64 * 2**20
"""An index line takes some 100 bytes per tensor: room for 600,000."""
MAX_SHARD_NAME_BYTES = 255
"""Longest file name of the usual file systems."""
_DTYPES = (
    "BOOL", "F4", "F6_E2M3", "F6_E3M2", "U8", "I8", "F8_E5M2", "F8_E4M3", "F8_E8M0",
    "F8_E4M3FNUZ", "F8_E5M2FNUZ", "I16", "U16", "F16", "BF16", "I32", "U32", "F32", "C64", "F64",
    "I64", "U64",
)  # fmt: skip
DTYPES = {name: rank for rank, name in enumerate(_DTYPES)}
"""Names, as in ``mvc.dtypes`` → place in the library's own enumeration, which sorts its files."""
_STRINGS_PER_TENSOR = 5  # its name, its three keys, its dtype
_MAX_STRINGS = (_STRINGS_PER_TENSOR + 1) * MAX_TENSORS  # before anything is decoded
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"')


class _TensorHeader(msgspec.Struct, gc=False, frozen=True, forbid_unknown_fields=True):
    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


class _Index(msgspec.Struct):
    weight_map: dict[str, str]


_HEADER = msgspec.json.Decoder(dict[str, msgspec.Raw])
_TENSOR = msgspec.json.Decoder(_TensorHeader)
_METADATA = msgspec.json.Decoder(dict[str, str])
_INDEX = msgspec.json.Decoder(_Index)


def parse_safetensors(source: ByteSource) -> FileLayout:
    """Name the tensors of a safetensors file, in file order."""
    header = read_header(source)
    tensors = _parse_header(header)
    start = LENGTH_BYTES + len(header)
    segments = _place_tensors(tensors, start, source.size_bytes)
    return checked_layout("safetensors", source.size_bytes, segments)


def read_header(source: ByteSource) -> bytes:
    """Return the JSON header with its padding."""
    if source.size_bytes < LENGTH_BYTES:
        raise FormatError(f"file of {source.size_bytes} bytes has no safetensors header length")
    size_bytes = int.from_bytes(read_bytes(source, 0, LENGTH_BYTES), "little")
    check_limit("safetensors header claims", size_bytes, "bytes", MAX_HEADER_BYTES)
    if size_bytes > source.size_bytes - LENGTH_BYTES:
        raise FormatError(
            f"safetensors header claims {size_bytes:,} bytes in a file of {source.size_bytes:,}"
        )
    if size_bytes == 0 or read_bytes(source, LENGTH_BYTES, 1) != b"{":
        raise FormatError("safetensors header does not begin with '{'")
    return read_bytes(source, LENGTH_BYTES, size_bytes)


def read_metadata(header: bytes) -> dict[str, str] | None:
    """Return the metadata of a JSON header, or None if it has none."""
    try:
        metadata = _HEADER.decode(header).get(METADATA_KEY)
        return None if metadata is None else _METADATA.decode(metadata)
    except (ValueError, msgspec.MsgspecError, RecursionError) as error:
        raise FormatError(f"safetensors header is not valid: {error}") from error


def encode_header(
    tensors: Iterable[tuple[str, str, Sequence[int], int]],
    metadata: Mapping[str, str] | None = MappingProxyType({"format": "pt"}),
) -> bytes:
    """Return what begins a file of tensors, given name, dtype, shape and bytes of each in order.

    Padded so that data begin at a multiple of 8. The safetensors library only writes tensors that
    are all in memory; we stream.
    """
    table: dict[str, object] = {} if metadata is None else {METADATA_KEY: dict(metadata)}
    end = 0
    for name, dtype, shape, size_bytes in tensors:
        start, end = end, end + size_bytes
        table[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [start, end]}
    import json  # noqa: PLC0415  readers need none

    text = json.dumps(table, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(LENGTH_BYTES, "little") + text


def _parse_header(header: bytes) -> list[tuple[str, _TensorHeader]]:
    if header.count(b'"') > 2 * _MAX_STRINGS:
        raise FormatError(f"safetensors header has more than {_MAX_STRINGS:,} strings")
    try:
        values = _HEADER.decode(header)
        has_metadata = METADATA_KEY in values
        metadata = _METADATA.decode(values.pop(METADATA_KEY, b"{}"))
        check_limit("header has", len(values), "tensors", MAX_TENSORS)
        tensors = [(name, _TENSOR.decode(raw)) for name, raw in values.items()]
    except (ValueError, msgspec.MsgspecError, RecursionError) as error:
        raise FormatError(f"safetensors header is not valid: {error}") from error
    expected = _STRINGS_PER_TENSOR * len(tensors) + 2 * len(metadata) + has_metadata
    is_plain = b"\\" not in header
    strings = header.count(b'"') // 2 if is_plain else sum(1 for _ in _STRING.finditer(header))
    if strings != expected:
        raise FormatError("safetensors header has a key twice")
    return tensors


def _place_tensors(
    tensors: list[tuple[str, _TensorHeader]], start: int, size_bytes: int
) -> list[Segment]:
    # Empty tensors share their offset with the next one; by (begin, end) they come first.
    tensors.sort(key=lambda item: item[1].data_offsets)
    segments = []
    position = 0
    for name, tensor in tensors:
        begin, end = tensor.data_offsets
        if begin != position or end < begin:
            raise FormatError(
                f"tensor {name[:80]!r} is at {begin}..{end}, but byte {position} comes next"
            )
        if tensor.dtype not in DTYPES:
            raise FormatError(f"tensor {name[:80]!r} has the unknown dtype {tensor.dtype[:80]!r}")
        segment = single_tensor(name, tensor.dtype, tensor.shape, start + begin)
        if segment.size_bytes != end - begin:
            raise FormatError(
                f"tensor {name[:80]!r} has {segment.size_bytes:,} bytes, but room for {end - begin:,}"
            )
        segments.append(segment)
        position = end
    if start + position != size_bytes:
        raise FormatError(
            f"safetensors file has {size_bytes:,} bytes, its tensors end at {start + position:,}"
        )
    return segments


def find_shards(index_bytes: bytes) -> tuple[str, ...]:
    """Return the file names of the shards beside an index file, sorted."""
    check_limit("index has", len(index_bytes), "bytes", MAX_INDEX_BYTES)
    try:
        index = _INDEX.decode(index_bytes)
    except (ValueError, msgspec.MsgspecError, RecursionError) as error:
        raise FormatError(f"shard index is not valid: {error}") from error
    shards = tuple(sorted(set(index.weight_map.values())))
    for shard in shards:
        if not _is_plain_name(shard):
            raise FormatError(f"shard index names {shard[:80]!r}, which is not a plain file name")
    return shards


def _is_plain_name(name: str) -> bool:
    try:
        size_bytes = len(name.encode())
    except UnicodeEncodeError:
        return False
    if name in ("", ".", "..") or size_bytes > MAX_SHARD_NAME_BYTES:
        return False
    return name.isprintable() and not any(letter in name for letter in "/\\")
