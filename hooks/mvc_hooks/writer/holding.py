"""The images that a writer holds for a next run: its own of the newest commit, and copies of other ranks'.

Its own it does not copy: the training uses that memory again for the next snapshot, and from then on,
until that one is a commit, there is nothing to hold. A stamp in the memory tells. Nor is it hashed:
whoever reads a chunk from there hashes it against the id that the commit has.
"""

from __future__ import annotations

import contextlib
import os
import threading
from dataclasses import dataclass

import msgspec

from mvc_hooks.lingering import MOST_IMAGES, Held, has_room
from mvc_hooks.snapshot.stamp import read_stamp


@dataclass(frozen=True, slots=True)
class Image:
    """The image that a commit was made of, in memory that the training may use again."""

    held: Held
    descriptor: int
    stamp: int

    @property
    def is_intact(self) -> bool:
        """Whether nothing else has been written there since."""
        with contextlib.suppress(OSError):
            return self.stamp == read_stamp(self.descriptor, self.held.size_bytes)
        return False

    def close(self) -> None:
        """Let go of the memory."""
        os.close(self.descriptor)


def open_image(held: Held, descriptor: int) -> Image:
    """Return the image in memory, whose descriptor stays the caller's."""
    stamp = read_stamp(descriptor, held.size_bytes)
    return Image(held, os.dup(descriptor), stamp)


@dataclass(slots=True)
class _Copy:
    """A copy of another rank's image, of which ``done_bytes`` are here."""

    held: Held
    descriptor: int
    done_bytes: int = 0


class Holding:
    """What one writer holds; pieces of copies come in other threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._own: Image | None = None
        self._copies: dict[int, _Copy] = {}

    def keep(self, image: Image) -> None:
        """Hold the image of a new commit in place of the last one's."""
        if self._own is not None:
            self._own.close()
        self._own = image

    def take(self, held: Held, offset: int, piece: bytes | bytearray) -> str | None:
        """Take a piece of a copy; they come in order. Return why it is not wanted, if it is not.

        A copy is held once its last piece is here, and that of an earlier commit until its first is.
        """
        with self._lock:
            copy = self._begin(held) if offset == 0 else self._copies.get(held.rank)
            if copy is None:
                return "its machine has no memory to spare"
            if copy.held != held or copy.done_bytes != offset:
                return "a piece of the copy is missing"
            if offset + len(piece) > held.size_bytes:
                return "the copy is longer than it should be"
            os.pwrite(copy.descriptor, piece, offset)
            copy.done_bytes += len(piece)
        return None

    def _begin(self, held: Held) -> _Copy | None:
        copy = self._copies.get(held.rank)
        if copy is not None and copy.held.size_bytes != held.size_bytes:
            os.close(self._copies.pop(held.rank).descriptor)
            copy = None
        if copy is None:
            if not has_room(held.size_bytes) or len(self._copies) + 1 >= MOST_IMAGES:
                return None
            copy = self._copies[held.rank] = _Copy(held, os.memfd_create("mvc-copy"))
        copy.held, copy.done_bytes = held, 0
        return copy

    def find_intact(self, git_dir: str) -> list[tuple[Held, int]]:
        """Return what is held and its descriptors, its own first, for the next run of a repository."""
        found = []
        if self._own is not None and self._own.is_intact:
            found.append((self._own.held, self._own.descriptor))
        with self._lock:
            for copy in self._copies.values():
                if copy.done_bytes == copy.held.size_bytes:
                    held = msgspec.structs.replace(copy.held, git_dir=git_dir)
                    found.append((held, copy.descriptor))
        return found
