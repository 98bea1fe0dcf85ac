"""Values as text."""

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mvc.cli.output import printable
from mvc.cli.render import text as render
from mvc.cli.render.text import ratio_text


def test_sizes():
    for size_bytes, text in [
            (0, "0 B"), (1023, "1,023 B"), (1024, "1 KiB"), (1536, "1.5 KiB"), (10 * 1024, "10 KiB"),
            (102300, "99.9 KiB"), (102400, "100 KiB"), (1023 * 1024, "1 MiB"), (412 * 2**20, "412 MiB"),
            (3328599654, "3.1 GiB"), (5 * 2**40, "5 TiB"), (2**60, "1,024 PiB"),
        ]:  # fmt: skip
        assert render.size_text(size_bytes) == text


@given(st.integers(0, 2**62))
def test_sizes_have_few_digits(size_bytes):
    number, unit = render.size_text(size_bytes).split()
    assert unit == "PiB" or len(number.replace(",", "").replace(".", "")) <= 4


def test_counts_and_durations():
    assert render.count_text(1, "file") == "1 file"
    assert render.count_text(1234, "file") == "1,234 files"
    assert render.seconds_text(0.04) == "0.0 s"
    assert render.seconds_text(125) == "2 min 5 s"
    assert render.seconds_text(7261) == "2 h 1 min"


def test_dates():
    assert render.iso_date(0, 3600) == "1970-01-01T01:00:00+01:00"
    assert render.iso_date(1_700_000_000, -12600) == "2023-11-14T18:43:20-03:30"
    assert render.git_date(1_700_000_000, 0) == "Tue Nov 14 22:13:20 2023 +0000"
    assert render.git_date(1_701_600_000, 19800) == "Sun Dec 3 16:10:00 2023 +0530"


def test_shapes_and_numbers():
    assert render.shape_text("BF16", (4096, 14336)) == "BF16[4096, 14336]"
    assert render.shape_text("F32", ()) == "F32[]"
    assert render.number_text(12000) == "12,000"
    assert render.number_text(2.1130001) == "2.113"
    assert render.number_text(math.nan) == "nan"


@given(st.text(max_size=40), st.integers(3, 30))
def test_cut_names_fit(text, width):
    text = printable(text)
    cut = render.cut_middle(text, width)
    assert render.cell_width(cut) <= width
    assert cut == text or "…" in cut
    cut = render.cut_end(text, width)
    assert render.cell_width(cut) <= width
    assert cut == text or cut.endswith("…")


@pytest.mark.parametrize("width", [12, 16, 20, 27, 34])
@pytest.mark.parametrize(
    ("name", "numbers", "at_27"),
    [
        ("model.layers.17.self_attn.q_proj.weight", ["17"], "mod…s.17.…ttn.q_proj.weight"),
        (
            "model.layers.7.mlp.experts.103.up_proj.weight",
            ["7", "103"],
            "mo….7.…s.103.up_proj.weight",
        ),
    ],
)
def test_cut_names_keep_the_layer(name, numbers, at_27, width):
    cut = render.cut_middle(name, width)
    assert re.findall("[0-9]+", cut) == numbers
    assert cut.endswith("ht")
    assert render.cut_middle(name, 27) == at_27


def test_wide_signs_take_two_columns():
    assert render.cell_width("模型") == 4
    assert render.pad("模", 4) == "模  "
    assert render.pad("a", 3, ">") == "  a"
    assert render.columns([("模", "1"), ("abc", "22")], "<>") == [["模 ", " 1"], ["abc", "22"]]


def test_quoted_paths():
    assert render.quote_path("a/b.txt") == "a/b.txt"
    assert render.quote_path("a b") == '"a b"'
    assert render.quote_path('a"\n\x01\udcff') == '"a\\"\\n\\001\\377"'


def test_ratios():
    for ratio, text in [
        (0, "0.00 %"),
        (0.0004, "0.04 %"),
        (0.0341, "3.4 %"),
        (0.0996, "10 %"),
        (2.171, "217 %"),
    ]:
        assert ratio_text(ratio) == text
