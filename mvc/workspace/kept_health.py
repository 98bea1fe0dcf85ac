"""The health that is known: of files by their blobs, of large chunks by id and element type."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias, TypeVar

from mvc.numbers.figures import Health, decode_health

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from mvc.ids import ChunkId, GitId
    from mvc.workspace.context import Context

Key: TypeAlias = "tuple[ChunkId, str]"
FILES = b"file-health"
CHUNKS = b"chunk-health"
_Key = TypeVar("_Key")


def find_files(context: Context, blobs: Iterable[GitId]) -> dict[GitId, Health]:
    """Return the health of those files that it is kept of."""
    return _find(context, FILES, {bytes.fromhex(blob): blob for blob in blobs})


def keep_files(context: Context, found: Mapping[GitId, Health]) -> None:
    """Keep the health of stored files."""
    entries = {bytes.fromhex(blob): health.encode() for blob, health in found.items()}
    context.kept.put_many(FILES, entries)


def find_chunks(context: Context, keys: Iterable[Key]) -> dict[Key, Health]:
    """Return the health of those chunks that it is kept of."""
    return _find(context, CHUNKS, {chunk + dtype.encode(): (chunk, dtype) for chunk, dtype in keys})


def keep_chunks(context: Context, found: Mapping[Key, Health]) -> None:
    """Keep the health of chunks."""
    entries = {chunk + dtype.encode(): one.encode() for (chunk, dtype), one in found.items()}
    context.kept.put_many(CHUNKS, entries)


def _find(context: Context, kind: bytes, keys: Mapping[bytes, _Key]) -> dict[_Key, Health]:
    kept = context.kept.get_many(kind, keys) if keys else {}
    decoded = {keys[key]: decode_health(value) for key, value in kept.items()}
    return {key: health for key, health in decoded.items() if health is not None}
