"""The text of ``state.json``: what is no document of ours is refused before anything is built."""

import pytest

from mvc.errors import FormatError, UnsupportedError
from mvc.states import document as state_json
from mvc.states.document import KeptNode, encode_text, keep_text
from mvc.states.state import decode_state, encode_state
from support.cases import for_each


@for_each(
    "text",
    [
        b"", b"null", b"[]", b"{}", b'{"format": "mvc-state"}', b"\xff", b"NaN", b'{"a": 1, "a": 2}',
        b"[" * 100_000, b'{"x":' * 50_000, b"1" * 5000,
        b'{"format": "mvc-state", "version": 0, "files": [], "state": {}}',
        b'{"format": "mvc-state", "version": true, "files": [], "state": {}}',
        b'{"format": "mvc-state", "version": 1, "files": [1], "state": {}}',
        b'{"format": "mvc-state", "version": 1, "files": [], "state": []}',
        b'{"format": "mvc-state", "version": 1, "files": [], "state": {"$": "int", "hex": "0x1"}}',
        b'{"format": "mvc-state", "version": 1, "files": [], "state": {}, "more": 1}',
        b'{"format": "mvc-state", "version": 1, "files": [], "state": {}, "shared": [1]}',
    ],
)  # fmt: skip
def test_hostile_text(text):
    with pytest.raises(FormatError):
        decode_state(text, None, sizes={})


def test_limits_are_checked_before_parsing(monkeypatch):
    monkeypatch.setattr(state_json, "MAX_VALUES", 100)
    with pytest.raises(FormatError, match="values, the limit is 100"):
        decode_state(b"[" + b"1," * 200 + b"1]", None, sizes={})
    with pytest.raises(UnsupportedError, match="values, the limit is 100"):
        encode_state({"x": list(range(200))})
    monkeypatch.setattr(state_json, "MAX_TEXT_BYTES", 1000)
    with pytest.raises(FormatError, match="limit is 1,000"):
        decode_state(b" " * 2000, None, sizes={})


def test_a_newer_version_says_so():
    with pytest.raises(UnsupportedError, match="version 3"):
        decode_state(b'{"format": "mvc-state", "version": 3, "anything": 1}', None, sizes={})


def test_kept_text_is_the_text_at_any_depth():
    node = {"x": [1, {"y": ["z" * 100] * 3}], "flat": [1, 2]}
    kept = keep_text(node)
    assert isinstance(kept, KeptNode)
    for value in ([kept, 1], {"a": {"b": [kept]}}, kept, [kept, 1]):
        plain = encode_text(_unwrap(value))
        assert encode_text(value) == plain
        assert encode_text(value) == plain
    assert keep_text([1, 2]) == [1, 2]
    assert keep_text(kept) is kept


def _unwrap(value):
    if isinstance(value, KeptNode):
        return _unwrap(value.node)
    if isinstance(value, list):
        return [_unwrap(item) for item in value]
    return {k: _unwrap(v) for k, v in value.items()} if isinstance(value, dict) else value
