"""Reading tensors back through a layout, to compare with the library that wrote the file."""

from __future__ import annotations

import io
import zipfile

import numpy as np

from mvc.checkpoints.detect import read_layout
from mvc.dtypes import get_dtype, size_in_bytes
from mvc.formats.layout import check_layout, find_gaps
from mvc.sources import MemorySource


def parse(data: bytes, name: str):
    """Return the layout of bytes, after checking what every layout promises."""
    layout = read_layout(MemorySource(data), name)
    check_layout(len(data), layout.segments)
    assert layout.size_bytes == len(data)
    gaps = sum(size for _, size in find_gaps(len(data), layout.segments))
    assert gaps + sum(segment.size_bytes for segment in layout.segments) == len(data)
    assert layout.warning is None or (layout.warning.isprintable() and len(layout.warning) <= 300)
    return layout


def view_bytes(data: bytes, segment, view) -> bytes:
    """Return the bytes of a view's elements in C order."""
    dtype = get_dtype(view.dtype)
    raw = np.frombuffer(data, np.uint8, segment.size_bytes, segment.start)[view.offset_bytes :]
    if view.strides is None:
        return raw[: size_in_bytes(dtype, view.shape)].tobytes()
    strides = [stride * dtype.block_bytes for stride in view.strides]
    shape = (*view.shape, dtype.block_bytes)
    return np.lib.stride_tricks.as_strided(raw, shape, (*strides, 1)).tobytes()


def named_views(data: bytes, layout) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    """Return (dtype, shape, bytes in C order) of every tensor by name."""
    return {
        view.name: (view.dtype, view.shape, view_bytes(data, segment, view))
        for segment in layout.segments
        for view in segment.tensors
    }


def npy(array, version=None) -> bytes:
    """Return a NumPy file of an array."""
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, np.asanyarray(array), version)
    return buffer.getvalue()


def npz(**arrays) -> bytes:
    """Return a NumPy archive of arrays."""
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()


def torch_archive(
    pickled: bytes, storages: dict[str, bytes] | None = None, **extra: bytes
) -> bytes:
    """Return a valid torch zip around a pickle that torch never wrote, with a header if it lacks it."""
    if not pickled.startswith(b"\x80"):
        pickled = b"\x80\x02" + pickled
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("archive/data.pkl", pickled)
        archive.writestr("archive/byteorder", extra.get("byteorder", b"little"))
        for key, content in (storages or {}).items():
            archive.writestr(f"archive/data/{key}", content)
        archive.writestr("archive/version", b"3\n")
    return buffer.getvalue()
