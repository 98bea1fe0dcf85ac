"""What a writer gets from the others in a turn: their memory on the same machine, else parts of it.

Many threads may ask. A connection carries one question at a time; each rank is asked over a few at
most, which are kept for the next question.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import queue
import threading
import time
from functools import partial
from typing import TYPE_CHECKING

from mvc import StorageError
from mvc_hooks.writer.dialing import UnreachableError
from mvc_hooks.writer.turns import TurnError
from mvc_hooks.writer.wire import Beat, Failed, GetChecked, GetImage, GetPart, Here, Settled

if TYPE_CHECKING:
    from collections.abc import Callable

    from mvc_hooks.writer.crew import Crew
    from mvc_hooks.writer.dialing import Dialer
    from mvc_hooks.writer.turns import Turns
    from mvc_hooks.writer.wire import Frame, GetForm, GetHeld, Join, Link

    Question = GetImage | GetPart | GetChecked | GetForm | GetHeld

_LINKS_EACH = 2
_LOOK_S = 0.25
_AGAIN_S = 0.1


class Asking:
    """Connections on which other ranks are asked, kept from turn to turn."""

    def __init__(self, dialer: Dialer, turns: Turns) -> None:
        self.turns, self._dialer = turns, dialer
        self._kept: dict[tuple[int, bool], queue.LifoQueue[Link | None]] = {}
        self._lock = threading.Lock()

    def ask(
        self, rank: int, question: Question, check: Callable[[], None], *, near: bool = False
    ) -> Frame:
        """Return the answer of a rank, however late its writer comes to the turn.

        Meanwhile ``check`` is called, which may raise.

        Raises:
            UnreachableError: there is no way to it; if it is not ``near``, for a while already.
            TurnError: the turn came to nothing, or that rank cannot give this.
        """
        kept = self._find_kept(rank, near=near)
        link, frame = kept.get(), None
        try:
            link, frame = self._try(link, rank, question, check, near=near)
        finally:
            kept.put(link if frame is not None else None)
        if isinstance(frame.message, Settled | Failed):
            raise TurnError(frame.message.answer)
        return frame

    def _find_kept(self, rank: int, *, near: bool) -> queue.LifoQueue[Link | None]:
        with self._lock:
            kept = self._kept.get((rank, near))
            if kept is None:
                kept = self._kept[rank, near] = queue.LifoQueue()
                for _ in range(_LINKS_EACH):
                    kept.put(None)
            return kept

    def _try(
        self,
        link: Link | None,
        rank: int,
        question: Question,
        check: Callable[[], None],
        *,
        near: bool,
    ) -> tuple[Link, Frame]:
        failing_s = None
        while True:
            check()
            try:
                if link is None:
                    link = self._dialer.dial(rank, check, near=near)
                    failing_s = None
                return link, _ask(link, question, check)
            except OSError as error:
                failing_s = failing_s or time.monotonic()
                is_over = time.monotonic() - failing_s > self._dialer.crew.grace_s
                if is_over or (near and isinstance(error, UnreachableError)):
                    raise UnreachableError(error, is_gone=False) from error
            except BaseException:
                if link is not None:
                    link.close()
                raise
            if link is not None:
                link.close()
                link = None
            self.turns.pause(_AGAIN_S)

    def close(self) -> None:
        """End the connections that are not in use."""
        for kept in self._kept.values():
            with contextlib.suppress(queue.Empty):
                while True:
                    link = kept.get_nowait()
                    if link is not None:
                        link.close()


def _ask(link: Link, question: Question, check: Callable[[], None]) -> Frame:
    link.listen(_LOOK_S, check)
    link.send(question)
    while True:
        frame = link.receive()
        if not isinstance(frame.message, Beat):
            return frame
        check()


class TurnPeers:
    """The other ranks in one turn (see ``mvc.training.Peers``)."""

    def __init__(self, asking: Asking, crew: Crew, join: Join) -> None:
        self._asking, self._crew, self._join = asking, crew, join
        # A link keeps it, so it must not know this object, and with it the images.
        self._check = partial(asking.turns.check, join.turn)
        self._images: dict[int, memoryview | None] = {}
        self._locks = [threading.Lock() for _ in range(crew.ranks)]

    def find_image(self, rank: int) -> memoryview | None:
        """Return another rank's image of this turn if its memory can be mapped here, else None.

        What is read there has to be copied before it is used: should the turn fail, it may change.

        Raises:
            StorageError: the turn came to nothing.
        """
        with self._locks[rank]:
            if rank not in self._images:
                self._images[rank] = self._map_image(rank) if self._crew.is_near(rank) else None
            return self._images[rank]

    def _map_image(self, rank: int) -> memoryview | None:
        question = GetImage(self._join.turn, self._join.digest)
        try:
            frame = self._asking.ask(rank, question, self._check, near=True)
        except UnreachableError:
            return None  # another container of this machine: over the network, then
        try:
            return _map(frame)
        except (OSError, ValueError) as error:
            raise StorageError(f"the memory of rank {rank} cannot be mapped: {error}") from error

    def fetch_part(self, rank: int, array: int, chunk: int) -> memoryview:
        """Return another rank's part of a chunk.

        Raises:
            StorageError: the turn came to nothing, or there is no way to that rank.
        """
        return self._fetch(rank, GetPart(self._join.turn, self._join.digest, array, chunk))

    def fetch_checked(self, rank: int, array: int, chunk: int) -> memoryview:
        """Return what another rank checks of a chunk; raises as ``fetch_part``."""
        return self._fetch(rank, GetChecked(self._join.turn, self._join.digest, array, chunk))

    def _fetch(self, rank: int, question: GetPart | GetChecked) -> memoryview:
        try:
            return memoryview(self._asking.ask(rank, question, self._check).payload)
        except UnreachableError as error:
            raise StorageError(f"rank {rank} cannot be reached: {error}") from error


def _map(frame: Frame) -> memoryview:
    """Map memory that was passed; the mapping ends with the last view of it."""
    message, descriptor = frame.message, frame.descriptor
    if not isinstance(message, Here) or descriptor < 0:
        raise ValueError("it was not passed")
    try:
        if os.fstat(descriptor).st_size < message.size_bytes:
            raise ValueError("it is too short")
        return memoryview(mmap.mmap(descriptor, message.size_bytes, prot=mmap.PROT_READ))
    finally:
        os.close(descriptor)
