"""Cached statistics of tensors and chunks, keyed by id, in ``.mvc/statistics.db``.

A cache and nothing more: equal ids are equal bytes, so an entry never gets out of date, and what is
missing is computed again. A file that is damaged, or of another version, is replaced; one that is
locked for long, read-only or on a full disk is not used. Every entry carries a hash of itself, so
the database need not wait for the disk: what a loss of power spoils counts as missing.
"""

from __future__ import annotations

import contextlib
import os
import stat
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from blake3 import blake3

from mvc.ids import ChunkId, GitId, hash_chunk
from mvc.numbers.figures import Health, decode_health

if TYPE_CHECKING:
    import sqlite3
    from pathlib import Path

    from mvc.numbers.boxes import PartRun, TensorPart

    ChunkKey: TypeAlias = tuple[ChunkId, str]
    """A chunk, and the element type that it is read as."""
    Piece: TypeAlias = tuple[ChunkId, TensorPart, PartRun]

FILE_NAME = "statistics.db"
_VERSION = 1
_CHECK_BYTES = 8
_MAX_VALUE_BYTES = 2**20
_WAIT_S = 1.0
_TABLE = (
    "CREATE TABLE kept (kind BLOB, key BLOB, value BLOB, PRIMARY KEY (kind, key)) WITHOUT ROWID"
)
_Result = TypeVar("_Result")
_Key = TypeVar("_Key")
FILES, CHUNKS = b"file-health", b"chunk-health"
"""Kinds of entries: the health of files by their blobs, of large chunks by id and element type."""


class Kept:
    """The entries of one repository, by kind and key; for any number of threads and processes.

    A key is the id of a Git blob (20 bytes), or one or more ids of tensors or chunks (32 bytes each);
    what follows those, less than an id, is free. ``gc`` drops an entry once nothing reaches one of
    its ids. No method fails because of the file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    @property
    def size_bytes(self) -> int:
        """Length of the file; 0 if there is none."""
        try:
            return os.stat(self._path).st_size
        except OSError:
            return 0

    def get_many(self, kind: bytes, keys: Iterable[bytes]) -> dict[bytes, bytes]:
        """Return key → value of those entries that are there."""

        def find(database: sqlite3.Connection) -> dict[bytes, bytes]:
            found: dict[bytes, bytes] = {}
            for key in asked:
                row = database.execute(
                    "SELECT value FROM kept WHERE kind = ? AND key = ?", (kind, key)
                ).fetchone()
                stored = None if row is None else row[0]
                if isinstance(stored, bytes):
                    value = stored[_CHECK_BYTES:]
                    if _hash(kind, key, value) == stored[:_CHECK_BYTES]:  # it is what was written
                        found[key] = value
            return found

        asked = tuple(keys)
        return self._use(find, {}) if asked and self.size_bytes else {}

    def put_many(self, kind: bytes, entries: Mapping[bytes, bytes]) -> None:
        """Keep some entries, in place of others of their keys."""
        rows = [(kind, key, _hash(kind, key, value) + value) for key, value in entries.items()]

        def put(database: sqlite3.Connection) -> None:
            database.execute("BEGIN IMMEDIATE")
            database.executemany("INSERT OR REPLACE INTO kept VALUES (?, ?, ?)", rows)
            database.execute("COMMIT")

        if rows:
            self._use(put, None)

    def list_entries(self) -> list[tuple[bytes, bytes]]:
        """Return (kind, key) of all entries."""
        if not self.size_bytes:
            return []
        return self._use(lambda one: one.execute("SELECT kind, key FROM kept").fetchall(), [])

    def drop(self, entries: Iterable[tuple[bytes, bytes]]) -> int:
        """Remove entries by kind and key; return by how many bytes the file is shorter."""

        def remove(database: sqlite3.Connection) -> None:
            database.execute("BEGIN IMMEDIATE")
            database.executemany("DELETE FROM kept WHERE kind = ? AND key = ?", gone)
            database.execute("COMMIT")
            database.execute("VACUUM")

        before, gone = self.size_bytes, tuple(entries)
        if gone:
            self._use(remove, None)
        return before - self.size_bytes

    def find_file_health(self, blobs: Iterable[GitId]) -> dict[GitId, Health]:
        """Return the health of those stored files for which it is kept."""
        return self._find_health(FILES, {bytes.fromhex(blob): blob for blob in blobs})

    def keep_file_health(self, files: Mapping[GitId, Health]) -> None:
        """Keep the health of stored files."""
        entries = {bytes.fromhex(blob): health.encode() for blob, health in files.items()}
        self.put_many(FILES, entries)

    def find_chunk_health(self, keys: Iterable[ChunkKey]) -> dict[ChunkKey, Health]:
        """Return the health of those chunks for which it is kept."""
        named = {chunk + dtype.encode(): (chunk, dtype) for chunk, dtype in keys}
        return self._find_health(CHUNKS, named)

    def keep_chunk_health(self, chunks: Mapping[ChunkKey, Health]) -> None:
        """Keep the health of chunks."""
        entries = {chunk + dtype.encode(): one.encode() for (chunk, dtype), one in chunks.items()}
        self.put_many(CHUNKS, entries)

    def _find_health(self, kind: bytes, keys: Mapping[bytes, _Key]) -> dict[_Key, Health]:
        kept = self.get_many(kind, keys) if keys else {}
        decoded = {keys[key]: decode_health(value) for key, value in kept.items()}
        return {key: health for key, health in decoded.items() if health is not None}

    def _use(self, act: Callable[[sqlite3.Connection], _Result], otherwise: _Result) -> _Result:
        """Act on the database; one that is not sound is removed, and made again by a second try."""
        import sqlite3  # noqa: PLC0415  few commands compare values

        for _ in range(2):
            try:
                with self._open() as database:
                    return act(database)
            except sqlite3.Error as error:
                if not _is_unsound(error):
                    break
            except OSError:
                break
            for path in (f"{self._path}-journal", self._path):
                with contextlib.suppress(OSError):
                    os.unlink(path)
        return otherwise

    @contextlib.contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        """Open the database for one use: no connection is shared with a thread or a fork."""
        import sqlite3  # noqa: PLC0415  as above

        with contextlib.suppress(FileNotFoundError):
            if not stat.S_ISREG(os.stat(self._path).st_mode):
                raise OSError("not a regular file")  # reading a pipe would wait for ever
        # Opened in autocommit mode, so that transactions are where they are written.
        connection = sqlite3.connect(self._path, timeout=_WAIT_S, isolation_level=None)
        with contextlib.closing(connection) as database:
            database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _MAX_VALUE_BYTES)
            database.execute("PRAGMA synchronous = OFF")
            if _find_version(database) == 0:
                database.execute("BEGIN IMMEDIATE")
                if _find_version(database) == 0:  # else another process was faster
                    database.execute(_TABLE)
                    database.execute(f"PRAGMA user_version = {_VERSION}")
                database.execute("COMMIT")
            if _find_version(database) != _VERSION:
                raise sqlite3.DatabaseError("another version")
            yield database


def _is_unsound(error: sqlite3.Error) -> bool:
    """Return whether the file itself is at fault, not who holds it or where it is."""
    import sqlite3  # noqa: PLC0415  as above

    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF
    faults = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR)
    return code in (*faults, sqlite3.SQLITE_FORMAT, sqlite3.SQLITE_TOOBIG, sqlite3.SQLITE_SCHEMA)


def _find_version(database: sqlite3.Connection) -> int:
    version: int = database.execute("PRAGMA user_version").fetchone()[0]
    return version


def _hash(kind: bytes, key: bytes, value: bytes) -> bytes:
    head = b"%d %d " % (len(kind), len(key))
    return blake3(head + kind + key + value).digest(_CHECK_BYTES)


class PartDigests:
    """Hashes of what parts of tensors have of chunks that were read, and verified, for them.

    So whether a part still is what was read takes no second look into its chunks. Each hash is asked
    for once, and of very many the oldest are forgotten.
    """

    def __init__(self, kept: int = 100_000) -> None:
        self._most = kept
        self._kept: dict[Piece, ChunkId] = {}
        self._lock = threading.Lock()

    def note(self, piece: Piece, content: memoryview) -> None:
        """Keep the hash of what a part has of a chunk."""
        digest = hash_chunk(content)
        with self._lock:
            while len(self._kept) >= self._most:
                del self._kept[next(iter(self._kept))]
            self._kept[piece] = digest

    def take(self, piece: Piece) -> ChunkId | None:
        """Return the hash, and forget it; None if it is not known."""
        with self._lock:
            return self._kept.pop(piece, None)
