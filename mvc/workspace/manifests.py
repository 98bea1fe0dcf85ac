"""What a stored blob stands for: a plain file or link, or the manifest of a file in chunks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from mvc.errors import FormatError
from mvc.formats.manifest import MANIFEST_PREFIX, MAX_MANIFEST_BYTES, Manifest, is_manifest
from mvc.tensor_names import takes
from mvc.workspace.pathspec import filter_paths

if TYPE_CHECKING:
    from mvc.history.values import TreeEntry
    from mvc.ids import ChunkId, GitId
    from mvc.workspace.context import Context


def find_manifest(context: Context, blob: GitId) -> Manifest | None:
    """Return the manifest in a blob, or None if the blob is a plain file or link."""
    return read_stored(context, blob)[0]


def stored_size(context: Context, blob: GitId) -> int:
    """Return the length of the file that a blob stands for, in bytes."""
    return read_stored(context, blob)[1]


def read_stored(context: Context, blob: GitId) -> tuple[Manifest | None, int]:
    """Return both, with one look at the blob if it is not a manifest."""
    size_bytes, start = context.history.blob_start(blob, len(MANIFEST_PREFIX))
    if not is_manifest(start):
        return None, size_bytes
    if size_bytes > MAX_MANIFEST_BYTES:
        raise FormatError(f"manifest {blob} is over the limit")
    manifest = context.manifests.read(blob)
    return manifest, manifest.size_bytes


def is_complete(context: Context, blob: GitId) -> bool:
    """Return whether all chunks that a stored file needs are in the store."""
    manifest = find_manifest(context, blob)
    return manifest is None or has_chunks(context, list(manifest.chunk_ids()))


def has_chunks(context: Context, chunks: list[ChunkId]) -> bool:
    """Return whether the store has all of some chunks."""
    store = context.store
    return store.contains_all(chunks) or (store.refresh() and store.contains_all(chunks))


_TABLES_KEPT = 64


class TensorContents:
    """Reads name → content of the tensors in stored files; the last ones read are kept."""

    def __init__(self, context: Context) -> None:
        self._history = context.history
        self._tables: dict[GitId, dict[str, bytes]] = {}
        self._lines: dict[str, dict[bytes, tuple[str, bytes]]] = {}
        """Path → lines of the version that was read last."""
        self.reads = 0
        """How many manifests were read."""

    def find(self, tree: Mapping[str, TreeEntry], path: str) -> Mapping[str, bytes]:
        """Return those of a path of a tree; nothing if it is missing there, or a plain file."""
        entry = tree.get(path)
        if entry is None:
            return {}
        table = self._tables.get(entry.blob)
        if table is None:
            while len(self._tables) >= _TABLES_KEPT:
                self._tables.pop(next(iter(self._tables)))
            table = self._tables[entry.blob] = self._read(path, entry.blob)
        return table

    def differ(
        self,
        before: Mapping[str, TreeEntry],
        after: Mapping[str, TreeEntry],
        paths: Sequence[str],
        tensors: str | None,
    ) -> bool:
        """Return whether two trees differ in some paths (all: none), or in tensors of these names.

        A file that only got another name has the same tensors.
        """
        changed = [
            path
            for path in filter_paths(paths, {*before, *after})
            if before.get(path) != after.get(path)
        ]
        if tensors is None or not changed:
            return bool(changed)
        one, other = (
            {
                (name, content)
                for path in changed
                for name, content in self.find(tree, path).items()
                if takes(tensors, name)
            }
            for tree in (before, after)
        )
        return one != other

    def _read(self, path: str, blob: GitId) -> dict[str, bytes]:
        size_bytes, start = self._history.blob_start(blob, len(MANIFEST_PREFIX))
        if not is_manifest(start) or size_bytes > MAX_MANIFEST_BYTES:
            return {}
        from mvc.formats.manifest_lines import find_contents  # noqa: PLC0415  with msgspec

        self.reads += 1
        data = self._history.read_blob(blob)
        self._lines[path] = find_contents(data, self._lines.get(path))
        return dict(self._lines[path].values())
