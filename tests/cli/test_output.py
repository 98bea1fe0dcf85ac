"""The output streams: nothing that a terminal obeys, and JSON that every parser reads."""

import json
import math
from types import SimpleNamespace

from hypothesis import given
from hypothesis import strategies as st

from mvc.cli.output import Output, Shown, json_ready, json_text, pick, printable


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


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.tuples(inner) | st.dictionaries(st.text(), inner),
)


@given(_JSON)
def test_json_text_means_its_value(value):
    assert json.loads(json_text(value)) == json_ready(value)


def test_json_has_a_line_for_each_row_however_much_is_in_it():
    rows = [{"name": f"w.{number}", "statistics": {"old": {"nan": 0}}} for number in range(9)]
    lines = json_text({"total": {"sigma": 0.5, "old": {"nan": 0}}, "tensors": rows}).splitlines()
    assert lines[:5] == ["{", '  "total": {', '    "sigma": 0.5,', '    "old": {"nan": 0}', "  },"]
    assert [json.loads(line.removesuffix(",")) for line in lines[6:-2]] == rows


def test_attributes_are_picked_by_name_by_place_and_from_what_is_inside():
    ref = SimpleNamespace(name="main", old=None)
    value = SimpleNamespace(url="u", commit=SimpleNamespace(id="c"), refs=(ref, ref), head=None)
    picked = pick(value, "url id=commit.id refs(name was=old) head(name)")
    main = {"name": "main", "was": None}
    assert picked == {"url": "u", "id": "c", "refs": [main, main], "head": None}


def test_an_answer_is_json_or_else_text_unless_quiet(capsys):
    for shown, said in (
        (Shown(), "text\n"), (Shown(as_json=True), '{\n  "a": 1\n}\n'), (Shown(quiet=True), ""),
        (Shown(quiet=True, as_json=True), '{\n  "a": 1\n}\n'),
    ):  # fmt: skip
        for fields in ({"a": 1}, lambda: {"a": 1}):
            shown.answer(fields, Output.line, "text")
            assert capsys.readouterr().out == said
    Shown(quiet=True).aloud().answer(None, Output.line, "text")
    assert capsys.readouterr().out == "text\n"
