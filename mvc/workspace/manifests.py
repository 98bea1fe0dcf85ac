"""What a stored blob stands for: a plain file or link, or the manifest of a file in chunks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mvc.errors import FormatError
from mvc.formats.manifest import MANIFEST_PREFIX, MAX_MANIFEST_BYTES, is_manifest

if TYPE_CHECKING:
    from mvc.formats.manifest import Manifest
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
