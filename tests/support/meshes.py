"""Writers of several ranks in one process: real sockets, real memory, threads instead of processes."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from dataclasses import dataclass, field

import msgspec

from mvc_hooks.writer.mesh import Mesh
from mvc_hooks.writer.messages import RankCrew
from mvc_hooks.writer.place import open_listeners
from mvc_hooks.writer.turns import Offer
from mvc_hooks.writer.wire import Join

GRACE_S = 5.0
DIGEST = b"form"


@dataclass
class Parts:
    """The parts of one rank's image: each array is so many bytes of a kind, in chunks of ten."""

    image: bytes

    def read_part(self, array, chunk):
        start = array * 100 + chunk * 10
        if not 0 <= start < len(self.image):
            raise IndexError(chunk)
        return memoryview(self.image)[start : start + 10]


@dataclass
class Rank:
    """One rank: its place, and its writer's mesh while it has one."""

    place: object
    crew: RankCrew
    mesh: Mesh | None = None
    image: bytes = b""
    descriptor: int = -1
    answers: list = field(default_factory=list)

    def start(self):
        self.mesh = Mesh(self.crew, self.place.descriptors)
        return self.mesh

    def stop(self):
        if self.mesh is not None:
            self.mesh.close()
            self.mesh = None

    def offer(self, turn, *, step=None, branch="main", digest=DIGEST):
        """Return an offer of an image whose bytes name rank and turn."""
        self.image = bytes([self.crew.rank * 16 + turn]) * 400
        self.forget()
        self.descriptor = os.memfd_create("image")
        os.write(self.descriptor, self.image)
        join = Join(turn, turn if step is None else step, branch, digest)
        return Offer(join, Parts(self.image), self.descriptor, len(self.image))

    @contextlib.contextmanager
    def turn(self, turn, **offer):
        """Take part in a turn; yields the other ranks."""
        with self.mesh.turn(turn):
            yield self.mesh.bring(self.offer(turn, **offer))

    def forget(self):
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


@contextlib.contextmanager
def open_ranks(count, *, nodes=None, start=True, grace_s=GRACE_S, patience_s=60.0):
    """Give ranks that know each other; ``nodes`` names the machine that each seems to be on."""
    places = [open_listeners("127.0.0.1") for _ in range(count)]
    table = tuple(
        msgspec.structs.replace(place.address, node=nodes[rank]) if nodes else place.address
        for rank, place in enumerate(places)
    )
    ranks = [
        Rank(place, RankCrew(rank, table, grace_s, patience_s)) for rank, place in enumerate(places)
    ]
    try:
        for rank in ranks:
            if start:
                rank.start()
        yield ranks
    finally:
        for rank in ranks:
            rank.stop()
            rank.forget()
            rank.place.close()


def run_all(*functions):
    """Run functions at once; return what they return, or raise what one of them raised."""
    results = [None] * len(functions)

    def run(number, function):
        try:
            results[number] = function()
        except BaseException as error:
            results[number] = error

    threads = [
        threading.Thread(target=run, args=pair, daemon=True) for pair in enumerate(functions)
    ]
    for thread in threads:
        thread.start()
    end_s = time.monotonic() + 60
    for thread in threads:
        thread.join(max(0.0, end_s - time.monotonic()))
        assert not thread.is_alive(), "somebody waits without end"
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results
