"""The files of a training state in a commit: ``state.json`` and the checkpoints it names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from mvc.errors import FormatError, NotFoundError
from mvc.formats.manifest import tensor_id
from mvc.states.document import STATE_FILE, parse_document
from mvc.workspace.content import write_content
from mvc.workspace.manifests import find_manifest, read_stored
from mvc.workspace.released import check_content

if TYPE_CHECKING:
    from mvc.history.values import TreeEntry
    from mvc.ids import GitId
    from mvc.workspace.context import Context

_MAX_BYTES = 256 * 2**20


def find_state_files(context: Context, tree: Mapping[str, TreeEntry]) -> set[str]:
    """Return the files that make up the state of a commit; none if it holds no state.

    UnsupportedError means that only a newer mvc knows which they are.
    """
    entry = tree.get(STATE_FILE)
    if entry is None:
        return set()
    try:
        document = parse_document(read_small_file(context, entry.blob))
        beside = tuple(f"{folder}/" for folder in document.folders)
        return {STATE_FILE, *document.files, *(path for path in tree if path.startswith(beside))}
    except FormatError:
        return set()  # the user's own file of that name


def read_state_tree(
    context: Context, commit: GitId, folder: str | None = None
) -> dict[str, TreeEntry]:
    """Return the files of a commit, or of a folder of it, whose name they then lack."""
    tree = context.history.read_tree(commit)
    if folder is None:
        return tree
    start = f"{folder.strip('/')}/"
    inside = (path for path in tree if path.startswith(start))
    return {path.removeprefix(start): tree[path] for path in inside}


def read_state_text(
    context: Context, commit: GitId, revision: str, folder: str | None = None
) -> bytes:
    """Return ``state.json`` of a commit, or of a folder of it."""
    entry = read_state_tree(context, commit, folder).get(STATE_FILE)
    if entry is None:
        raise NotFoundError(
            f"{revision} holds no training state" + (f" in {folder}" if folder else ""),
            hint="it was committed from files; read single tensors instead",
        )
    check_content(context, [(STATE_FILE, entry.blob)], commit=commit)
    return read_small_file(context, entry.blob)


class TensorSizes(Mapping[str, Mapping[str, int]]):
    """File → tensor → bytes of a tree, for the tensors that are whole segments.

    Manifests are read when a file is looked up.
    """

    def __init__(self, context: Context, tree: Mapping[str, TreeEntry]) -> None:
        self._context = context
        self._tree = tree

    def __getitem__(self, path: str) -> Mapping[str, int]:
        manifest = find_manifest(self._context, self._tree[path].blob)
        return {
            stored.segment.tensors[0].name: stored.segment.size_bytes
            for stored in (() if manifest is None else manifest.segments)
            if stored.segment.is_plain
        }

    def __iter__(self) -> Iterator[str]:
        return iter(self._tree)

    def __len__(self) -> int:
        return len(self._tree)


class TensorIds:
    """The identities of the tensors of a tree; no content is read."""

    def __init__(self, context: Context, tree: Mapping[str, TreeEntry]) -> None:
        self._context, self._tree = context, tree
        self._files: dict[str, dict[str, str]] = {}

    def find(self, path: str, name: str) -> str:
        """Return that of a tensor; FormatError if there is none."""
        if path not in self._files:
            entry = self._tree.get(path)
            manifest = None if entry is None else find_manifest(self._context, entry.blob)
            stored = () if manifest is None else manifest.tensors()
            self._files[path] = {view.name: tensor_id(view, one) for view, one in stored}
        if name not in self._files[path]:
            raise FormatError(f"{path} has no tensor {name!r}")
        return self._files[path][name]


def read_small_file(context: Context, blob: GitId, path: str = STATE_FILE) -> bytes:
    """Return the content of a small file, from its blob or its chunks; ``path`` is for messages."""
    manifest, size_bytes = read_stored(context, blob)
    check_small(path, size_bytes)
    if manifest is None:
        return context.history.read_blob(blob)
    data = bytearray(size_bytes)

    def write_at(plain: memoryview, offset: int) -> None:
        data[offset : offset + len(plain)] = plain

    write_content(context, manifest, path, write_at)
    return bytes(data)


def check_small(path: str, size_bytes: int) -> None:
    """Check that a file is small enough to be held in memory."""
    if size_bytes > _MAX_BYTES:
        raise FormatError(f"{path} of {size_bytes:,} bytes is over the limit")
