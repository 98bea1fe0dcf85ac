"""Git objects on disk: bytes in, id out, hashed again whenever they come back.

A new object is a file of its own (``loose``).
It is written under a temporary name that stock Git knows as garbage, synced, then renamed; so a
file with an object's name is always whole. Its *name* becomes durable in ``sync``, one folder at a
time for many objects: a process calls it before it moves a ref. An object that already exists
counts as new too, because the process that wrote it may have died before its own ``sync``.

A command *gathers* the small objects it writes: they are in memory, and read from there, until
``sync`` writes them, more than a few as one pack. Nothing names them before, so a failure may
forget them.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from mvc import fs
from mvc.errors import CorruptionError, FormatError, StorageError, UsageError, translate_os_errors
from mvc.history.loose import LooseObjects
from mvc.history.object_formats import MAX_OBJECT_BYTES, parse_commit, parse_tree_object
from mvc.history.packs import PackedObjects
from mvc.history.translate import FSCK_HINT, translate_damage
from mvc.ids import GitId, hash_git_object

if TYPE_CHECKING:
    from pathlib import Path

    from mvc.history.values import CommitInfo

_FRESH_S = 24 * 3600  # reused objects older than this are touched, so that no pruning takes them
_MAX_SOUND = 65536
_MAX_TRIES = 10
_NOWHERE: frozenset[GitId] = frozenset()
_FEW = 32  # what a commit of a training run writes stays loose: a pack for each would be many
_MAX_GATHERED_BYTES = 32 << 20
_MAX_SMALL_BYTES = 256 << 10


class _Gathered(threading.local):
    """What the command of this thread has yet to write; ``objects`` None if it does not gather."""

    objects: dict[GitId, tuple[str, bytes]] | None = None
    size_bytes = 0


class ObjectStore:
    """The ``objects`` folder of a repository."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.loose = LooseObjects(folder)
        self.packs = PackedObjects(folder)
        self._mutex = threading.Lock()
        self._unsynced_files: set[Path] = set()
        self._unsynced_folders: set[Path] = set()
        self._sound: set[GitId] = set()
        self._failed = False
        self._gathered = _Gathered()
        self._shallow: frozenset[GitId] | None = None

    def write(self, kind: str, data: bytes) -> GitId:
        """Store an object and return its id; durable after ``sync``."""
        if len(data) > MAX_OBJECT_BYTES:
            raise UsageError(f"a {kind} of {len(data):,} bytes is over {MAX_OBJECT_BYTES:,}")
        object_id = hash_git_object(kind, data)
        if self._find_gathered(object_id) is not None:
            return object_id
        gathered = self._gathered
        if self._is_sound(object_id):
            self._reuse(object_id)
        elif gathered.objects is None or len(data) > _MAX_SMALL_BYTES:
            self._write_loose(object_id, kind, data)
        else:
            gathered.objects[object_id] = kind, data
            gathered.size_bytes += len(data)
            if gathered.size_bytes > _MAX_GATHERED_BYTES:
                self._write_gathered()
        return object_id

    @contextlib.contextmanager
    def gathering(self) -> Iterator[None]:
        """Gather what this thread writes until the block ends; within such a block, go on."""
        if self._gathered.objects is not None:
            yield
            return
        self._gathered.objects = {}
        try:
            yield
            self._write_gathered()
        except KeyboardInterrupt:
            self._write_gathered()  # so that the same command goes on from there
            raise
        finally:
            self._gathered.objects = None

    def _write_gathered(self) -> None:
        """Write what was gathered: few objects as files of their own, more as a pack, durable."""
        objects = self._gathered.objects or {}
        if len(objects) <= _FEW:
            for object_id, (kind, data) in objects.items():
                self._write_loose(object_id, kind, data)
        else:
            from mvc.history.git_pack import write_pack  # noqa: PLC0415  few commands write many

            folder = self.folder / "pack"
            with translate_damage(f"folder {folder}"):
                entries = ((object_id, *entry) for object_id, entry in objects.items())
                write_pack(folder, len(objects), entries)
            self.packs.look_again()
        objects.clear()
        self._gathered.size_bytes = 0

    def _find_gathered(self, object_id: GitId) -> tuple[str, bytes] | None:
        return (self._gathered.objects or {}).get(object_id)

    def _write_loose(self, object_id: GitId, kind: str, data: bytes) -> None:
        folder = self.loose.write(object_id, kind, data)
        with self._mutex:
            self._unsynced_folders.add(folder)
        self._mark_sound(object_id)

    def read(self, object_id: GitId) -> tuple[str, bytes]:
        """Return (kind, content) of an object, hashed against its id."""
        entry = self._find_gathered(object_id)
        if entry is not None:
            return entry
        for _ in self._looks():
            loose: CorruptionError | None = None
            try:
                entry = self.loose.read(object_id)
            except CorruptionError as error:
                loose = error  # a pack may hold a whole copy
            try:
                entry = entry or self.packs.find(object_id)
            except CorruptionError as error:
                raise loose or error from None
            if entry is not None:
                return entry
            if loose is not None:
                raise loose
        raise CorruptionError(f"object {object_id} is missing", hint=FSCK_HINT)

    def _looks(self) -> Iterator[None]:
        """Yield once, and again for as long as the packs change.

        A git gc moves objects from loose to packed, or back if nothing reaches them; between a look
        at the one and the other, an object may do both.
        """
        for _ in range(_MAX_TRIES):
            before_ns = self.packs.changed_ns()
            yield
            if self.packs.changed_ns() == before_ns:
                return

    def has(self, object_id: GitId) -> bool:
        """Return whether the object exists, without reading it."""
        if self._find_gathered(object_id) is not None:
            return True
        return any(
            self.loose.find_stat(object_id) is not None or self.packs.has(object_id)
            for _ in self._looks()
        )

    def find_header(self, object_id: GitId) -> tuple[str, int] | None:
        """Return (kind, length of the content), or None if there is no such object."""
        gathered = self._find_gathered(object_id)
        if gathered is not None:
            return gathered[0], len(gathered[1])
        start = self.loose.read_start(object_id, 0) or self.packs.find_start(object_id, 0)
        if start is not None:
            return start[:2]
        return self.read_start(object_id, 0)[:2] if self.has(object_id) else None

    def read_start(self, object_id: GitId, count: int) -> tuple[str, int, bytes]:
        """Return (kind, length, first ``count`` bytes), inflating no more than that; not hashed."""
        if self._find_gathered(object_id) is None:
            start = self.loose.read_start(object_id, count)
            start = start or self.packs.find_start(object_id, count)
            if start is not None:
                return start
        kind, data = self.read(object_id)
        return kind, len(data), data[:count]

    def find_prefix(self, prefix: str) -> list[GitId]:
        """Return the ids that begin with these hex digits (two at least), sorted."""
        return sorted(self.loose.find_prefix(prefix) | self.packs.find_prefix(prefix))

    def sync(self) -> None:
        """Make every object written since the last call durable: bytes, names, folders.

        Of other threads, what they gathered is still theirs to write.

        After a failure every later call fails too: what the machine kept is unknown.
        """
        with self._mutex:
            if self._failed:
                raise StorageError(
                    "an earlier sync of new objects failed", hint="open the repository again"
                )
        self._write_gathered()
        with self._mutex:
            if not self._unsynced_folders:
                return
            self._failed = True
            # A git gc may have moved objects into a pack meanwhile, and synced that.
            for path in self._unsynced_files:
                with contextlib.suppress(FileNotFoundError):
                    fs.fsync_file(path)
            for folder in self._unsynced_folders:
                with contextlib.suppress(FileNotFoundError):
                    fs.fsync_dir(folder)
            fs.fsync_dir(self.folder)
            self._unsynced_files.clear()
            self._unsynced_folders.clear()
            self._failed = False

    def forget(self, object_ids: Iterable[GitId]) -> None:
        """Take note that these objects are being removed: look at them again before relying on."""
        with self._mutex:
            self._sound.difference_update(object_ids)

    def close(self) -> None:
        """Close the Git packs; they are opened again when they are needed."""
        self.packs.close()

    # -- objects as what they are

    def read_kind(self, object_id: GitId, kind: str) -> bytes:
        """Return the content of an object of this kind."""
        actual, data = self.read(object_id)
        if actual != kind:
            raise FormatError(f"object {object_id} is a {actual}, not a {kind}")
        return data

    def read_commit(self, commit_id: GitId) -> CommitInfo:
        """Return a commit; raises as ``read_kind``."""
        return self.parse_commit(commit_id, self.read_kind(commit_id, "commit"))

    def parse_commit(self, commit_id: GitId, data: bytes) -> CommitInfo:
        """Return a commit, given its content; without parents where the history is cut."""
        commit = parse_commit(commit_id, data)
        return replace(commit, parents=()) if commit_id in self.shallow else commit

    @property
    def shallow(self) -> frozenset[GitId]:
        """The commits at which the history ends, although they have parents."""
        if self._shallow is None:
            self._shallow = _NOWHERE
            if fs.find_stat(self.folder.parent / "shallow") is not None:
                from mvc.history.shallow import read_shallow  # noqa: PLC0415  few are

                self._shallow = read_shallow(self.folder.parent)
        return self._shallow

    @contextlib.contextmanager
    def cut_at(self, ends: frozenset[GitId]) -> Iterator[None]:
        """Let the history end elsewhere, as long as the block lasts."""
        before, self._shallow = self.shallow, ends
        try:
            yield
        finally:
            self._shallow = before

    def forget_shallow(self) -> None:
        """Look again where the history ends."""
        self._shallow = None

    def read_tree_items(self, tree_id: GitId) -> Iterator[tuple[bytes, int, GitId]]:
        """Yield (name, mode, id) of one tree; raises as ``read_kind``."""
        return parse_tree_object(tree_id, self.read_kind(tree_id, "tree"))

    def _is_sound(self, object_id: GitId) -> bool:
        """Return whether the object exists whole: a damaged one is written again, and so healed."""
        is_loose = self.loose.find_stat(object_id) is not None
        try:
            if not is_loose and self.packs.find_path(object_id) is None:
                return False
            if object_id in self._sound:
                return True
            entry = self.loose.read(object_id) if is_loose else self.packs.find(object_id)
        except CorruptionError:
            return False
        if entry is not None:
            self._mark_sound(object_id)
        return entry is not None

    def _mark_sound(self, object_id: GitId) -> None:
        if len(self._sound) >= _MAX_SOUND:
            self._sound.clear()
        self._sound.add(object_id)

    def _reuse(self, object_id: GitId) -> None:
        path = self.loose.path(object_id)
        stat = fs.find_stat(path)
        if stat is None:
            # The process that packed it has synced the bytes, perhaps not yet the names.
            path = self.packs.find_path(object_id) or path
            stat = fs.find_stat(path)
        if stat is None:
            return
        if time.time() - stat.mtime_ns / 1e9 > _FRESH_S:
            with translate_os_errors(f"touch {path}"):
                os.utime(path)
        with self._mutex:
            if path.suffix != ".pack":
                self._unsynced_files.add(path)
            self._unsynced_folders.add(path.parent)
