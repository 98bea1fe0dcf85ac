"""Names are given out once each, and nothing past the caps gets through."""

import pytest

from mvc.checkpoints import limits
from mvc.checkpoints.limits import Names, check_limit, checked_layout
from mvc.errors import FormatError
from mvc.formats.layout import single_tensor


def segments(*names):
    """Return one-byte tensors of these names behind one another."""
    return [single_tensor(name, "U8", (1,), start) for start, name in enumerate(names)]


def test_taken_names_get_the_first_free_number():
    names = Names({"a", "a~2"})
    assert [names.give(name) for name in ("a", "a", "b", "a~3", "b")] == [
        "a~3", "a~4", "b", "a~3~2", "b~2",
    ]  # fmt: skip


def test_names_that_differ_by_case_only():
    assert Names({"model"}, fold_case=True).give("Model") == "Model~2"
    assert Names({"model"}).give("Model") == "Model"
    assert Names({"a"}, mark="#").give("a") == "a#2"


def test_a_limit_is_the_last_that_is_allowed():
    check_limit("it has", 5, "parts", 5)
    with pytest.raises(FormatError, match=r"^it has 6,000 parts, the limit is 5,000$"):
        check_limit("it has", 6000, "parts", 5000)


def test_number_and_size_of_names(monkeypatch):
    assert checked_layout("x", 2, segments("a", "b")).size_bytes == 2
    with pytest.raises(FormatError, match="not unicode text"):
        checked_layout("x", 1, segments("a\ud800"))
    monkeypatch.setattr(limits, "MAX_NAME_BYTES", 3)
    checked_layout("x", 1, segments("äb"))
    with pytest.raises(FormatError, match="has 4 bytes, the limit is 3"):
        checked_layout("x", 1, segments("ää"))
    monkeypatch.setattr(limits, "MAX_NAMES_BYTES", 5)
    with pytest.raises(FormatError, match="together have 6 bytes"):
        checked_layout("x", 2, segments("abc", "def"))
    monkeypatch.setattr(limits, "MAX_TENSORS", 1)
    with pytest.raises(FormatError, match="2 tensors, the limit is 1"):
        checked_layout("x", 2, segments("a", "b"))


def test_a_layout_covers_its_file():
    with pytest.raises(FormatError):
        checked_layout("x", 1, segments("a", "b"))
