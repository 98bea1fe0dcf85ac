"""Copies of images in the memory of another machine, whose writers hold them should this one be lost.

After each commit a writer sends its image to one of the next machine, in the background and behind
everything else. The next snapshot may come before it has got there: then the copy is given up.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from typing import TYPE_CHECKING

import msgspec

from mvc_hooks.writer.messages import Answer
from mvc_hooks.writer.wire import Failed, Here, Keep

if TYPE_CHECKING:
    from mvc_hooks.writer.dialing import Dialer
    from mvc_hooks.writer.holding import Holding, Image
    from mvc_hooks.writer.wire import Frame, Link

_PIECE_BYTES = 4 * 2**20
_LOOK_S = 0.25
_NICENESS = 10
_OVERTAKEN = "the next snapshot came before the copy was there"


class GivenUpError(OSError):
    """A copy is no longer wanted, or is refused."""


class Replicator:
    """Sends the newest image to a rank of the next machine.

    Attributes:
        failure: why the last copy that ended did not get there, if it did not.
    """

    def __init__(self, dialer: Dialer, rank: int) -> None:
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
                self._hear(link.receive())

    def _hear(self, frame: Frame) -> None:
        if isinstance(frame.message, Failed):
            raise GivenUpError(frame.message.answer.message)

    def _check(self) -> None:
        """End what is under way if something newer is to be sent, or nothing more."""
        if self._next is not None or self._is_closed:
            raise GivenUpError(_OVERTAKEN)


def take_piece(holding: Holding, link: Link, frame: Frame, rank: int) -> None:
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
