"""Files that are not written: a safetensors file's bytes served from live arrays.

For a plain state dict the file is byte for byte what ``safetensors.torch.save_file(...,
metadata={"format": "pt"})`` writes: tensors sorted by dtype, wide ones first, then by name, and a
header padded with spaces to a multiple of eight.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING

from mvc.checkpoints.detect import read_layout
from mvc.checkpoints.limits import MAX_NAME_BYTES, checked_layout
from mvc.checkpoints.safetensors import DTYPES, LENGTH_BYTES, MAX_HEADER_BYTES, encode_header
from mvc.errors import FormatError, UnsupportedError, UsageError
from mvc.formats.layout import FileLayout, single_tensor
from mvc.numbers.boxes import Box, TensorPart
from mvc.sources import ByteSource, JoinedSource, MemorySource
from mvc.states.elements import ElementType, stored_form

if TYPE_CHECKING:
    from mvc.states.memory import Region

_MAX_FILE_NAME = 120
_ROOM = 64  # for a digest, ".storage" and a number after a name
_ODD = re.compile(rb"[^A-Za-z0-9._-]")


@dataclass(frozen=True, slots=True)
class Spread:
    """How an array is spread over the ranks of a run: ``boxes[i]`` is on rank ``ranks[i]``.

    A box may be on several ranks, or empty. ``mine`` is that of this process, and ``more`` are others
    that it has besides.
    """

    shape: tuple[int, ...]
    ranks: tuple[int, ...]
    boxes: tuple[Box, ...]
    mine: Box
    more: tuple[Box, ...] = ()

    def without_mine(self) -> Spread:
        """Return it as every rank has it."""
        return replace(self, mine=self.boxes[0], more=())


@dataclass(frozen=True, slots=True, eq=False)
class LiveArray:
    """An array of a live state."""

    element: ElementType
    shape: tuple[int, ...]
    source: ByteSource  # its C-contiguous little-endian bytes; of a spread array those of one box
    region: Region | None  # where it is in memory, or None if it shares nothing
    # elements between neighbours, if it is dense but not C-contiguous
    strides: tuple[int, ...] | None
    is_torch: bool
    spread: Spread | None = None  # of an array whose other boxes are on other processes

    @property
    def size_bytes(self) -> int:
        """Length of all of its elements, here or elsewhere."""
        return math.prod(self.shape) * self.element.size_bytes

    @property
    def part(self) -> TensorPart | None:
        """The part of it that ``source`` holds, or None if that is all of it."""
        if self.spread is None:
            return None
        return TensorPart(self.shape, self.spread.mine, self.element.size_bytes)


@dataclass(frozen=True, slots=True, eq=False)
class StateFile:
    """One virtual file of a state: a name that is safe on every system, and bytes of live arrays."""

    path: str
    layout: FileLayout
    source: ByteSource


def escape_file_name(label: str) -> str:
    """Return a file name without folder, case, encoding or hidden-file surprises.

    Bytes other than ASCII letters, digits, ``.``, ``_`` and ``-`` become ``%XX``, as does a dot
    in front; an over-long name is cut and ends in a digest of the whole.
    """
    raw = label.encode("utf-8", "surrogatepass")
    text = _ODD.sub(lambda match: b"%%%02X" % match[0][0], raw).decode("ascii")
    if text.startswith("."):
        text = "%2E" + text[1:]
    if len(text) > _MAX_FILE_NAME:
        text = f"{text[:_MAX_FILE_NAME]}-{hashlib.sha256(raw).hexdigest()[:16]}"
    return text or "_"


def clean_tensor_name(name: str) -> str:
    """Return a name that a header can hold: not empty, not endless, no lone surrogates."""
    raw = name.encode("utf-8", "backslashreplace")
    if len(raw) > MAX_NAME_BYTES - _ROOM:
        head = raw[: MAX_NAME_BYTES - 2 * _ROOM].decode("utf-8", "ignore")
        return f"{head}-{hashlib.sha256(raw).hexdigest()[:16]}"
    return raw.decode("utf-8") or "_"


def plain_file(path: str, data: bytes) -> StateFile:
    """Return a file of given bytes, without tensors."""
    return StateFile(path, FileLayout("opaque", len(data)), MemorySource(data))


def given_file(path: str, content: bytes | str) -> StateFile:
    """Return a file that a user gave, whatever it holds."""
    if not isinstance(content, (bytes, str)):
        raise UsageError(
            f"file {path!r} is given as {type(content).__name__}, not as bytes or str",
            hint="encode it first, as with json.dumps",
        )
    source = MemorySource(content.encode() if isinstance(content, str) else content)
    return StateFile(path, read_layout(source, path), source)


def tensor_file(path: str, arrays: Sequence[tuple[str, LiveArray]]) -> StateFile:
    """Return the safetensors file of named arrays; UnsupportedError if no reader took its header."""
    forms = {name: stored_form(array.element, array.shape) for name, array in arrays}
    ordered = sorted(arrays, key=lambda item: (-DTYPES[forms[item[0]][0]], item[0].encode()))
    head = encode_header((name, *forms[name], array.size_bytes) for name, array in ordered)
    header_bytes = len(head) - LENGTH_BYTES
    if header_bytes > MAX_HEADER_BYTES:
        raise UnsupportedError(
            f"the header of {path} takes {header_bytes:,} bytes, the limit is {MAX_HEADER_BYTES:,}",
            hint="spread the arrays over several top-level keys",
        )
    segments, starts = [], [0, len(head)]
    for name, array in ordered:
        dtype, shape = forms[name]
        segments.append(single_tensor(name, dtype, shape, starts[-1]))
        starts.append(starts[-1] + array.size_bytes)
    parts = (MemorySource(head), *(array.source for _, array in ordered))
    try:
        layout = checked_layout("safetensors", starts[-1], segments)
    except FormatError as error:
        raise UnsupportedError(f"the state does not fit into {path}: {error.message}") from None
    return StateFile(path, layout, _join(parts, starts))


def _join(parts: Sequence[ByteSource], starts: Sequence[int]) -> JoinedSource:
    filled = [
        (part, start)
        for part, (start, end) in zip(parts, pairwise(starts), strict=True)
        if end > start
    ]
    return JoinedSource(
        tuple(part for part, _ in filled), (*(start for _, start in filled), starts[-1])
    )
