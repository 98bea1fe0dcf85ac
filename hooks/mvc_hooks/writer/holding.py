"""The images that a writer holds for a next run: its own of the newest commit, and copies of other ranks'.

Its own it does not copy: the training uses that memory again for the next snapshot, and from then on,
until that one is a commit, there is nothing to hold. A stamp in the memory tells. Nor is it hashed:
a reader hashes every chunk from there against the id that the commit has.

Should this machine be lost, a writer of the next machine has a copy: after each commit a ``Replicator`` sends
the image there, in the background and behind everything else. The next snapshot may come before it has got there: then the copy is given up.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from mvc_hooks.lingering import MOST_IMAGES, Held, has_room
from mvc_hooks.snapshot.stamp import read_stamp
from mvc_hooks.writer.messages import Answer
from mvc_hooks.writer.wire import Failed, Frame, Here, Keep, RankLink

if TYPE_CHECKING:
    from mvc_hooks.writer.dialing import Dialer

_PIECE_BYTES = 4 * 2**20
_LOOK_S = 0.25
_NICENESS = 10
_OVERTAKEN = "the next snapshot came before the copy was there"


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
    """A copy of another rank's image; its first ``done_bytes`` are here."""

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
        held_images = []
        if self._own is not None and self._own.is_intact:
            held_images.append((self._own.held, self._own.descriptor))
        with self._lock:
            for copy in self._copies.values():
                if copy.done_bytes == copy.held.size_bytes:
                    held = msgspec.structs.replace(copy.held, git_dir=git_dir)
                    held_images.append((held, copy.descriptor))
        return held_images


class GivenUpError(OSError):
    """A copy is no longer wanted, or is refused."""


class Replicator:
    """Sends the newest image to a rank of the next machine."""

    def __init__(self, dialer: Dialer, rank: int) -> None:
        # Why the last copy that ended did not get there, if it did not.
        self.failure: str | None = None
        self._dialer, self._rank = dialer, rank
        self._changed = threading.Condition()
        self._next: Image | None = None
        self._is_closed = self._is_busy = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def send(self, image: Image) -> None:
        """Send an image, which is this one's to close; what is under way is given up."""
        with self._changed:
            if self._next is not None:
                self._next.close()
            self._next = image
            self._changed.notify_all()

    def close(self) -> None:
        """Give up what is under way."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        self._thread.join()

    def wait(self) -> None:
        """Wait until nothing is under way."""
        with self._changed:
            self._changed.wait_for(lambda: self._next is None and not self._is_busy)

    def _run(self) -> None:
        if sys.platform == "linux":  # where a thread has a niceness of its own
            with contextlib.suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
        while (image := self._take()) is not None:
            with contextlib.closing(image):
                try:
                    self._send(image)
                    self.failure = None
                except OSError as error:
                    self.failure = error.strerror or str(error) or None

    def _take(self) -> Image | None:
        with self._changed:
            self._is_busy = False
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._next is not None or self._is_closed)
            image, self._next = self._next, None
            if image is not None and self._is_closed:
                image.close()
                return None
            self._is_busy = image is not None
            return image

    def _send(self, image: Image) -> None:
        with contextlib.closing(self._dialer.dial(self._rank, self._check)) as link:
            link.listen(_LOOK_S, self._check)
            size_bytes = sum(image.held.form)  # its form is the last thing in it
            held = msgspec.structs.replace(image.held, size_bytes=size_bytes)
            for offset in range(0, size_bytes, _PIECE_BYTES):
                piece = os.pread(image.descriptor, min(_PIECE_BYTES, size_bytes - offset), offset)
                self._check()
                if not image.is_intact:  # if it is, what was read is of this commit
                    raise GivenUpError(_OVERTAKEN)
                link.send(Keep(held, offset), piece)
                frame = link.receive()
                if isinstance(frame.message, Failed):
                    raise GivenUpError(frame.message.answer.message)

    def _check(self) -> None:
        """End what is under way if a newer image waits, or if this is closed."""
        if self._next is not None or self._is_closed:
            raise GivenUpError(_OVERTAKEN)


def take_piece(holding: Holding, link: RankLink, frame: Frame, rank: int) -> None:
    """Take a piece of another rank's image, and say whether it was wanted."""
    keep = frame.message
    assert isinstance(keep, Keep)
    why: str | None = "it is another rank's"
    if keep.held.rank == link.rank:
        try:
            why = holding.take(keep.held, keep.offset, frame.payload)
        except OSError as error:
            why = error.strerror or str(error)
    if why is None:
        link.send(Here(len(frame.payload)))
    else:
        link.send(Failed(Answer(0, error="storage", message=f"rank {rank}: {why}")))
