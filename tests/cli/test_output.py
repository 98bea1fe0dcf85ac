"""The output streams: nothing that a terminal obeys, and JSON that every parser reads."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from mvc.cli.output import json_ready, printable


@given(st.text())
def test_printable_text_holds_nothing_that_a_terminal_obeys(text):
    shown = printable(text)
    shown.encode()
    assert not any(ord(sign) < 32 or 0x7F <= ord(sign) < 0xA0 for sign in shown)
    assert printable(shown) == shown


def test_printable_shows_what_it_was():
    assert printable("plain ü 模") == "plain ü 模"
    assert printable("a\x1b[0m\udcff") == "a\\x1b[0m\\xff"
    assert printable("\u202e") == "\\u202e"


def test_json_has_no_numbers_that_json_lacks():
    value = {"a": math.inf, "b": (1, -math.inf), "c": [{"d": math.nan}], "e": 1.5}
    assert json_ready(value) == {"a": "inf", "b": [1, "-inf"], "c": [{"d": "nan"}], "e": 1.5}
