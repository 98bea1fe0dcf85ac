"""Damage as a disk makes it: a bit of a file is another."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def flip(path: Path, at: int | None = None, bit: int = 0) -> None:
    """Flip a bit of a byte of a file, of that in the middle unless another is named."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2 if at is None else at] ^= 1 << bit
    path.chmod(0o644)
    path.write_bytes(data)
