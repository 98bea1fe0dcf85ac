"""The simulation as one picture: ``python -m benchmarks.scale.picture RESULTS.json docs/images/scale.svg``.

Left: useful time over the interval of commits, at two rates of failures. Right: from a failure to
the next step, by where the state comes from.
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

_WIDTH, _HEIGHT, _MARGIN, _GAP = 960, 400, 60, 90
_COLOURS = ("#4269d0", "#efb118", "#ff725c", "#3ca951")
_DASHES = ("", 'stroke-dasharray="6 6"')  # lines may lie on each other
_SHOWN = ("256", "10240")
_FONT = 'font-family="system-ui, sans-serif" font-size="13" fill="#888"'


class Axes:
    """One plot: the place it has, and how values become points in it."""

    def __init__(
        self, left: float, x: tuple[float, float], y: tuple[float, float], *, is_log_y: bool
    ) -> None:
        self.left, self.width = left, (_WIDTH - 2 * _MARGIN - _GAP) / 2
        self.top, self.height = _MARGIN, _HEIGHT - 2 * _MARGIN
        self._x = _scale(*x, is_log=True)
        self._y = _scale(*y, is_log=is_log_y)

    def point(self, x: float, y: float) -> tuple[float, float]:
        """Return where a pair of values is."""
        return (
            self.left + self._x(x) * self.width,
            self.top + (1 - self._y(y)) * self.height,
        )

    def draw(
        self, title: str, x_name: str, x_ticks: Sequence[float], y_ticks: Sequence[float]
    ) -> Iterator[str]:
        """Yield title, frame and ticks."""
        yield f'<text x="{self.left}" y="{self.top - 22}" {_FONT}>{title}</text>'
        for y in y_ticks:
            height = self.point(x_ticks[0], y)[1]
            end = self.left + self.width
            yield f'<path d="M{self.left} {height:.1f}H{end:.1f}" stroke="#8884"/>'
            yield f'<text x="{self.left - 8}" y="{height + 4:.1f}" text-anchor="end" {_FONT}>{y:g}</text>'
        below = self.top + self.height
        for x in x_ticks:
            at = self.point(x, y_ticks[0])[0]
            yield f'<text x="{at:.1f}" y="{below + 20}" text-anchor="middle" {_FONT}>{x:,g}</text>'
        middle = self.left + self.width / 2
        yield f'<text x="{middle}" y="{below + 42}" text-anchor="middle" {_FONT}>{x_name}</text>'

    def line(self, pairs: Sequence[tuple[float, float]], name: str, number: int) -> Iterator[str]:
        """Yield a line and its name."""
        colour = _COLOURS[number]
        path = "L".join("{:.1f} {:.1f}".format(*self.point(*pair)) for pair in pairs)
        yield f'<path d="M{path}" fill="none" stroke="{colour}" stroke-width="2" {_DASHES[number % 2]}/>'
        at = self.left + self.width - 8
        style = _FONT.replace("#888", colour)
        height = self.top + self.height - 12 - 18 * number
        yield f'<text x="{at}" y="{height}" text-anchor="end" {style}>{name}</text>'


def _scale(low: float, high: float, *, is_log: bool) -> Callable[[float], float]:
    if not is_log:
        return lambda value: (value - low) / (high - low)
    return lambda value: math.log(value / low) / math.log(high / low)


def draw_picture(entry: dict[str, Any]) -> str:
    """Return the picture of what was simulated."""
    sizes = {str(ranks): one for ranks, one in entry["sizes"].items()}
    parts = [*_draw_useful(sizes), *_draw_recovery(sizes)]
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}">'
    return "\n".join([head, *parts, "</svg>", ""])


def _draw_useful(sizes: dict[str, Any]) -> Iterator[str]:
    axes = Axes(_MARGIN, (5, 20_000), (96, 100), is_log_y=False)
    title = "useful time, %, by ranks and failure rate"
    yield from axes.draw(title, "seconds between commits", (10, 100, 1000, 10_000), range(96, 101))
    shown = [(ranks, "Llama 3") for ranks in _SHOWN] + [(_SHOWN[-1], "Meta")]
    for number, (ranks, rate) in enumerate(shown):
        useful = sizes.get(ranks, {"rates": {}})["rates"].get(rate, {"useful": ()})["useful"]
        pairs = [(x, 100 * y) for x, y in useful if 5 <= x <= 20_000 and y >= 0.96]
        if pairs:
            yield from axes.line(pairs, f"{int(ranks):,}, {rate}", number)


def _draw_recovery(sizes: dict[str, Any]) -> Iterator[str]:
    ranks = [int(one) for one in sizes]
    axes = Axes(
        _MARGIN + (_WIDTH - 2 * _MARGIN + _GAP) / 2, (ranks[0], ranks[-1]), (1, 120), is_log_y=True
    )
    title = "seconds from a failure to the next step, by tier"
    yield from axes.draw(title, "ranks", (256, 1024, 4096), (1, 3, 10, 30, 100))
    for number, tier in enumerate(next(iter(sizes.values()))["recovery_s"]):
        pairs = [(int(one), found["recovery_s"][tier]) for one, found in sizes.items()]
        yield from axes.line(pairs, tier, number)


def main() -> None:
    """Draw the picture of the results in a file."""
    source, target = map(Path, sys.argv[1:])
    target.write_text(draw_picture(json.loads(source.read_text())["scale"]))


if __name__ == "__main__":
    main()
