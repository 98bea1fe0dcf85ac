"""Events are read one by one, and whatever is wrong with a file is one clear error."""

import gzip
import io
import json
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mvc.errors import FormatError, MvcError, NotFoundError, UsageError
from mvc.tracing import stream
from mvc.tracing.stream import read_events

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)  # fmt: skip


def read(path):
    facts = {}
    return list(read_events(str(path), facts)), facts


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("traces") / "trace.json"


@given(
    st.lists(values, max_size=8),
    st.dictionaries(st.text().filter("traceEvents".__ne__), values),
    st.integers(1, 9),
    st.booleans(),
    st.sampled_from([None, 1]),
)
def test_any_document_reads_as_json_does(place, events, facts, window, is_packed, indent):
    text = json.dumps({"a": 1, "traceEvents": events, **facts}, indent=indent, ensure_ascii=False)
    data = text.encode("utf-8", "replace")
    wanted = json.loads(data.decode())
    place.write_bytes(gzip.compress(data, 1) if is_packed else data)
    before, stream._WINDOW_BYTES = stream._WINDOW_BYTES, window
    try:
        found, told = read(place)
    finally:
        stream._WINDOW_BYTES = before
    assert found == wanted.pop("traceEvents")
    assert told == wanted


def test_a_bare_list_is_a_trace(tmp_path):
    (tmp_path / "t").write_text('[{"ph": "X"}, 12]\n')
    assert read(tmp_path / "t") == ([{"ph": "X"}, 12], {})


WHOLE = json.dumps({"schemaVersion": 1, "traceEvents": [{"name": "a", "ts": 12.5}, {"ts": 3}]})


@pytest.mark.parametrize("length", range(len(WHOLE)))
def test_a_trace_cut_off_anywhere_says_so(tmp_path, length):
    (tmp_path / "t.json").write_text(WHOLE[:length])
    with pytest.raises(
        FormatError, match=r"t\.json' is (cut off|damaged or cut off|empty|no Chrome)"
    ):
        read(tmp_path / "t.json")


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", "is empty"),
        (b"hello", "is not a Chrome trace"),
        (b"\x89PNG\r\n", "is not a Chrome trace"),
        (b"{}", "has no list 'traceEvents'"),
        (b'{"traceEvents": 5}', "has no list 'traceEvents'"),
        (b'{"traceEvents": [NaN]}', "NaN is not JSON"),
        (b'{"traceEvents": [' + b"[" * 100_000, "nested too deeply"),
        (b'{"traceEvents": [1 2]}', "is damaged"),
        (b'{"traceEvents": [' + b"9" * 5000 + b"]}", "is damaged"),
        (b"\x1f\x8bnonsense", "is damaged"),
        (gzip.compress(WHOLE.encode(), mtime=0)[:-9], "is damaged"),
        (gzip.compress(WHOLE.encode(), mtime=0)[:-5] + b"12345", "is damaged"),
    ],
)
def test_what_is_no_trace_is_named(tmp_path, data, text):
    (tmp_path / "t.json").write_bytes(data)
    with pytest.raises(FormatError, match=text) as caught:
        read(tmp_path / "t.json")
    assert "t.json" in caught.value.message
    assert "\n" not in caught.value.message


def test_a_value_without_end_is_not_read_on_and_on(tmp_path, monkeypatch):
    monkeypatch.setattr(stream, "_MOST_CHARS", 1000)
    (tmp_path / "t.json").write_text('{"traceEvents": ["' + "x" * 10**6)
    with pytest.raises(FormatError, match="a value in it has no end"):
        read(tmp_path / "t.json")


def test_a_file_that_is_missing_or_a_folder(tmp_path):
    with pytest.raises(NotFoundError, match=r"gone\.json' does not exist"):
        read(tmp_path / "gone.json")
    with pytest.raises(UsageError, match="is a folder"):
        read(tmp_path)


def test_memory_is_that_of_a_window(tmp_path):
    with gzip.open(tmp_path / "t.gz", "wb", 1) as file, io.TextIOWrapper(file) as text:
        text.write('{"traceEvents": [')
        line = json.dumps({"ph": "X", "name": "aten::mm" * 20, "ts": 1, "dur": 1})
        for _ in range(40_000):
            text.write(line + ",\n")
        text.write(line + "]}")
    tracemalloc.start()
    try:
        count = sum(1 for _ in read_events(str(tmp_path / "t.gz"), {}))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert count == 40_001
    assert peak < 4 * 2**20  # the file has 8 MB


@given(st.binary(max_size=60))
def test_any_bytes_give_events_or_an_error_of_ours(place, data):
    place.write_bytes(data)
    try:
        read(place)
    except MvcError as error:
        assert error.message
