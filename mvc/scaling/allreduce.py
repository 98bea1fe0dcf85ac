"""How long an AllReduce takes, by the alpha-beta-gamma model.

A message of m bytes takes α + mβ: α is the latency of a link, β one over its bandwidth. Adding m bytes
to others takes mγ. A rank sends and receives at the same time, one message each per link. With p ranks,
n bytes on each and L = ⌈log₂ p⌉:

    ring              2(p−1)α + 2(p−1)/p·nβ + (p−1)/p·nγ
    tree              2L(α + nβ) + L·nγ
    double-tree       4Lα + 2nβ + 2√(8L·α·nβ) + nγ
    halving-doubling  2Lα + 2(p−1)/p·nβ + (p−1)/p·nγ
    torus-2d, -3d     2Σ(kᵢ−1)α + 2Sβ + Sγ
    hierarchical      ring of m ranks within a node on n bytes, ring of p/m nodes on n/m bytes

*ring*: reduce-scatter and all-gather around a ring (Patarasuk and Yuan, 2009, who prove its bandwidth
term to be the least possible). *tree*: a binomial tree to one rank and back, whole messages (Thakur,
Rabenseifner and Gropp, 2005). *double-tree*: two binary trees, each rank inner in at most one, with half
of the bytes each; the formula has the best number of blocks k = √(L·nβ/2α) in place of the whole number
of them that is computed here (Sanders, Speck and Träff, 2009; a reduction and a broadcast, one after
the other). *halving-doubling*: Rabenseifner's algorithm; unless p is a power of two, r = p − 2^⌊log₂ p⌋
ranks first hand what they have to others and get the result at the end: 3α + 2nβ + ½nγ more (Rabenseifner
and Träff, 2004). *torus*: rings in one dimension after the other, each on what the ones before have left
(the bucket algorithm of Jain and Sabharwal, 2010; in two dimensions Mikami et al., 2018). The bytes are
in d equal parts that begin in different dimensions, so that the links of all d are in use at once. S is
what the slowest part sends in a phase, summed over the phases of the reduce-scatter: (p−1)/p·n/d if all
dimensions are of the same length. *hierarchical*: reduce-scatter in each node, rings across nodes, one
for each rank of a node over a link of its own, all-gather in each node (BlueConnect: Cho et al., 2019).

Not modelled: contention, stragglers, protocols that trade bandwidth for latency, reductions in switches.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mvc.errors import UsageError
from mvc.scaling.fabric import Fabric, Link, check_fabric


@dataclass(frozen=True, slots=True)
class Prediction:
    """What one algorithm takes.

    Attributes:
        algorithm: its name.
        shape: the dimensions of a torus, or ranks per node × nodes; empty for others.
        latency_s: of all messages in a row.
        transfer_s: of their bytes.
        reduce_s: of the additions.
        bandwidth_used: the least time for the bytes on the links that it uses, over the whole time.
    """

    algorithm: str
    shape: tuple[int, ...]
    latency_s: float
    transfer_s: float
    reduce_s: float
    bandwidth_used: float

    @property
    def time_s(self) -> float:
        """The whole time."""
        return self.latency_s + self.transfer_s + self.reduce_s


@dataclass(frozen=True, slots=True)
class _Cost:
    """Seconds of messages, bytes and additions, and the least that the bytes can take."""

    latency_s: float
    transfer_s: float
    reduce_s: float
    least_s: float

    def predict(self, algorithm: str, shape: tuple[int, ...] = ()) -> Prediction:
        total_s = self.latency_s + self.transfer_s + self.reduce_s
        used = self.least_s / total_s if total_s else 1.0
        return Prediction(
            algorithm, shape, self.latency_s, self.transfer_s, self.reduce_s, min(used, 1.0)
        )


def predict_all(
    fabric: Fabric, size_bytes: float, algorithms: Sequence[str] = ()
) -> tuple[Prediction, ...]:
    """Return what each algorithm takes that the fabric allows, or those that are named.

    Raises:
        UsageError: the fabric makes no sense, or does not allow what is named.
    """
    check_fabric(fabric, size_bytes)
    unknown = [name for name in algorithms if name not in ALGORITHMS]
    if unknown:
        raise UsageError(
            f"{unknown[0]!r} is not an algorithm", hint=f"there are {', '.join(ALGORITHMS)}"
        )
    predictions = {name: predict(fabric, size_bytes) for name, predict in ALGORITHMS.items()}
    lacking = [name for name in algorithms if predictions[name] is None]
    if lacking:
        hint = "`per_node` makes levels, `dims` a torus"
        raise UsageError(f"{lacking[0]} needs links that are not stated", hint=hint)
    wanted = algorithms or predictions
    return tuple(
        prediction
        for name, prediction in predictions.items()
        if prediction is not None and name in wanted
    )


def _scatter_gather(ranks: int, size_bytes: float, link: Link, reduce_bytes_s: float) -> _Cost:
    """Return the cost of a ring: a reduce-scatter and an all-gather."""
    share = (ranks - 1) / ranks * size_bytes
    transfer_s = 2 * share / link.bandwidth_bytes_s
    return _Cost(2 * (ranks - 1) * link.latency_s, transfer_s, share / reduce_bytes_s, transfer_s)


def _least_s(fabric: Fabric, size_bytes: float) -> float:
    """Return the least time for the bytes over one link of each rank."""
    share = (fabric.ranks - 1) / fabric.ranks
    return 2 * share * size_bytes / fabric.link.bandwidth_bytes_s


def _ring(fabric: Fabric, size_bytes: float) -> Prediction:
    cost = _scatter_gather(fabric.ranks, size_bytes, fabric.link, fabric.reduce_bytes_s)
    return cost.predict("ring")


def _tree(fabric: Fabric, size_bytes: float) -> Prediction:
    levels = (fabric.ranks - 1).bit_length()
    cost = _Cost(
        2 * levels * fabric.link.latency_s,
        2 * levels * size_bytes / fabric.link.bandwidth_bytes_s,
        levels * size_bytes / fabric.reduce_bytes_s,
        _least_s(fabric, size_bytes),
    )
    return cost.predict("tree")


def _double_tree(fabric: Fabric, size_bytes: float) -> Prediction:
    """A broadcast of k blocks per tree takes 2L + 2k messages of n/2k bytes, a reduction as many."""
    levels = (fabric.ranks - 1).bit_length()
    latency_s, transfer_s = fabric.link.latency_s, size_bytes / fabric.link.bandwidth_bytes_s
    best = math.sqrt(levels * transfer_s / (2 * latency_s)) if latency_s else size_bytes / 2
    counts = {max(1, math.floor(best)), max(1, math.ceil(best))}
    blocks = min(counts, key=lambda k: (levels + k) * 2 * (latency_s + transfer_s / (2 * k)))
    messages = 4 * (levels + blocks)
    cost = _Cost(
        messages * latency_s,
        messages * transfer_s / (2 * blocks),
        size_bytes / fabric.reduce_bytes_s,
        _least_s(fabric, size_bytes),
    )
    return cost.predict("double-tree")


def _halving_doubling(fabric: Fabric, size_bytes: float) -> Prediction:
    whole = 1 << (fabric.ranks.bit_length() - 1)
    share = (whole - 1) / whole
    more = 0 if whole == fabric.ranks else 1
    messages = 2 * (whole.bit_length() - 1) + 3 * more
    cost = _Cost(
        messages * fabric.link.latency_s,
        2 * (share + more) * size_bytes / fabric.link.bandwidth_bytes_s,
        (share + more / 2) * size_bytes / fabric.reduce_bytes_s,
        _least_s(fabric, size_bytes),
    )
    return cost.predict("halving-doubling")


def _torus(fabric: Fabric, size_bytes: float, dimensions: int) -> Prediction | None:
    shape = next((shape for shape in fabric.tori if len(shape) == dimensions), None)
    if shape is None:
        return None
    sent = size_bytes / dimensions * sum(_slowest_parts(shape))
    cost = _Cost(
        2 * sum(length - 1 for length in shape) * fabric.link.latency_s,
        2 * sent / fabric.link.bandwidth_bytes_s,
        sent / fabric.reduce_bytes_s,
        _least_s(fabric, size_bytes) / dimensions,
    )
    return cost.predict(f"torus-{dimensions}d", shape)


def _slowest_parts(shape: Sequence[int]) -> list[float]:
    """Return for each phase of a reduce-scatter what share of a part its slowest ring sends."""
    left = [1.0] * len(shape)
    phases = []
    for phase in range(len(shape)):
        lengths = [shape[(first + phase) % len(shape)] for first in range(len(shape))]
        phases.append(
            max(share * (length - 1) / length for share, length in zip(left, lengths, strict=True))
        )
        left = [share / length for share, length in zip(left, lengths, strict=True)]
    return phases


def _hierarchical(fabric: Fabric, size_bytes: float) -> Prediction | None:
    per_node = fabric.per_node
    if per_node is None or not 1 < per_node < fabric.ranks:
        return None
    nodes, inside = fabric.ranks // per_node, fabric.inside or fabric.link
    low = _scatter_gather(per_node, size_bytes, inside, fabric.reduce_bytes_s)
    high = _scatter_gather(nodes, size_bytes / per_node, fabric.link, fabric.reduce_bytes_s)
    cost = _Cost(
        low.latency_s + high.latency_s,
        low.transfer_s + high.transfer_s,
        low.reduce_s + high.reduce_s,
        max(low.least_s, high.least_s),
    )
    return cost.predict("hierarchical", (per_node, nodes))


ALGORITHMS: dict[str, Callable[[Fabric, float], Prediction | None]] = {
    "ring": _ring,
    "tree": _tree,
    "double-tree": _double_tree,
    "halving-doubling": _halving_doubling,
    "torus-2d": lambda fabric, size_bytes: _torus(fabric, size_bytes, 2),
    "torus-3d": lambda fabric, size_bytes: _torus(fabric, size_bytes, 3),
    "hierarchical": _hierarchical,
}
