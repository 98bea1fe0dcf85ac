"""A cluster, a commit on it and a recovery, simulated event by event with parts measured on this machine.

Stated, not measured, are the links, the store, and how many cores a rank has; ``Cluster`` names each. The
ranks of a node share its cores. A rank copies what it keeps of the state (training waits for the slowest; a
commit has no collective of its own), then encodes it and sends it to the store, all at once: the store gives each transfer under way the same
share of its bandwidth. Rank 0 takes the shares in as they arrive, one at a time, joins the ids of all
chunks to manifests, and records the commit.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from random import Random

    from benchmarks.scale.parts import Parts

_RENDEZVOUS_REQUESTS = 12
"""Requests of a rank to torch's store until its process groups are there."""
_EXCHANGES = 10
"""Times that all ranks tell all something at a resume: two rings of gloo each, lengths and values."""
_DRAWS = 8
"""A rank's speed is the mean of so many draws: it handles many chunks, at one load of its machine."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """What is simulated.

    Attributes:
        ranks: how many.
        state_bytes: of the whole state.
        cores_per_rank: for hashing and encoding.
        per_node: ranks of a node.
        link_bytes_s: of each rank's link to the store and to other nodes, one way.
        store_bytes_s: of the store, all ranks together, one way.
        latency_s: of a message between two nodes, through TCP.
        detect_s: until a failure is seen and new processes are started.
        replicas: how many ranks have the same part of the state; they divide what is written.
    """

    ranks: int
    state_bytes: float
    cores_per_rank: float = 8
    per_node: int = 8
    link_bytes_s: float = 25e9
    store_bytes_s: float = 100e9
    latency_s: float = 20e-6
    detect_s: float = 5.0
    replicas: int = 1

    @property
    def crowd(self) -> float:
        """How many ranks share a core."""
        return max(1.0, 1 / self.cores_per_rank)

    @property
    def kept_bytes(self) -> float:
        """What a rank writes of a commit."""
        return self.state_bytes / self.ranks

    @property
    def held_bytes(self) -> float:
        """What a rank has in memory of the state."""
        return self.state_bytes * self.replicas / self.ranks


@dataclass(frozen=True, slots=True)
class CommitTimes:
    """Seconds of one commit: how long training waits, and until all is durable."""

    blocked_s: float
    durable_s: float
    stored_bytes: float


def draw_speed(draw: Random, *samples: Sequence[float]) -> float:
    """Return seconds per byte of parts that follow one another, for one rank."""
    return sum(sum(draw.choices(one, k=_DRAWS)) / _DRAWS for one in samples)


def share_link(
    starts_s: Sequence[float], sizes: Sequence[float], total_bytes_s: float, each_bytes_s: float
) -> list[float]:
    """Return when each transfer ends at a server that divides its bandwidth among those under way.

    All have got as many bytes since they began as ``served`` has grown meanwhile, so the next to
    end is the one with the smallest ``served`` at its end: a heap holds those.
    """
    arrivals = sorted(range(len(sizes)), key=lambda one: starts_s[one])
    under_way: list[tuple[float, int]] = []
    ends_s = [0.0] * len(sizes)
    now_s = served = 0.0
    at = 0
    while at < len(arrivals) or under_way:
        arrival_s = starts_s[arrivals[at]] if at < len(arrivals) else math.inf
        rate = min(each_bytes_s, total_bytes_s / max(len(under_way), 1))
        end_s = now_s + (under_way[0][0] - served) / rate if under_way else math.inf
        if end_s <= arrival_s:
            served, one = heapq.heappop(under_way)
            ends_s[one] = now_s = end_s
        else:
            served += (arrival_s - now_s) * rate if under_way else 0.0
            now_s = arrival_s
            heapq.heappush(under_way, (served + sizes[arrivals[at]], arrivals[at]))
            at += 1
    return ends_s


def serve_in_turn(arrivals_s: Sequence[float], service_s: Sequence[float]) -> float:
    """Return when a server that takes one request at a time has served all."""
    free_s = 0.0
    for arrival_s, one_s in sorted(zip(arrivals_s, service_s, strict=True)):
        free_s = max(free_s, arrival_s) + one_s
    return free_s


def simulate_commit(cluster: Cluster, parts: Parts, draw: Random) -> CommitTimes:
    """Return the times of one commit."""
    ranks, kept = range(cluster.ranks), cluster.kept_bytes
    copied_s = (kept * draw_speed(draw, parts.copy) + draw.choice(parts.capture) for _ in ranks)
    blocked_s = cluster.crowd * max(copied_s)
    stored = kept * sum(parts.stored) / len(parts.stored)
    encoded_s = [
        blocked_s + kept * draw_speed(draw, parts.hash, parts.encode) / cluster.cores_per_rank
        for _ in ranks
    ]
    sent_s = share_link(
        [blocked_s] * cluster.ranks,
        [stored] * cluster.ranks,
        cluster.store_bytes_s,
        cluster.link_bytes_s,
    )
    arrivals_s = [max(pair) for pair in zip(encoded_s, sent_s, strict=True)]
    told_s = serve_in_turn(arrivals_s, draw.choices(parts.share, k=cluster.ranks))
    chunks = cluster.state_bytes / (4 << 20)
    merge_s = chunks * draw_speed(draw, parts.merge)
    recorded_s = draw.choice(parts.settle) * cluster.crowd + draw.choice(parts.ref)
    return CommitTimes(blocked_s, told_s + merge_s + recorded_s, stored * cluster.ranks)


TIERS = ("memory", "neighbour", "local store", "remote store")
LOST_NODE = "neighbour"
"""The tier that a lost node needs, where ``replicate=1`` has put what it held."""


def simulate_recovery(cluster: Cluster, parts: Parts, tier: str, draw: Random) -> dict[str, float]:
    """Return the seconds of each stage from a failure to the next step.

    From memory a rank takes over what lies there, as it is, and hashes it. From a neighbour the
    ranks of one node come over the link of another. From a store what was stored is read, decoded and
    hashed; the disks of a node are as fast as this one.
    """
    ranks, held = range(cluster.ranks), cluster.held_bytes
    start_s = max(draw.choices(parts.start, k=cluster.ranks))
    requests = _RENDEZVOUS_REQUESTS * cluster.ranks
    meet_s = requests * draw_speed(draw, parts.rendezvous)
    meet_s += 2 * _EXCHANGES * (cluster.ranks - 1) * cluster.latency_s
    opened_s = max(draw.choices(parts.open, k=cluster.ranks)) * cluster.crowd
    stored = held * sum(parts.stored) / len(parts.stored)
    steps = (parts.copy, parts.hash) if tier in TIERS[:2] else (parts.decode, parts.hash)
    own_s = max(held * draw_speed(draw, *steps) for _ in ranks) / min(cluster.cores_per_rank, 8)
    moved_s = 0.0
    if tier == "neighbour":
        moved_s = held / cluster.link_bytes_s
    elif tier == "local store":
        moved_s = max(stored * cluster.per_node * draw_speed(draw, parts.read) for _ in ranks)
    elif tier == "remote store":
        sizes = [stored] * cluster.ranks
        ends = share_link([0.0] * cluster.ranks, sizes, cluster.store_bytes_s, cluster.link_bytes_s)
        moved_s = max(ends)
    return {
        "seen": cluster.detect_s,
        "process": start_s,
        "meet": meet_s,
        "open": opened_s,
        "state": max(own_s, moved_s),
    }
