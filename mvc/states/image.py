"""A whole state as one run of bytes in memory: its files as they would be, one after the other.

An *image* freezes a live state with a single copy. It holds the same bytes as the files of a
checkout, so that it can be committed, or given back to a live state, by any process that sees the
memory, with nothing but the places of the files in it. Files begin at multiples of a page, and the
bytes of every tensor at a multiple of its element's size, so that devices can copy to them directly.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from mvc.checkpoints.detect import read_layout
from mvc.errors import FormatError
from mvc.formats.layout import FileLayout
from mvc.sources import MemorySource, read_bytes
from mvc.states.document import STATE_FILE, parse_document
from mvc.states.files import StateFile
from mvc.states.outline import check_sizes, compare_texts, outline_state
from mvc.states.state import decode_state, encode_state, measure_tensors

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from mvc.formats.layout import Segment
    from mvc.sources import ByteSource

_PIECE_BYTES = 2**22


def open_image(files: Mapping[str, memoryview], *, is_local: bool = False) -> list[StateFile]:
    """Return the files of an image, given by name, as ``encode_state`` returned them.

    With ``is_local`` it may be the image of one rank, with parts of arrays.
    """
    text = _get_text(files)
    document = parse_document(text)
    if {*document.files, STATE_FILE} != files.keys():
        raise FormatError(f"an image holds other files than its {STATE_FILE} names")
    found = [open_file(path, data) for path, data in files.items()]
    sizes = measure_tensors((file.path, file.layout) for file in found)
    check_sizes(text, sizes, is_local=is_local)
    return found


def open_file(path: str, data: memoryview) -> StateFile:
    """Return a file of an image; FormatError if it is not one of a state."""
    if path == STATE_FILE:
        return open_text(data)
    source = MemorySource(data.toreadonly())
    layout = read_layout(source, path)
    if layout.format != "safetensors":
        raise FormatError(f"{path} of an image is not a safetensors file: {layout.warning}")
    return StateFile(path, layout, source)


def open_text(data: memoryview) -> StateFile:
    """Return ``state.json`` as a file."""
    return StateFile(STATE_FILE, FileLayout("opaque", data.nbytes), MemorySource(data.toreadonly()))


def read_image(
    files: Mapping[str, memoryview],
    *,
    framework: str = "torch",
    into: Mapping[str, object] | None = None,
) -> dict[str, Any]:
    """Return the state of an image; ``framework``, ``into`` and errors as for ``Repo.load_state``."""
    opened = {file.path: file for file in open_image(files, is_local=True)}
    places = {
        path: {one.tensors[0].name: one for one in file.layout.segments if one.is_plain}
        for path, file in opened.items()
    }

    def read_tensor(path: str, name: str, buffer: memoryview) -> None:
        opened[path].source.read_into(places[path][name].start, buffer)

    sizes = measure_tensors((path, file.layout) for path, file in opened.items())
    text = bytes(files[STATE_FILE])
    options: dict[str, Any] = {"framework": framework, "into": into, "is_local": True}
    return decode_state(text, read_tensor, sizes=sizes, **options)


def outline_image(files: Mapping[str, memoryview]) -> dict[str, Any]:
    """Return the state of an image with an ``ArrayOutline`` in place of every array."""
    return outline_state(_get_text(files))


def _get_text(files: Mapping[str, memoryview]) -> bytes:
    if STATE_FILE not in files:
        raise FormatError(f"an image of a state has a {STATE_FILE}")
    return bytes(files[STATE_FILE])


def compare_image(state: Mapping[str, object], files: Mapping[str, memoryview]) -> tuple[str, ...]:
    """Return a line for every tensor, file or value of a live state that differs from an image.

    Files that are not those of a state are a FormatError, a live value that is not data an
    UnsupportedError.
    """
    stored = {file.path: file for file in open_image(files, is_local=True)}
    live = {file.path: file for file in encode_state(state, stored, is_local=True)}
    text = live[STATE_FILE].source
    found = compare_texts(bytes(files[STATE_FILE]), read_bytes(text, 0, text.size_bytes))
    for path in sorted(stored.keys() & live.keys() - {STATE_FILE}):
        left, right = stored[path], live[path]
        found += [
            f"tensor {old.tensors[0].name!r} of {path} differs"
            for old, new in pair_segments(left.layout.segments, right.layout.segments)
            if not _is_same(left.source, old, right.source, new)
        ]
    return tuple(found)


def pair_segments(
    stored: Iterable[Segment], live: Iterable[Segment]
) -> Iterator[tuple[Segment, Segment]]:
    """Yield the segments of two versions of a file that hold as many bytes under the same name."""
    by_name = {segment.tensors[0].name: segment for segment in live}
    for segment in stored:
        other = by_name.get(segment.tensors[0].name)
        if other is not None and other.size_bytes == segment.size_bytes:
            yield segment, other


def _is_same(stored: ByteSource, old: Segment, live: ByteSource, new: Segment) -> bool:
    buffer = memoryview(bytearray(min(_PIECE_BYTES, old.size_bytes)))
    for offset in range(0, old.size_bytes, _PIECE_BYTES):
        size = min(_PIECE_BYTES, old.size_bytes - offset)
        left = stored.view(old.start + offset, size)
        right = live.view(new.start + offset, size)
        if right is None:
            right = buffer[:size]
            live.read_into(new.start + offset, right)
        if left is None or not np.array_equal(
            np.frombuffer(left, np.uint8), np.frombuffer(right, np.uint8)
        ):
            return False
    return True
