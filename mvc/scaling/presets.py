"""Fabrics with a name, so that a figure that was claimed can be computed again."""

from __future__ import annotations

from dataclasses import dataclass

from mvc.scaling.fabric import Fabric, Link


@dataclass(frozen=True, slots=True)
class Preset:
    """A fabric, the bytes that each rank reduces, and what both are in words."""

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
