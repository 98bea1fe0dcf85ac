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
    history = context.history
    if not is_manifest(history.blob_prefix(blob, len(MANIFEST_PREFIX))):
        return None
    if (history.find_blob_size(blob) or 0) > MAX_MANIFEST_BYTES:
        raise FormatError(f"manifest {blob} is over the limit")
    return context.manifests.read(blob)


def stored_size(context: Context, blob: GitId) -> int:
    """Return the length of the file that a blob stands for, in bytes."""
    manifest = find_manifest(context, blob)
    if manifest is not None:
        return manifest.size_bytes
    return context.history.find_blob_size(blob) or 0


def is_complete(context: Context, blob: GitId) -> bool:
    """Return whether all chunks that a stored file needs are in the store."""
    manifest = find_manifest(context, blob)
    return manifest is None or has_chunks(context, list(manifest.chunk_ids()))


def has_chunks(context: Context, chunks: list[ChunkId]) -> bool:
    """Return whether the store has all of some chunks."""
    store = context.store
    return store.contains_all(chunks) or (store.refresh() and store.contains_all(chunks))
