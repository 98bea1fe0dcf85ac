"""Pickles and archives made by hand: what a hostile file could hold."""

from __future__ import annotations

import io
import struct
import zipfile

WEIGHTS = struct.pack("<4f", 1, 2, 3, 4)


def tensor_pickle(key: bytes = b"0", elements: int = 4) -> bytes:
    """Return the opcodes that push a float tensor of four elements, as torch writes them."""
    return (
        b"ctorch._utils\n_rebuild_tensor_v2\n"
        b"((X\x07\x00\x00\x00storagectorch\nFloatStorage\nX" + struct.pack("<I", len(key)) + key
        + b"X\x03\x00\x00\x00cpuJ" + struct.pack("<i", elements) + b"tQK\x00K\x04\x85K\x01\x85\x89"
        + b"ccollections\nOrderedDict\n)RtR"
    )  # fmt: skip


def text(value: str) -> bytes:
    raw = value.encode()
    return b"X" + struct.pack("<I", len(raw)) + raw


def stored(*members: tuple[str, bytes], kind=zipfile.ZIP_STORED, comment=b"") -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", kind) as archive:
        for name, content in members:
            archive.writestr(name, content)
        archive.comment = comment
    return buffer.getvalue()


def patched(data: bytes, position: int, value: bytes) -> bytes:
    return data[:position] + value + data[position + len(value) :]
