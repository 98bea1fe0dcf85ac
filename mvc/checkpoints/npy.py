"""NumPy's own files: one array (``.npy``) or a zip archive of them (``.npz``).

The header is a Python dict literal. Only the spelling of a plain array is understood, by pattern,
and nothing is evaluated; a structured type simply has no name here and stays opaque.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mvc.checkpoints.limits import MAX_TENSORS, check_limit, checked_layout
from mvc.checkpoints.names import NPY_MAGIC
from mvc.dtypes import MAX_DIMS, get_dtype, size_in_bytes
from mvc.errors import FormatError
from mvc.formats.layout import FileLayout, Segment, TensorView
from mvc.sources import ByteSource, read_bytes

if TYPE_CHECKING:
    from mvc.checkpoints.zip_directory import ZipEntry

_HEAD_BYTES = 12  # magic, version, and a length of two or four bytes
_KEYS = 3
ARRAY_NAME = "array"
"""What the one array of a ``.npy`` file is called: the format gives it no name."""
MAX_HEADER_BYTES = 2**16
"""Header text read: a version 1 header cannot be longer; only structured types have longer ones."""
OBJECT_WARNING = "object arrays are stored as opaque bytes"
COMPRESSED_WARNING = "compressed entries are stored as opaque bytes"
_DTYPES = {
    "|b1": "BOOL", "|u1": "U8", "|i1": "I8", "<u1": "U8", "<i1": "I8", "<b1": "BOOL",
    "<u2": "U16", "<i2": "I16", "<u4": "U32", "<i4": "I32", "<u8": "U64", "<i8": "I64",
    "<f2": "F16", "<f4": "F32", "<f8": "F64", "<c8": "C64", "<c16": "C128",
}  # fmt: skip
_ITEM = re.compile(
    r"\s*(['\"])(?P<key>descr|fortran_order|shape)\1\s*:\s*"
    r"(?:(['\"])(?P<text>[^'\"]*)\3|(?P<flag>True|False)|\((?P<dims>[0-9L,\s]*)\))\s*"
)
_DIM_DIGITS = 19  # of 2**62, the largest number of elements


@dataclass(frozen=True, slots=True)
class _Header:
    """A header; ``dtype`` is None for element types that have no name here."""

    size_bytes: int
    dtype: str | None = None
    shape: tuple[int, ...] = ()
    is_fortran: bool = False
    is_object: bool = False


def parse_npy(source: ByteSource) -> FileLayout:
    """Name the array of a ``.npy`` file."""
    header = _read_header(source, 0, source.size_bytes)
    if header.dtype is None:
        warning = OBJECT_WARNING if header.is_object else None
        return FileLayout("npy", source.size_bytes, (), warning)
    segment = _array_segment(ARRAY_NAME, header.dtype, header, 0, source.size_bytes)
    return checked_layout("npy", source.size_bytes, (segment,))


def layout_npz(source: ByteSource, entries: tuple[ZipEntry, ...]) -> FileLayout:
    """Name the arrays of a ``.npz`` archive; compressed entries stay gaps."""
    arrays = [entry for entry in entries if entry.name.endswith(".npy")]
    check_limit("archive has", len(arrays), "arrays", MAX_TENSORS)
    segments = []
    has_objects = False
    for entry in arrays:
        if not entry.is_stored:
            continue
        end = entry.data_start + entry.size_bytes
        try:
            header = _read_header(source, entry.data_start, end)
            has_objects |= header.is_object
            if header.dtype is not None:
                name = entry.name.removesuffix(".npy")
                segments.append(_array_segment(name, header.dtype, header, entry.data_start, end))
        except FormatError as error:
            raise FormatError(f"zip entry {entry.name[:80]!r}: {error.message}") from error
    warning = OBJECT_WARNING if has_objects else None
    if not segments and any(not entry.is_stored for entry in arrays):
        warning = COMPRESSED_WARNING
    return checked_layout("npz", source.size_bytes, segments, warning)


def _array_segment(name: str, dtype: str, header: _Header, start: int, end: int) -> Segment:
    data_start = start + header.size_bytes
    size_bytes = size_in_bytes(get_dtype(dtype), header.shape)
    if data_start + size_bytes > end:
        raise FormatError(
            f"array of {size_bytes:,} bytes is cut off after {max(end - data_start, 0):,}"
        )
    strides = _fortran_strides(header.shape) if header.is_fortran else None
    view = TensorView(name, dtype, header.shape, 0, strides)
    return Segment(data_start, size_bytes, dtype, (view,))


def _fortran_strides(shape: tuple[int, ...]) -> tuple[int, ...] | None:
    """Return strides in elements, first dimension fastest; None if that is C order as well."""
    if 0 in shape or sum(dim > 1 for dim in shape) <= 1:
        return None
    strides = [1]
    for dim in shape[:-1]:
        strides.append(strides[-1] * dim)
    return tuple(strides)


def _read_header(source: ByteSource, start: int, end: int) -> _Header:
    head = read_bytes(source, start, min(_HEAD_BYTES, end - start))
    if not head.startswith(NPY_MAGIC) or len(head) < _HEAD_BYTES:
        raise FormatError("array does not begin with the npy magic")
    version = head[6]
    if version not in (1, 2, 3):
        raise FormatError(f"npy version {version} is not known")
    text_start = 10 if version == 1 else 12
    text_bytes = int.from_bytes(head[8:text_start], "little")
    if start + text_start + text_bytes > end:
        raise FormatError("npy header is cut off")
    if text_bytes > MAX_HEADER_BYTES:
        return _Header(text_start + text_bytes)
    text = read_bytes(source, start + text_start, text_bytes).decode("latin-1")
    return _parse_header(text, text_start + text_bytes)


def _parse_header(text: str, size_bytes: int) -> _Header:
    items = _parse_items(text)
    if items is None:
        # A structured type, or a spelling that NumPy does not write.
        return _Header(size_bytes, is_object="'|O'" in text)
    descr, flag = items["descr"]["text"], items["fortran_order"]["flag"]
    dims = items["shape"]["dims"]
    if descr is None or flag is None or dims is None:
        raise FormatError("npy header has values of the wrong type")
    return _Header(
        size_bytes, _DTYPES.get(descr), _parse_shape(dims), flag == "True", descr == "|O"
    )


def _parse_items(text: str) -> dict[str, re.Match[str]] | None:
    text = text.strip()
    if not (text.startswith("{") and text.endswith("}")):
        raise FormatError("npy header is not a dictionary")
    items = {}
    position, end = 1, len(text) - 1
    while position < end and text[position:end].strip():
        item = _ITEM.match(text, position, end)
        if item is None:
            return None
        position = item.end()
        if position < end and text[position] != ",":
            return None
        position += 1
        items[item["key"]] = item
    return items if len(items) == _KEYS else None


def _parse_shape(text: str) -> tuple[int, ...]:
    parts = [part.strip().removesuffix("L") for part in text.split(",") if part.strip()]
    if len(parts) > MAX_DIMS or any(
        not part.isdecimal() or len(part) > _DIM_DIGITS for part in parts
    ):
        raise FormatError("npy header has an impossible shape")
    return tuple(int(part) for part in parts)
