"""What connects the ranks of a run: links, nodes, tori; and fabrics with a name."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from mvc.errors import UsageError

MAX_RANKS = 10**7
DIMENSIONS = (2, 3)
"""Of the tori that are modelled."""


@dataclass(frozen=True, slots=True)
class Link:
    """A link in one direction.

    Attributes:
        latency_s: seconds until the first byte of a message is there, overheads included.
        bandwidth_bytes_s: bytes per second.
    """

    latency_s: float
    bandwidth_bytes_s: float


@dataclass(frozen=True, slots=True)
class Fabric:
    """What connects the ranks.

    Attributes:
        ranks: how many there are.
        link: between two ranks; of a ring over nodes, the slowest on the way.
        reduce_bytes_s: bytes that a rank adds per second; infinite if that costs nothing.
        per_node: ranks of a node, or None if there is no such level.
        inside: a link within a node.
        tori: the shapes of the ranks as a torus, one of 2 or 3 dimensions each.
    """

    ranks: int
    link: Link
    reduce_bytes_s: float = math.inf
    per_node: int | None = None
    inside: Link | None = None
    tori: tuple[tuple[int, ...], ...] = ()


def check_fabric(fabric: Fabric, size_bytes: float) -> None:
    """Check that a fabric makes sense; or UsageError."""
    if not 2 <= fabric.ranks <= MAX_RANKS:  # noqa: PLR2004  one rank has nothing to reduce
        raise UsageError(f"an AllReduce takes 2 to {MAX_RANKS:,} ranks, not {fabric.ranks:,}")
    links = [link for link in (fabric.link, fabric.inside) if link is not None]
    for name, value in [("bytes", size_bytes)] + [
        ("bandwidth", x.bandwidth_bytes_s) for x in links
    ]:
        if not 0 < value < math.inf:
            raise UsageError(f"{name} must be a positive number, not {value:g}")
    for link in links:
        if not 0 <= link.latency_s < math.inf:
            raise UsageError(f"the latency must be a time, not {link.latency_s:g} s")
    if not fabric.reduce_bytes_s > 0:
        raise UsageError(f"the speed of reducing must be positive, not {fabric.reduce_bytes_s:g}")
    per_node = fabric.per_node
    if per_node is not None and (per_node < 1 or fabric.ranks % per_node):
        raise UsageError(f"{fabric.ranks:,} ranks are not whole nodes of {per_node:,}")
    for shape in fabric.tori:
        check_torus(fabric.ranks, shape)


def check_torus(ranks: int, shape: Sequence[int]) -> None:
    """Check that a torus has as many places as there are ranks; or UsageError."""
    text = "x".join(map(str, shape))
    if len(shape) not in DIMENSIONS or min(shape) < 2:  # noqa: PLR2004  links need two ends
        raise UsageError(
            f"{text} is not a torus of 2 or 3 dimensions, each of 2 or more", hint='such as "8x8x8"'
        )
    if math.prod(shape) != ranks:
        raise UsageError(f"a torus of {text} has {math.prod(shape):,} ranks, not {ranks:,}")


def find_torus(ranks: int, dimensions: int) -> tuple[int, ...] | None:
    """Return the torus of a number of ranks that is nearest to a cube, longest first, or None."""
    if dimensions == 1:
        return (ranks,) if ranks > 1 else None
    for size in range(round(ranks ** (1 / dimensions)) + 1, 1, -1):
        if ranks % size == 0 and size**dimensions <= ranks:
            rest = find_torus(ranks // size, dimensions - 1)
            if rest is not None:
                return tuple(sorted((*rest, size), reverse=True))
    return None


@dataclass(frozen=True, slots=True)
class Preset:
    """A fabric that some claim names, the bytes that each rank reduces, and what both are in words."""

    fabric: Fabric
    size_bytes: int
    about: str


# "A 3-D torus takes an AllReduce from 12 ms to 3.2 ms" says neither ranks nor links. With 512 ranks as a
# cube, the times of the ring and the torus leave one choice: α = 2.7 µs and n/bandwidth = 4.6 ms.
PRESETS = {
    "founding": Preset(
        Fabric(512, Link(2.7e-6, 50e9), tori=((32, 16), (8, 8, 8))),
        232_000_000,
        "512 devices as a torus of 8x8x8, links of 50 GB/s in each direction, 58 million gradients in "
        "fp32; the ring uses one link of a device at a time, the 3-D torus three",
    )
}
