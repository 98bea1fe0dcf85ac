"""The header of a GGUF file (versions 2 and 3, little-endian): which bytes are which tensor.

After magic, version and two counts come key/value metadata, then one record per tensor (name,
dimensions with the fastest first, ggml type, offset), padding to the alignment, and the data.
Metadata is stepped over, not kept: only the alignment matters here. The bytes of a ggml type that
this version does not know stay a gap; the other tensors still get names.
"""

from __future__ import annotations

from mvc.checkpoints.limits import MAX_NAME_BYTES, MAX_TENSORS, check_limit, checked_layout
from mvc.checkpoints.names import GGUF_MAGIC
from mvc.dtypes import count_elements, get_dtype
from mvc.errors import FormatError
from mvc.formats.layout import FileLayout, single_tensor
from mvc.sources import ByteSource, read_bytes

VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
MAX_DIMS = 8
"""Dimensions of one tensor; ggml itself has four."""
MAX_KEY_BYTES = 65535
"""The format's own limit of a metadata key."""
MAX_HEADER_BYTES = 512 * 2**20
"""Header stepped over: the largest vocabularies take some 20 MB."""
MAX_METADATA_VALUES = 4_000_000
"""Keys and strings stepped over one by one: a vocabulary of 256,000 with its merges has 800,000."""
MAX_NESTING = 4
"""Arrays inside arrays."""
_WINDOW_BYTES = 2**18
_SCALAR_BYTES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
_TYPE_U32 = 4
_TYPE_STRING = 8
_TYPE_ARRAY = 9
GGML_DTYPES = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 6: "Q5_0", 7: "Q5_1", 8: "Q8_0", 9: "Q8_1",
    10: "Q2_K", 11: "Q3_K", 12: "Q4_K", 13: "Q5_K", 14: "Q6_K", 15: "Q8_K", 16: "IQ2_XXS",
    17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S", 20: "IQ4_NL", 21: "IQ3_S", 22: "IQ2_S",
    23: "IQ4_XS", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64", 29: "IQ1_M", 30: "BF16",
    34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4", 40: "NVFP4",
    41: "Q1_0",
}  # fmt: skip
"""Numbers of ``ggml_type`` to canonical dtype names; numbers left out are retired or too new."""


def parse_gguf(source: ByteSource) -> FileLayout:
    """Name the tensors of a GGUF file, in file order.

    Shapes are in NumPy's order, slowest dimension first: the reverse of the file's.
    """
    cursor = _Cursor(source)
    if cursor.take(4) != GGUF_MAGIC:
        raise FormatError("file does not begin with the GGUF magic")
    version = cursor.take_int(4)
    if version not in VERSIONS:
        swapped = version and version & 0xFFFF == 0  # a small number with its bytes swapped
        what = "big-endian gguf" if swapped else f"gguf version {version}"
        raise FormatError(f"{what} is not supported")
    tensors, pairs = cursor.take_int(8), cursor.take_int(8)
    check_limit("gguf file has", tensors, "tensors", MAX_TENSORS)
    alignment = _skip_metadata(cursor, pairs)
    infos = [_parse_tensor_info(cursor) for _ in range(tensors)]
    data_start = -(-cursor.position // alignment) * alignment
    segments = []
    for name, dtype, shape, offset in infos:
        if offset % alignment:
            raise FormatError(f"tensor {name[:80]!r} is not aligned to {alignment} bytes")
        if dtype is not None:
            segments.append(single_tensor(name, dtype, shape, data_start + offset))
    segments.sort(key=lambda segment: (segment.start, segment.size_bytes))
    return checked_layout("gguf", source.size_bytes, segments)


def _parse_tensor_info(cursor: _Cursor) -> tuple[str, str | None, tuple[int, ...], int]:
    raw_name = cursor.take_string(MAX_NAME_BYTES)
    try:
        name = raw_name.decode()
    except UnicodeDecodeError:
        raise FormatError(f"tensor name {raw_name[:80]!r} is not utf-8") from None
    dims = cursor.take_int(4)
    check_limit(f"tensor {name[:80]!r} has", dims, "dimensions", MAX_DIMS)
    shape = tuple(cursor.take_int(8) for _ in range(dims))[::-1]
    count_elements(shape)
    dtype = GGML_DTYPES.get(cursor.take_int(4))
    offset = cursor.take_int(8)
    if dtype is not None and shape and shape[-1] % get_dtype(dtype).block_elements:
        raise FormatError(f"rows of tensor {name[:80]!r} do not fill whole blocks of {dtype}")
    return name, dtype, shape, offset


def _skip_metadata(cursor: _Cursor, pairs: int) -> int:
    """Step over the metadata and return the alignment it gives to the data."""
    alignment = DEFAULT_ALIGNMENT
    for _ in range(pairs):
        cursor.count_value()
        key = cursor.take_string(MAX_KEY_BYTES)
        kind = cursor.take_int(4)
        if key == b"general.alignment":
            if kind != _TYPE_U32:
                raise FormatError("gguf alignment is not a 32-bit number")
            alignment = cursor.take_int(4)
        else:
            _skip_value(cursor, kind, 0)
    if alignment <= 0 or alignment & (alignment - 1):
        raise FormatError(f"gguf alignment {alignment} is not a power of two")
    return alignment


def _skip_value(cursor: _Cursor, kind: int, depth: int) -> None:
    if kind == _TYPE_STRING:
        cursor.skip(cursor.take_int(8))
    elif kind == _TYPE_ARRAY:
        _skip_array(cursor, depth + 1)
    elif kind in _SCALAR_BYTES:
        cursor.skip(_SCALAR_BYTES[kind])
    else:
        raise FormatError(f"gguf metadata has a value of unknown type {kind}")


def _skip_array(cursor: _Cursor, depth: int) -> None:
    if depth > MAX_NESTING:
        raise FormatError(f"gguf metadata nests arrays deeper than {MAX_NESTING}")
    kind, length = cursor.take_int(4), cursor.take_int(8)
    if kind in _SCALAR_BYTES:
        cursor.skip(length * _SCALAR_BYTES[kind])
        return
    for _ in range(length):
        cursor.count_value()
        _skip_value(cursor, kind, depth)


class _Cursor:
    """Reads forward through the header in windows; refuses to leave the file or the caps."""

    def __init__(self, source: ByteSource) -> None:
        self.position = 0
        self._source = source
        self._limit = min(source.size_bytes, MAX_HEADER_BYTES)
        self._values = 0
        self._window = b""
        self._window_start = 0

    def take(self, size_bytes: int) -> bytes:
        begin = self.position - self._window_start
        if begin + size_bytes > len(self._window):
            self._check(size_bytes)
            wanted = min(max(size_bytes, _WINDOW_BYTES), self._limit - self.position)
            self._window = read_bytes(self._source, self.position, wanted)
            self._window_start, begin = self.position, 0
        self.position += size_bytes
        return self._window[begin : begin + size_bytes]

    def _check(self, size_bytes: int) -> None:
        if size_bytes > self._limit - self.position:
            raise FormatError(
                f"gguf header reaches past byte {self._limit:,}: it is cut off or damaged"
            )

    def skip(self, size_bytes: int) -> None:
        """Step over bytes without reading them."""
        self._check(size_bytes)
        self.position += size_bytes

    def take_int(self, size_bytes: int) -> int:
        """Return the next little-endian unsigned number."""
        return int.from_bytes(self.take(size_bytes), "little")

    def take_string(self, limit_bytes: int) -> bytes:
        """Return the next string; its length, 64 bits, comes first."""
        size_bytes = self.take_int(8)
        check_limit("gguf header has a name of", size_bytes, "bytes", limit_bytes)
        return self.take(size_bytes)

    def count_value(self) -> None:
        """Count one key or array element against the cap."""
        self._values += 1
        if self._values > MAX_METADATA_VALUES:
            raise FormatError(f"gguf metadata has more than {MAX_METADATA_VALUES:,} values")
