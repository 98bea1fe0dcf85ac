"""The overview as PNG."""

from __future__ import annotations

import io
import sys
from dataclasses import replace

import pytest

from mvc import UnsupportedError
from mvc.cli.pages.colours import LIGHT
from mvc.cli.pages.overview import Side, Verdict, overview_of_diff
from mvc.cli.pages.picture import check_can_draw, edge_texts, picture_bytes

Image = pytest.importorskip("PIL.Image")


def _colours(data):
    image = Image.open(io.BytesIO(data))
    assert image.format == "PNG"
    assert image.width == 1600
    return {f"#{red:02x}{green:02x}{blue:02x}" for _, (red, green, blue) in image.getcolors(2**24)}


def test_it_shows_the_overview(fields):
    colours = _colours(picture_bytes(overview_of_diff(fields)))
    assert {LIGHT[name] for name in ("ink", "quiet", "accent", "bad", "same", "empty")} <= colours


def test_what_is_not_there_is_not_drawn(fields):
    overview = overview_of_diff(fields)
    plain = replace(overview, heat=None, histograms=[], cards=[], verdicts=[])
    colours = _colours(picture_bytes(plain))
    assert not colours & {LIGHT["bad"], LIGHT["same"], LIGHT["accent"]}
    assert LIGHT["ink"] in colours


def test_long_verdicts_take_several_lines(fields):
    overview = overview_of_diff(fields)
    short, long = (
        replace(overview, verdicts=[Verdict("note", text)]) for text in ("word", "word " * 60)
    )
    heights = [Image.open(io.BytesIO(picture_bytes(one))).height for one in (short, long)]
    assert heights[0] + 60 < heights[1] < heights[0] + 200


def test_names_of_any_kind_and_number(fields):
    overview = overview_of_diff(fields)
    side = Side("\u202e\u4e2d" * 9_000, ["\ud800\x1b[31m", "x" * 10_000])
    verdicts = [Verdict("bad", f"{number} \u03c3 \U0001f525") for number in range(400)]
    data = picture_bytes(replace(overview, sides=[side, side], verdicts=verdicts))
    assert Image.open(io.BytesIO(data)).height <= 8_000


def test_an_axis_has_as_many_digits_as_tell_its_numbers_apart():
    assert edge_texts([None, 0.31, 0.32, None]) == ["", "0.31", "0.32", ""]
    assert edge_texts([0.5, 0.50001, 0.50002]) == ["0.5", "0.50001", "0.50002"]
    assert edge_texts([0.25, 0.25, 0.5]) == ["0.25", "0.25", "0.5"]


def test_without_pillow(monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(UnsupportedError, match="Pillow, which is not installed") as caught:
        check_can_draw()
    assert "mvc-models[png]" in caught.value.hint
