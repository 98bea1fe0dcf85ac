"""The overview of a report as one PNG."""

from __future__ import annotations

import io
from bisect import bisect
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from mvc.cli.output import printable
from mvc.cli.pages.colours import LIGHT, LIGHT_RAMP, ramp_colour
from mvc.cli.render.text import ratio_text
from mvc.errors import UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from PIL.ImageDraw import ImageDraw
    from PIL.ImageFont import FreeTypeFont, ImageFont

    from mvc.cli.pages.heat import HeatMap
    from mvc.cli.pages.overview import Card, Histogram, Overview

_WIDTH, _MARGIN, _HIGHEST = 1600, 48, 8000
_TITLE, _HEAD, _TEXT, _SMALL = 40, 26, 22, 17
_ROW, _CELL_MOST = 24, 56
_CARDS_IN_ROW = 5
_CHART = 300
_SERIES = (LIGHT["accent"], LIGHT["second"])
# What Pillow's own font lacks; any other sign it lacks is escaped.
_ASCII = str.maketrans({
    "σ": "sigma", "Σ": "sum", "Δ": "delta", "→": "->", "–": "-", "−": "-", "≈": "~", "×": "x", "·": "-", "‖": "|", "…": "...",
})  # fmt: skip


def check_can_draw() -> None:
    """Check that Pillow is installed.

    Raises:
        UnsupportedError: it is not.
    """
    if find_spec("PIL") is None:
        raise UnsupportedError(
            "PNG output needs Pillow, which is not installed",
            hint='pip install "mvc-models[png]"; a page (--html) needs nothing else',
        )


def picture_bytes(overview: Overview) -> bytes:
    """Return the overview of a report as PNG, on a light ground."""
    from PIL import Image, ImageDraw

    image = Image.new("RGB", (_WIDTH, _HIGHEST), LIGHT["ground"])
    sheet = _Sheet(ImageDraw.Draw(image))
    sheet.head(overview)
    if overview.heat is not None:
        sheet.heat(overview.heat, overview.heat_title)
    for histogram in overview.histograms:
        sheet.histogram(histogram)
    file = io.BytesIO()
    image.crop((0, 0, _WIDTH, min(sheet.y + _MARGIN, _HIGHEST))).save(file, "PNG")
    return file.getvalue()


class _Sheet:
    """Draws from top to bottom; ``y`` is where the next thing goes."""

    def __init__(self, draw: ImageDraw) -> None:
        self._draw = draw
        self._fonts: dict[int, FreeTypeFont | ImageFont] = {}
        self.y = _MARGIN

    def head(self, overview: Overview) -> None:
        """Draw title, sides, verdicts and figures."""
        self._line(overview.title, _TITLE, LIGHT["ink"])
        for side in overview.sides:
            self._line(" - ".join([side.label, *side.lines]), _TEXT, LIGHT["quiet"])
        self.y += 16
        for verdict in overview.verdicts:
            colour = LIGHT.get(verdict.level, LIGHT["accent"])
            self._draw.ellipse((_MARGIN, self.y + 8, _MARGIN + 10, self.y + 18), colour)
            self._paragraph(verdict.text, _TEXT, LIGHT["ink"], _MARGIN + 24)
        self.y += 16
        for at in range(0, len(overview.cards), _CARDS_IN_ROW):
            self._cards(overview.cards[at : at + _CARDS_IN_ROW])

    def _cards(self, cards: Sequence[Card]) -> None:
        width = (_WIDTH - 2 * _MARGIN) // _CARDS_IN_ROW
        for place, card in enumerate(cards):
            left = _MARGIN + place * width
            colour = LIGHT.get(card.level or "ink", LIGHT["ink"])
            self._text(card.name, _SMALL, LIGHT["quiet"], left, self.y, width - 16)
            self._text(card.figure, _HEAD, colour, left, self.y + 22, width - 16)
            self._text(card.remark or "", _SMALL, LIGHT["quiet"], left, self.y + 54, width - 16)
        self.y += 88

    def heat(self, heat: HeatMap, title: str) -> None:
        """Draw the heat map and its scale."""
        self._line(title, _HEAD, LIGHT["ink"])
        first = 0 if any(cell.column == 0 for cell in heat.cells) else 1
        width = max((self._font(_SMALL).getlength(_plain(kind)) for kind in heat.kinds), default=0)
        left = _MARGIN + min(width + 20, _WIDTH / 3)
        columns = len(heat.columns) - first
        step = min((_WIDTH - _MARGIN - left) / max(columns, 1), _CELL_MOST)
        for row, kind in enumerate(heat.kinds):
            self._text(
                kind, _SMALL, LIGHT["ink"], _MARGIN, self.y + row * _ROW, left - _MARGIN - 12
            )
        for cell in heat.cells:
            x, y = left + (cell.column - first) * step, self.y + cell.kind * _ROW
            fill: Any = {"broken": LIGHT["bad"], "same": LIGHT["same"]}.get(cell.state)
            if cell.state == "changed":
                fill = ramp_colour(LIGHT_RAMP, cell.shade or 0.0)
            self._draw.rectangle((x, y, x + step - 3, y + _ROW - 3), fill or LIGHT["empty"])
            sign = {"broken": "!", "unmeasured": "x", "added": "+", "removed": "-"}.get(
                cell.state, ""
            )
            colour = LIGHT["on-accent" if cell.state == "broken" else "ink"]
            self._text(sign, _SMALL, colour, x + step / 2 - 6, y, step)
        self.y += len(heat.kinds) * _ROW
        names = heat.columns[first:]
        every = -(-columns // max(int(columns * step // 56), 1))
        for place in range(1 - first, columns, every):
            name = names[place]
            self._text(name, _SMALL, LIGHT["quiet"], left + place * step + 4, self.y, every * step)
        self.y += 26
        if len(heat.stacks) > 1:
            self._stacks(heat, left + (1 - first) * step, step)
        self.y += 8
        self._scale(heat, left)

    def _stacks(self, heat: HeatMap, x: float, step: float) -> None:
        for name, count in heat.stacks:
            self._draw.line((x, self.y, x + count * step - 6, self.y), LIGHT["empty"], 2)
            self._text(name, _SMALL, LIGHT["quiet"], x, self.y + 3, count * step - 6)
            x += count * step
        self.y += 26

    def _scale(self, heat: HeatMap, left: float) -> None:
        low, high = (f"{end:.2g}" for end in heat.span)
        self._text(low, _SMALL, LIGHT["quiet"], left, self.y, 90)
        left += 20
        for at in range(240):
            colour = ramp_colour(LIGHT_RAMP, at / 239)
            self._draw.line((left + 60 + at, self.y + 3, left + 60 + at, self.y + 18), colour)
        rest = f"{high}     + added   - removed   x no figures   ! NaN or Inf   pale: unchanged"
        self._text(rest, _SMALL, LIGHT["quiet"], left + 312, self.y, 800)
        self.y += 56

    def histogram(self, histogram: Histogram) -> None:
        """Draw a histogram; several series stand side by side."""
        self._line(histogram.title, _HEAD, LIGHT["ink"])
        self.y += 8
        left, width = _MARGIN + 90, _WIDTH - 2 * _MARGIN - 90
        shares = [[count / (sum(one.counts) or 1) for count in one.counts] for one in histogram.series]  # fmt: skip
        highest = max((max(row, default=0.0) for row in shares), default=0.0) or 1.0
        base, step = self.y + _CHART, width / max(len(histogram.edges) - 1, 1)
        for share in (0.0, highest / 2, highest):
            y = base - share / highest * _CHART
            self._draw.line((left, y, left + width, y), LIGHT["line"])
            text = ratio_text(share) if share else "0 %"
            self._text(text, _SMALL, LIGHT["quiet"], _MARGIN, y - 10, 84)
        bar = step / len(shares)
        for at, (row, colour) in enumerate(zip(shares, _SERIES, strict=False)):
            for place, share in enumerate(row):
                x, top = left + place * step + at * bar, base - share / highest * _CHART
                if share:
                    self._draw.rectangle((x + 1, min(top, base - 2), x + bar, base), colour)
        every = -(-len(histogram.edges) // 12)
        texts = edge_texts(histogram.edges)
        for place in range(0, len(texts), every):
            text = texts[place]
            self._text(text, _SMALL, LIGHT["quiet"], left + place * step - 20, base + 8, 120)
        self.y = base + 34
        self._line(histogram.axis, _SMALL, LIGHT["quiet"])
        for one, colour in zip(histogram.series, _SERIES, strict=False):
            if one.name:
                self._line(one.name, _SMALL, colour)
        self.y += 16

    def _paragraph(self, text: str, size: int, colour: str, left: float) -> None:
        """Draw as many lines as a text needs."""
        lines, room = [""], _WIDTH - _MARGIN - left
        for word in _plain(text).split(" "):
            longer = f"{lines[-1]} {word}".strip()
            if lines[-1] and self._font(size).getlength(longer) > room:
                lines.append(word)
            else:
                lines[-1] = longer
        for line in lines:
            self._line(line, size, colour, left)

    def _line(self, text: str, size: int, colour: str, left: float = _MARGIN) -> None:
        self._text(text, size, colour, left, self.y, _WIDTH - _MARGIN - left)
        self.y += round(size * 1.45)

    def _text(self, text: str, size: int, colour: str, x: float, y: float, width: float) -> None:
        """Draw one line, cut to so many pixels."""
        plain = _plain(text)
        font = self._font(size)
        if font.getlength(plain) > width:
            room = width - font.getlength("...")
            ends = range(1, len(plain))
            plain = plain[: bisect(ends, room, key=lambda end: font.getlength(plain[:end]))] + "..."
        self._draw.text((x, y), plain, colour, font)

    def _font(self, size: int) -> FreeTypeFont | ImageFont:
        from PIL.ImageFont import load_default

        if size not in self._fonts:
            self._fonts[size] = load_default(size)
        return self._fonts[size]


def edge_texts(edges: Sequence[float | None]) -> list[str]:
    """Return numbers of an axis with as many digits as tell them apart, two or more."""
    texts: list[str] = []
    for digits in range(2, 10):
        texts = ["" if edge is None else f"{edge:.{digits}g}" for edge in edges]
        if len({*texts}) == len({*edges}):
            break
    return texts


def _plain(text: str) -> str:
    return printable(text[:400]).translate(_ASCII).encode("ascii", "backslashreplace").decode()
