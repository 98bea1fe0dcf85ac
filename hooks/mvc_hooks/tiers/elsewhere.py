"""What the other machines of a new run hold of the last one: asked part by part, over the network.

Each rank says which images it sees on its machine. If some see what others do not, all of them listen for
as long as the resume takes. One that does not answer is not asked again: the store has everything, too.
"""

from __future__ import annotations

import contextlib
import threading
import time
from typing import TYPE_CHECKING

from mvc import MvcError, StorageError
from mvc_hooks.writer.crew import Crew
from mvc_hooks.writer.dialing import Dialer
from mvc_hooks.writer.holding import Holding
from mvc_hooks.writer.messages import Answer
from mvc_hooks.writer.peers import Asking
from mvc_hooks.writer.place import open_place
from mvc_hooks.writer.serving import Server
from mvc_hooks.writer.turns import Turns
from mvc_hooks.writer.wire import Counts, Failed, GetForm, GetHeld, Here

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mvc_hooks.ranks.group import Ranks
    from mvc_hooks.tiers.images import Images
    from mvc_hooks.writer.place import Place
    from mvc_hooks.writer.wire import Frame, Link

_GRACE_S = 5.0
_ANSWER_S = 10.0


class Elsewhere:
    """The other ranks of the new run, as far as they hold what this one does not.

    Attributes:
        given_bytes: what came from them.
    """

    def __init__(
        self, crew: Crew, place: Place, images: Images, seen: Sequence[list[tuple[str, int]]]
    ) -> None:
        """Answer and ask as one rank of a crew; ``seen`` are (commit, old rank) that each of them sees."""
        self.given_bytes = 0
        self._rank, self._place = crew.rank, place
        self._holders: dict[tuple[str, int], list[int]] = {}
        for rank in (*range(crew.rank, crew.ranks), *range(crew.rank)):  # not all ask the same one
            for image in seen[rank]:
                self._holders.setdefault(image, []).append(rank)
        self._lost: set[int] = set()
        self._lock = threading.Lock()
        counts, turns = Counts(), Turns()
        self._asking = Asking(Dialer(crew, counts), turns)
        self._server = Server(crew, turns, counts, _Answers(images), Holding())
        self._server.start(place.descriptors)

    def fetch_form(self, commit: str) -> bytes | None:
        """Return the form of a share of a commit, whichever, or None: nobody has one."""
        for held, rank in self._holders:
            if held == commit:
                with contextlib.suppress(StorageError):
                    return bytes(self._ask(GetForm(commit, rank)))
        return None

    def fetch_part(self, commit: str, rank: int, array: int, chunk: int) -> memoryview:
        """Return what a rank of the last run had of a chunk.

        Raises:
            StorageError: nobody who answers holds that.
        """
        part = self._ask(GetHeld(commit, rank, array, chunk))
        with self._lock:
            self.given_bytes += len(part)
        return part

    def _ask(self, question: GetForm | GetHeld) -> memoryview:
        for holder in self._holders.get((question.commit, question.rank), ()):
            if holder != self._rank and holder not in self._lost:
                try:
                    frame = self._asking.ask(holder, question, _wait_until(_ANSWER_S))
                except OSError:
                    self._lost.add(holder)
                    continue
                return memoryview(frame.payload)
        raise StorageError(f"nobody holds what rank {question.rank} had")

    def close(self) -> None:
        """Stop answering and asking."""
        self._server.close()
        self._asking.close()
        self._place.close()


def find_elsewhere(ranks: Ranks, images: Images) -> Elsewhere | None:
    """Meet the other ranks if not all see the same images; all ranks have to call this."""
    seen = ranks.exchange(images.list_shares())
    if all(one == seen[0] for one in seen):
        return None
    place = None
    with contextlib.suppress(StorageError):
        place = open_place()
    addresses = ranks.exchange(None if place is None else place.address)
    if place is None or None in addresses:
        if place is not None:
            place.close()
        return None
    return Elsewhere(Crew(ranks.rank, tuple(addresses), _GRACE_S), place, images, seen)


class _Answers:
    """Answers the questions of other ranks (see ``serving.Hears``)."""

    def __init__(self, images: Images) -> None:
        self._images = images

    def hear(self, link: Link, frame: Frame) -> None:
        """Send what was asked for, or why that cannot be."""
        try:
            found = self._find(frame.message)
        except (MvcError, ValueError, LookupError) as error:
            link.send(Failed(Answer(0, error="format", message=str(error))))
        else:
            link.send(Here(found.nbytes), found)

    def _find(self, question: object) -> memoryview:
        if isinstance(question, GetForm):
            form = self._images.find_form(question.commit, question.rank)
            if form is not None:
                return memoryview(form)
        if isinstance(question, GetHeld):
            share = self._images.open_shares(question.commit)[question.rank]
            return share.read_part(question.array, question.chunk).cast("B")
        raise ValueError("there is no such thing here")

    def lose(self, link: Link) -> None:
        """Take no note of the end of a connection."""


def _wait_until(seconds: float) -> Callable[[], None]:
    """Return what ends a wait by an OSError after so many seconds."""
    end_s = time.monotonic() + seconds

    def check() -> None:
        if time.monotonic() > end_s:
            raise TimeoutError

    return check
