"""What callers of the chunk store hand in and get back."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mvc.errors import CorruptionError
from mvc.formats.pack import PackRecord

if TYPE_CHECKING:
    from mvc.dtypes import DType
    from mvc.ids import ChunkId, PackId

FSCK_HINT = 'run "mvc fsck --data" to see all that is damaged'
_SHORT_HEX = 12


@dataclass(frozen=True, slots=True)
class ChunkSpan:
    """A byte range of a source that will become a chunk.

    ``masters`` are (id, length) of the chunks that this one may be the rounding ``cast`` of, in
    order. Spans of one ``group`` change alike, so a few stand for all.
    """

    offset: int
    size_bytes: int
    dtype: DType | None
    base: ChunkId | None = None
    masters: tuple[tuple[ChunkId, int], ...] = ()
    cast: int | None = None
    group: int = 0


@dataclass(frozen=True, slots=True)
class ChunkLocation(PackRecord):
    """Where a chunk is: its record, as the index tells it, and the pack that holds it."""

    pack: PackId = field(kw_only=True)


@dataclass(frozen=True, slots=True)
class WriteCounts:
    """What a write session did so far.

    Attributes:
        chunks: chunks handed in, ``plain_bytes`` long.
        new_chunks: those that the store did not have, ``new_plain_bytes`` long.
        stored_bytes: bytes of the packs and pack indexes written for them.
    """

    chunks: int = 0
    new_chunks: int = 0
    plain_bytes: int = 0
    new_plain_bytes: int = 0
    stored_bytes: int = 0
    packs: int = 0


@dataclass(frozen=True, slots=True)
class ReadRequest:
    """One chunk that is wanted at ``offset`` of a destination, part of ``context`` (for errors)."""

    chunk_id: ChunkId
    plain_size_bytes: int
    offset: int
    context: str = ""


@dataclass(frozen=True, slots=True)
class StoreProblem:
    """Something wrong with the store.

    ``kind`` is ``bad-pack`` (header, footer, length or a record header), ``bad-chunk`` (a body that
    cannot be decoded or is another chunk), ``lost-base`` (a body that needs a chunk which is
    damaged or missing), ``bad-pack-hash`` (the content does not match the file's name), ``bad-index``,
    ``missing-index``, ``missing-pack`` (an index without its pack), ``unsupported`` (needs a newer
    mvc), ``unreadable`` (the machine failed) or ``stray-file``; then ``pack`` is its key.
    """

    kind: str
    pack: str
    offset: int | None
    chunk: ChunkId | None
    detail: str


def corruption(
    chunk_id: ChunkId, location: ChunkLocation | None, context: str, reason: str
) -> CorruptionError:
    """Return the error that says where damage was found and what to run next."""
    what = f"chunk {chunk_id.hex()[:_SHORT_HEX]}"
    if context:
        what += f" of {context}"
    if location is not None:
        what += f" in pack {location.pack[:_SHORT_HEX]} at offset {location.offset:,}"
    return CorruptionError(f"{what}: {reason}", hint=FSCK_HINT)
