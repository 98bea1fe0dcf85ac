"""The links that options of ``scale allreduce`` state."""

from __future__ import annotations

import re
from dataclasses import astuple
from typing import TYPE_CHECKING, TypeVar

from mvc.cli.parameters import CommandUsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from mvc.scaling.fabric import Fabric, Link

    Speed = tuple[float | None, float | None]
    """Latency and bandwidth, as far as they are stated."""

_Number = TypeVar("_Number", int, float)
_SHAPE = re.compile(r"[0-9]{1,8}(x[0-9]{1,8}){1,2}", re.ASCII)


def make_fabric(
    preset: str | None,
    ranks: int | None,
    size_bytes: float | None,
    link: Speed,
    inside: Speed,
    per_node: int | None,
    dims: Sequence[str],
) -> tuple[Fabric, float]:
    """Return the fabric and the bytes that are stated; those of a preset where nothing is."""
    from mvc.scaling.fabric import Fabric, Link
    from mvc.scaling.presets import PRESETS

    if preset is not None and preset not in PRESETS:
        raise CommandUsageError(f"{preset!r} is not a preset; there is {', '.join(PRESETS)}")
    if preset is None:
        ranks, size_bytes = _need("ranks", ranks), _need("bytes", size_bytes)
        outer = Link(_need("latency", link[0]), _need("bandwidth", link[1]))
        tori: tuple[tuple[int, ...], ...] = ()
    else:
        known, base = PRESETS[preset], PRESETS[preset].fabric
        ranks = base.ranks if ranks is None else ranks
        size_bytes = known.size_bytes if size_bytes is None else size_bytes
        outer = Link(*_fill(link, base.link))
        tori = base.tori if ranks == base.ranks else ()
    if per_node is None and inside != (None, None):
        raise CommandUsageError("--inside-latency and --inside-bandwidth need --per-node")
    node = None if per_node is None else Link(*_fill(inside, outer))
    tori = tuple(_parse_shape(text, ranks) for text in dims) or tori
    return Fabric(ranks, outer, per_node=per_node, inside=node, tori=tori), size_bytes


def _need(name: str, value: _Number | None) -> _Number:
    if value is None:
        raise CommandUsageError(f"allreduce needs --{name}, or a --preset")
    return value


def _fill(stated: Speed, known: Link) -> Iterator[float]:
    """Yield latency and bandwidth; those of a known link where nothing is stated."""
    for one, other in zip(stated, astuple(known), strict=True):
        yield other if one is None else one


def _parse_shape(text: str, ranks: int) -> tuple[int, ...]:
    """Return a shape that is stated; of a number of dimensions, the one nearest to a cube."""
    from mvc.scaling.fabric import find_torus

    if text in ("2", "3"):
        shape = find_torus(ranks, int(text))
        if shape is None:
            raise CommandUsageError(f"{ranks:,} ranks are no torus of {text} dimensions")
        return shape
    if not _SHAPE.fullmatch(text):
        raise CommandUsageError(f"{text[:80]!r} is not a torus such as 8x8x8 or 16x32")
    return tuple(map(int, text.split("x")))
