"""Who takes part in a sharded run, and where each rank's writer is reached; plain values."""

from __future__ import annotations

import hashlib

import msgspec


class Address(msgspec.Struct, frozen=True):
    """Where the writers of one rank are reached, one after the other.

    Attributes:
        hosts: names or numbers to try, the best first.
        port: of TCP.
        path: of the Unix socket; "" for none.
        node: what names the machine; only ranks of one machine can share memory.
        token: this rank's part of the secret that all ranks know.
        presence: a port of TCP that is open as long as the training of the rank lives.
    """

    hosts: tuple[str, ...]
    port: int
    path: str
    node: str
    token: str
    presence: int = 0


class Crew(msgspec.Struct, frozen=True):
    """One rank, and the addresses of all ranks in their order.

    Attributes:
        grace_s: how long a writer that was there may be silent or away.
        patience_s: how long a rank is waited for that is there, but does not come to a turn.
    """

    rank: int
    addresses: tuple[Address, ...]
    grace_s: float = 30.0
    patience_s: float = 600.0

    @property
    def ranks(self) -> int:
        """How many ranks there are."""
        return len(self.addresses)

    @property
    def beat_s(self) -> float:
        """How often a writer shows that it is there."""
        return self.grace_s / 5

    def find_neighbour(self) -> int | None:
        """Return the rank of the next machine that holds a copy of this one's image; None: there is no other."""
        nodes: dict[str, list[int]] = {}
        for rank, address in enumerate(self.addresses):
            nodes.setdefault(address.node, []).append(rank)
        names, mine = list(nodes), self.addresses[self.rank].node
        there = nodes[names[(names.index(mine) + 1) % len(names)]]
        return None if len(names) == 1 else there[nodes[mine].index(self.rank) % len(there)]

    def make_key(self) -> bytes:
        """Return the secret that only the ranks of this run know."""
        tokens = "\n".join(address.token for address in self.addresses)
        return hashlib.sha256(tokens.encode()).digest()

    def is_near(self, rank: int) -> bool:
        """Return whether another rank may be reached by its Unix socket."""
        mine, theirs = self.addresses[self.rank], self.addresses[rank]
        return bool(theirs.path) and mine.node == theirs.node
