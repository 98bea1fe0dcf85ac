"""The writers of a sharded run together: what one of them needs of the others to make a commit."""

from __future__ import annotations

import contextlib
import threading
import time
from typing import TYPE_CHECKING

from mvc_hooks.writer.dialing import Dialer
from mvc_hooks.writer.following import Follower
from mvc_hooks.writer.holding import Holding
from mvc_hooks.writer.leading import Leader
from mvc_hooks.writer.peers import Asking, TurnPeers
from mvc_hooks.writer.serving import Server
from mvc_hooks.writer.turns import Turns
from mvc_hooks.writer.wire import Counts

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from mvc_hooks.writer.crew import Crew
    from mvc_hooks.writer.turns import Offer

_LOOK_S = 0.25
_COURTESY_S = 0.2


class Mesh:
    """One writer among the others.

    Attributes:
        counts: what it has sent since it began.
        dialer: opens connections to the other ranks.
        turns: what became of the commits.
        leader: rank 0's side; None elsewhere, where there is a ``follower``.
    """

    def __init__(
        self, crew: Crew, listening: Sequence[int], holding: Holding | None = None
    ) -> None:
        self.crew, self.counts, self.turns = crew, Counts(), Turns()
        self.dialer = dialer = Dialer(crew, self.counts)
        self._asking = Asking(dialer, self.turns)
        is_first = crew.rank == 0
        side = Leader(crew, self.turns, dialer) if is_first else Follower(crew, self.turns, dialer)
        self.leader = side if isinstance(side, Leader) else None
        self.follower = side if isinstance(side, Follower) else None
        self._side = side
        self._server = Server(crew, self.turns, self.counts, self._side, holding or Holding())
        self._server.start(listening)
        self._closed = threading.Event()
        self._threads = [threading.Thread(target=self._watch, daemon=True)]
        if self.follower is not None:
            self._threads.append(threading.Thread(target=self.follower.run, daemon=True))
        for thread in self._threads:
            thread.start()

    @contextlib.contextmanager
    def turn(self, turn: int) -> Iterator[None]:
        """Be in a turn meanwhile."""
        self._side.begin(turn)
        try:
            yield
        finally:
            self.turns.end()

    def bring(self, offer: Offer) -> TurnPeers:
        """Bring a share to the open turn; return the other ranks in it.

        Raises:
            TurnError: it has come to nothing already.
        """
        self._side.bring(offer)
        return TurnPeers(self._asking, self.crew, offer.join)

    def wait_gathered(self, turn: int) -> None:
        """Give all ranks a moment to come to the open turn.

        On a machine with few cores, a writer that is at work takes them from ranks that still copy.
        """
        self.turns.wait_gathered(turn, _COURTESY_S)

    def _watch(self) -> None:
        """Show that this writer is there, and notice who is not."""
        beat_s = time.monotonic()
        while not self._closed.wait(min(_LOOK_S, self.crew.beat_s)):
            if time.monotonic() - beat_s >= self.crew.beat_s:
                self._side.beat()
                beat_s = time.monotonic()
            self._side.judge()

    def close(self) -> None:
        """End all connections and threads."""
        self._closed.set()
        self._server.close()
        if self.follower is not None:
            self.follower.close()
        for thread in self._threads:
            thread.join()
        self._asking.close()
