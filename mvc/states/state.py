"""A live training state as files that any tool can load, and back, exactly.

A state is nested containers, scalars and arrays, such as ``{"model": ..., "optimizer": ...,
"step": 7}``. It becomes one safetensors file per top-level key that holds an array
(``model.safetensors``, ``optimizer.safetensors``; a model's state dict by itself is one file), and ``state.json`` with everything else and with
the place of every array. No file is written here: a ``StateFile`` names the byte ranges and serves
them from the live arrays.

``docs/format.md`` has the form of ``state.json``: what JSON can say exactly stands for itself,
everything else is an object tagged ``$``.

Types come back exactly: ``type(x) is type(y)``, bit for bit, dict order included. What mvc cannot
bring back exactly is refused with its path: functions, modules, enums, dataclasses, subclasses of
the types above, object arrays, quantised, nested, meta and distributed tensors. What is not kept:

* the identity of objects: a dict that is there twice comes back as two equal dicts, a tensor as two
  tensors on one storage (arrays that share memory do share it again, see ``alias``);
* the device (arrays come back in host memory unless live ones are passed in), the autograd graph
  (a tensor that requires a gradient comes back as a leaf), ``.grad``, attributes set on tensors;
* the strides of arrays that are not dense (a slice comes back contiguous), read-only flags, lazy
  conjugation (the values come back resolved).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from mvc.checkpoints.detect import read_layout
from mvc.dtypes import get_framework
from mvc.errors import FormatError, NotFoundError, UnsupportedError, UsageError
from mvc.formats.layout import FileLayout, Segment
from mvc.sources import ByteSource, MemorySource, read_bytes
from mvc.states import decode as state_decode
from mvc.states import encode as state_encode
from mvc.states.alias import SharedGroup, find_shared, link_shared
from mvc.states.containers import open_node
from mvc.states.document import STATE_FILE, Document, KeptNode, encode_document, parse_document
from mvc.states.factory import NumpyFactory
from mvc.states.files import LiveArray, StateFile, plain_file, tensor_file
from mvc.states.outline import check_sizes, compare_texts, outline_state
from mvc.states.reads import ReadTable, TensorRead, load_torch
from mvc.states.refusals import format_path, refusal

if TYPE_CHECKING:
    from mvc.states.document import JsonValue
    from mvc.states.reads import Factory


def encode_state(state: Mapping[str, object], *, is_local: bool = False) -> list[StateFile]:
    """Return the virtual files of a state; no array is copied.

    There is a safetensors file for each top-level key with an array in it, in the order of the
    state (a flat state dict has all of them in ``model.safetensors``), and ``state.json`` at the
    end. The arrays are read when the files are, and must neither change nor go away before that. With
    ``is_local`` the file of an array that is spread over several processes holds the part that is
    here; without, there is none.
    """
    walk = state_encode.EncodeWalk(is_local=is_local)
    encoded = encode_walk(state, walk)
    if not is_local:
        refuse_parts(walk)
    return [*encoded.files, plain_file(STATE_FILE, encode_document(encoded.document))]


def encode_spread(
    state: Mapping[str, object],
) -> tuple[list[StateFile], dict[tuple[str, str], LiveArray]]:
    """Return what ``encode_state`` does, and by file and name the arrays that files lack.

    Those are spread over several processes, and none has the whole.
    """
    walk = state_encode.EncodeWalk()
    encoded = encode_walk(state, walk)
    text = plain_file(STATE_FILE, encode_document(encoded.document))
    spread = {
        (item.file.path, item.node["name"]): item.array
        for item in walk.placed
        if item.array.spread is not None
    }
    return [*encoded.files, text], spread


def refuse_parts(walk: state_encode.EncodeWalk) -> None:
    """Raise UnsupportedError if a walk met an array that is partly on other processes."""
    for item in walk.placed:
        if item.array.spread is not None:
            raise UnsupportedError(
                f"tensor {item.node['name']!r} is sharded: this process holds a part of it",
                hint="commit it by a Checkpointer on every rank, or gather it with full_tensor()",
            )


@dataclass(frozen=True, slots=True, eq=False)
class EncodedState:
    """What a walk over a state found; ``groups`` of arrays share memory, by index of the walk."""

    files: tuple[StateFile, ...]
    document: Document
    groups: tuple[SharedGroup, ...]


def encode_walk(state: Mapping[str, object], walk: state_encode.EncodeWalk) -> EncodedState:
    """Return the virtual files of a state, with what ``state.json`` will say in place of its text.

    Takes a new walk, which knows every array afterwards; raises as ``encode_state``.
    """
    if not isinstance(state, Mapping):
        raise UsageError(
            f"a state is a dict, not a {type(state).__name__}",
            hint="pass its state_dict()" if hasattr(state, "state_dict") else None,
        )
    walk.is_flat = state_encode.is_flat(state)
    try:
        node = walk.encode(state)
    except RecursionError:
        raise UnsupportedError("the state is nested too deeply") from None
    if not isinstance(node, (dict, KeptNode)):
        raise refusal(state, [])
    groups = find_shared([item.array.region for item in walk.placed])
    shared = link_shared(walk.placed, groups)
    files = tuple(tensor_file(draft.path, draft.arrays) for draft in walk.files.values())
    document = Document(tuple(file.path for file in files), tuple(shared), node)
    return EncodedState(files, document, tuple(groups))


def measure_tensors(files: Iterable[tuple[str, FileLayout]]) -> dict[str, dict[str, int]]:
    """Return file → tensor → bytes, as ``plan_state`` wants it; only plain segments count."""
    return {
        path: {
            segment.tensors[0].name: segment.size_bytes
            for segment in layout.segments
            if segment.is_plain
        }
        for path, layout in files
    }


@dataclass(frozen=True, slots=True, eq=False)
class StatePlan:
    """A state that lacks only the bytes of its arrays: ``reads``, tied tensors once."""

    reads: tuple[TensorRead, ...]
    _table: ReadTable
    _node: JsonValue

    def build(self) -> dict[Any, Any]:
        """Return the state, after every read was filled."""
        value: dict[Any, Any] = state_decode.DecodeWalk(self._table, is_first=False).decode(
            self._node
        )
        return value


def plan_state(
    state_json: bytes,
    sizes: Mapping[str, Mapping[str, int]],
    *,
    framework: str = "torch",
    into: Mapping[Any, object] | None = None,
    is_local: bool = False,
) -> StatePlan:
    """Check a whole state, allocate its arrays and say what has to be read.

    ``sizes`` is file → tensor → bytes that the file holds for it; nothing else is allocated.
    ``framework="numpy"`` returns NumPy objects for torch's, without importing torch (see
    ``factory``). ``into`` holds live containers with some of the state's arrays, never more; they
    are filled in place and become part of the result. Only their arrays count; scalars come from
    the state. If a live array does not fit, nothing was changed. With ``is_local`` a file may hold
    a part of an array, which a live one has to have as well.
    """
    load = load_torch if get_framework(framework) == "torch" else NumpyFactory
    document = parse_document(state_json)
    table = ReadTable(sizes, document.shared, load, is_local)
    walk = state_decode.DecodeWalk(table, is_first=True)
    walk.decode_state(document.state, state_decode.ABSENT if into is None else into)
    return StatePlan(tuple(table.reads), table, document.state)


def find_node(node: JsonValue, path: Sequence[object]) -> JsonValue:
    """Return the node at a path below another one; NotFoundError if there is none."""
    keys = state_decode.DecodeWalk(ReadTable({}, (), load_torch), is_first=False)
    for depth, step in enumerate(path):
        held = open_node(node, path[:depth])
        for key, inner in () if held is None else held.items:
            if (key if isinstance(key, (str, int)) else keys.decode_key(key)) == step:
                node = inner
                break
        else:
            raise NotFoundError(f"the state has no {format_path(path[: depth + 1])}")
    return node


def read_node(
    document: Document,
    node: JsonValue,
    sizes: Mapping[str, Mapping[str, int]],
    load: Callable[[], Factory],
) -> StatePlan:
    """Return the plan of one value of a state; the rest as for ``plan_state``."""
    table = ReadTable(sizes, document.shared, load)
    state_decode.DecodeWalk(table, is_first=True).decode(node)
    return StatePlan(tuple(table.reads), table, node)


def decode_state(
    state_json: bytes,
    read_tensor: Callable[[str, str, memoryview], None],
    *,
    sizes: Mapping[str, Mapping[str, int]],
    framework: str = "torch",
    into: Mapping[Any, object] | None = None,
    is_local: bool = False,
) -> dict[Any, Any]:
    """Return a state, reading one tensor after the other; arguments and errors of ``plan_state``.

    ``read_tensor`` fills a buffer with a tensor, given file and name. If it fails, some of ``into``
    has been filled already.
    """
    plan = plan_state(state_json, sizes, framework=framework, into=into, is_local=is_local)
    for read in plan.reads:
        read.fill(partial(_read_one, read, read_tensor))
    return plan.build()


def _read_one(
    read: TensorRead, read_tensor: Callable[[str, str, memoryview], None], buffer: memoryview
) -> None:
    if read.part is None:
        read_tensor(read.file, read.tensor, buffer)
        return
    whole = memoryview(bytearray(math.prod(read.part.shape) * read.part.item_bytes))
    read_tensor(read.file, read.tensor, whole)
    for run in read.part.cut(len(whole)):
        read.part.take(run, whole, buffer)


_PIECE_BYTES = 2**22


def open_image(files: Mapping[str, memoryview], *, is_local: bool = False) -> list[StateFile]:
    """Return the files of an image, given by name, as ``encode_state`` returned them.

    With ``is_local`` it may be the image of one rank, with parts of arrays.
    """
    text = _get_text(files)
    document = parse_document(text)
    if {*document.files, STATE_FILE} != files.keys():
        raise FormatError(f"an image holds other files than its {STATE_FILE} names")
    image = [open_file(path, data) for path, data in files.items()]
    sizes = measure_tensors((file.path, file.layout) for file in image)
    check_sizes(text, sizes, is_local=is_local)
    return image


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
        path: {
            segment.tensors[0].name: segment for segment in file.layout.segments if segment.is_plain
        }
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
    live = {file.path: file for file in encode_state(state, is_local=True)}
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
