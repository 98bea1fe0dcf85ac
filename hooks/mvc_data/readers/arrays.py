"""Arrays of tokens: .npy files and bare .bin files. A record is a row, or so many tokens."""

from __future__ import annotations

from tokenize import TokenError
from typing import TYPE_CHECKING, Any

import numpy as np

from mvc import FormatError, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray


class Rows:
    """The rows of an array that is mapped into memory."""

    def __init__(self, path: str, rows: NDArray[Any]) -> None:
        self.path, self._rows = path, rows

    @property
    def count(self) -> int:
        """How many rows there are."""
        return len(self._rows)

    def read(self, numbers: Sequence[int]) -> list[Any]:
        """Return copies of some rows."""
        return list(self._rows[np.asarray(numbers, np.int64)])

    def close(self) -> None:
        """Let go of the file."""
        del self._rows


def open_npy(path: str, tokens: int | None) -> Rows:
    """Open an .npy file; one of one dimension is cut into records of ``tokens``."""
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError, TokenError) as error:  # the last is of a header's text
        raise FormatError(f"shard {path} cannot be read: {str(error)[:200]}") from None
    if not isinstance(array, np.ndarray) or not array.ndim:
        raise FormatError(f"shard {path} is not one array of records")
    return Rows(path, array if array.ndim > 1 else _cut(path, array, tokens))


def open_bin(path: str, tokens: int | None, dtype: str | None) -> Rows:
    """Open a file of numbers of one type, without a header."""
    if dtype is None:
        raise UsageError(
            f"shard {path} does not say the dtype of its numbers", hint="dtype='uint16'"
        )
    kind = _parse_dtype(dtype)
    with open(path, "rb") as file:
        size = file.seek(0, 2)
    if size % kind.itemsize:
        raise FormatError(
            f"shard {path} has {size} bytes, not a multiple of {kind.itemsize} ({kind})"
        )
    array = np.memmap(path, kind, "r") if size else np.zeros(0, kind)
    return Rows(path, _cut(path, array, tokens))


def _parse_dtype(dtype: str) -> np.dtype[Any]:
    try:
        found = np.dtype(dtype)
    except TypeError:
        found = None
    if found is None or found.kind not in "iuf":
        raise UsageError(f"{dtype!r} is not the dtype of numbers", hint="such as uint16 or uint32")
    return found


def _cut(path: str, array: NDArray[Any], tokens: int | None) -> NDArray[Any]:
    if tokens is None:
        raise UsageError(
            f"shard {path} is one sequence of {len(array)} numbers",
            hint="tokens=2048 makes records of 2048; a shorter rest at its end is left out",
        )
    return array[: len(array) // tokens * tokens].reshape(-1, tokens)
