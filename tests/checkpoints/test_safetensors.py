import contextlib
import json

import ml_dtypes
import numpy as np
import pytest
import safetensors
import safetensors.numpy
from hypothesis import given
from hypothesis import strategies as st

from mvc.checkpoints.safetensors import DTYPES, find_shards, parse_safetensors
from mvc.dtypes import get_dtype, size_in_bytes
from mvc.errors import FormatError
from mvc.sources import MemorySource
from support.cases import for_each
from support.parsed import named_views, parse


def build(header, data: bytes = b"") -> bytes:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(raw).to_bytes(8, "little") + raw + data


def entry(dtype="F32", shape=(1,), begin=0, end=4):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}


def their_tensors(data: bytes):
    return {
        name: (info["dtype"], tuple(info["shape"]), bytes(info["data"]))
        for name, info in safetensors.deserialize(data)
    }


@pytest.mark.torch
def test_every_dtype_that_torch_writes_is_read_as_torch_wrote_it():
    import torch
    from safetensors.torch import save

    dtypes = [
        torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16,
        torch.uint32, torch.uint64, torch.float16, torch.bfloat16, torch.float32, torch.float64,
        torch.complex64, torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz,
        torch.float8_e5m2fnuz, torch.float8_e8m0fnu,
    ]  # fmt: skip
    tensors = {str(dtype): torch.arange(24).reshape(2, 3, 4).to(dtype) for dtype in dtypes}
    tensors |= {"scalar": torch.tensor(3.5), "empty": torch.zeros(0, 7), "none": torch.zeros(0)}
    data = save(tensors, metadata={"format": "pt"})
    layout = parse(data, "model.safetensors")
    assert layout.format == "safetensors"
    assert layout.warning is None
    assert all(segment.is_plain for segment in layout.segments)
    views = named_views(data, layout)
    assert views == their_tensors(data)
    for name, tensor in tensors.items():
        assert views[name][2] == tensor.flatten().view(torch.uint8).numpy().tobytes()


def test_every_dtype_name_has_the_size_safetensors_gives_it():
    for name in DTYPES:
        size_bytes = size_in_bytes(get_dtype(name), (24,))
        data = build({"x": entry(name, (24,), 0, size_bytes)}, bytes(size_bytes))
        assert their_tensors(data)["x"][:2] == (name, (24,))
        assert named_views(data, parse(data, "m.safetensors"))["x"][:2] == (name, (24,))


def test_tensors_come_in_file_order_with_empty_ones_first_at_an_offset():
    header = {
        "full": entry(),
        "late": entry(begin=4, end=8),
        "empty": entry(shape=(0,), end=0),
        "empty too": entry(shape=(3, 0), end=0),
        "empty last": entry(shape=(0,), begin=8, end=8),
    }
    layout = parse(build(header, bytes(8)), "m.safetensors")
    names = [segment.tensors[0].name for segment in layout.segments]
    assert names == ["empty", "empty too", "full", "late", "empty last"]


def test_padding_and_metadata_and_escaped_names_are_read():
    header = json.dumps({"__metadata__": {"a": 'x"y'}, "näme\n": entry()}).encode() + b"   "
    data = build(header, bytes(4))
    assert list(named_views(data, parse(data, "m.safetensors"))) == ["näme\n"]


MALFORMED = {
    "empty file": b"",
    "short length": b"\x01\x00",
    "no header": (100).to_bytes(8, "little"),
    "zero header": bytes(8),
    "header cap": (100_000_001).to_bytes(8, "little") + b"{}",
    "huge header": (2**63).to_bytes(8, "little") + b"{}",
    "leading space": build(b" {}"),
    "not an object": build(b"[]"),
    "cut off json": build(b'{"a":'),
    "trailing json": build(b"{} {}"),
    "not utf-8": build(b'{"\xff": 1}'),
    "lone surrogate": build(b'{"\\ud800": ' + json.dumps(entry()).encode() + b"}", bytes(4)),
    "nul behind json": build(b"{}\x00"),
    "hole at start": build({"a": entry(begin=4, end=8)}, bytes(8)),
    "hole": build({"a": entry(), "b": entry(begin=8, end=12)}, bytes(12)),
    "overlap": build({"a": entry(), "b": entry(begin=2, end=6)}, bytes(6)),
    "same place": build({"a": entry(), "b": entry()}, bytes(4)),
    "backwards": build({"a": entry(begin=4, end=0)}, bytes(4)),
    "negative": build({"a": entry(shape=(-1,), begin=0, end=-4)}),
    "bytes behind": build({"a": entry()}, bytes(5)),
    "cut off data": build({"a": entry()}, bytes(3)),
    "empty but data": build({}, bytes(1)),
    "wrong extent": build({"a": entry(shape=(2,))}, bytes(4)),
    "overflowing shape": build({"a": entry(shape=(2**62, 2**62, 0), end=0)}),
    "wrapping shape": build({"a": entry(shape=(2**32, 2**32), end=0)}),
    "huge int": build(b'{"a":{"dtype":"F32","shape":[' + b"9" * 5000 + b'],"data_offsets":[0,4]}}'),
    "float shape": build({"a": entry(shape=(1.5,))}, bytes(4)),
    "unknown dtype": build({"a": entry("F128")}, bytes(4)),
    "gguf dtype": build({"a": entry("Q4_0", (32,), 0, 18)}, bytes(18)),
    "half a byte": build({"a": entry("F4", (3,), 0, 1)}, bytes(1)),
    "unknown key": build({"a": entry() | {"note": "x"}}, bytes(4)),
    "missing key": build({"a": {"dtype": "F32", "shape": []}}),
    "metadata numbers": build({"__metadata__": {"a": 1}}),
    "metadata nested": build({"__metadata__": {"a": {}}}),
    "too many dims": build({"a": entry(shape=(1,) * 65)}, bytes(4)),
    "name too long": build({"a" * 5000: entry()}, bytes(4)),
    "deep nesting": build(b'{"a":' + b"[" * 50_000 + b"]" * 50_000 + b"}"),
    "deep unknown key": build(
        b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4],"x":' + b"[" * 50_000 + b"]" * 50_000 + b"}}",
        bytes(4),
    ),
}  # fmt: skip


@for_each("case", MALFORMED)
def test_malformed_files_are_opaque_with_a_reason(case):
    data = MALFORMED[case]
    with pytest.raises(FormatError):
        parse_safetensors(MemorySource(data))
    layout = parse(data, "model.safetensors")
    assert (layout.format, layout.segments) == ("opaque", ())
    assert layout.warning


ONE = '{"dtype":"F32","shape":[1],"data_offsets":[0,4]}'
EMPTY = '{"dtype":"F32","shape":[0],"data_offsets":[0,0]}'


@pytest.mark.parametrize(
    "header",
    [
        '{"a":@,"a":@}',
        '{"a":@,"\\u0061":@}',
        '{"a":@,"b":#,"b":#}',
        '{"a":5,"a":@}',
        '{"a\\"b":@,"a\\"b":@}',
        '{"__metadata__":{},"__metadata__":{},"a":@}',
        '{"__metadata__":{"x":"1","x":"2"},"a":@}',
        '{"a":{"dtype":"F32","dtype":"F32","shape":[1],"data_offsets":[0,4]}}',
        '{"a":{"dtype":"F32","shape":[1],"shape":[1],"data_offsets":[0,4]}}',
        '{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4],"data\\u005foffsets":[0,4]}}',
    ],
)
def test_no_key_may_come_twice(header):
    header = header.replace("@", ONE).replace("#", EMPTY)
    with pytest.raises(FormatError):
        parse_safetensors(MemorySource(build(header.encode(), bytes(4))))


_DATA = safetensors.numpy.save(
    {
        "a": np.arange(6, dtype=np.float32).reshape(2, 3),
        "b": np.ones((3,), ml_dtypes.bfloat16),
        "e": np.zeros((0, 2), np.int64),
    },
    metadata={"k": "v"},
)
_HEADER_END = 8 + int.from_bytes(_DATA[:8], "little")


@given(
    position=st.integers(0, _HEADER_END - 1),
    replacement=st.one_of(st.binary(max_size=3), st.sampled_from([b"0", b'"', b",", b"}", b"2"])),
    removed=st.integers(0, 3),
)
def test_what_we_accept_safetensors_accepts_and_reads_the_same(position, replacement, removed):
    damaged = _DATA[:position] + replacement + _DATA[position + removed :]
    layout = parse(damaged, "m.safetensors")
    if layout.format == "safetensors":
        assert named_views(damaged, layout) == their_tensors(damaged)


@given(
    st.dictionaries(
        st.text(st.characters(exclude_categories=["Cs"]), max_size=12).filter(
            "__metadata__".__ne__
        ),
        st.tuples(
            st.sampled_from([np.uint8, np.int16, np.float32, np.complex64, ml_dtypes.bfloat16]),
            st.lists(st.integers(0, 4), max_size=4),
        ),
        max_size=6,
    )
)
def test_whatever_safetensors_writes_is_read(tensors):
    arrays = {
        name: np.arange(np.prod(shape, dtype=int)).astype(dtype).reshape(shape)
        for name, (dtype, shape) in tensors.items()
    }
    data = safetensors.numpy.save(arrays)
    views = named_views(data, parse(data, "m.safetensors"))
    assert views == their_tensors(data)
    assert {name: view[2] for name, view in views.items()} == {
        name: array.tobytes() for name, array in arrays.items()
    }


def test_escapes_do_not_hide_or_invent_keys():
    for name in ('a"b', "a\\", '\\"', "\n\t", '","b":"', "\u2028"):
        header = {
            "__metadata__": {name: name * 2},
            name: entry(),
            name + "2": entry(begin=4, end=8),
        }
        data = build(header, bytes(8))
        assert named_views(data, parse(data, "m.safetensors")) == their_tensors(data)


def test_the_number_of_strings_is_capped_before_decoding(monkeypatch):
    monkeypatch.setattr("mvc.checkpoints.safetensors._MAX_STRINGS", 9)
    layout = parse(build({"a": entry(), "b": entry(begin=4, end=8)}, bytes(8)), "m.safetensors")
    assert "more than 9 strings" in layout.warning


def test_forty_thousand_tensors():
    header = {f"layers.{i}.weight": entry(begin=4 * i, end=4 * i + 4) for i in range(40_000)}
    layout = parse(build(header, bytes(160_000)), "m.safetensors")
    assert len(layout.segments) == 40_000


def test_shards_are_named_once_and_sorted():
    index = {
        "metadata": {"total_size": 123},
        "weight_map": {
            "a": "model-2.safetensors",
            "b": "model-1.safetensors",
            "c": "model-2.safetensors",
        },
    }
    assert find_shards(json.dumps(index).encode()) == ("model-1.safetensors", "model-2.safetensors")
    assert find_shards(b'{"weight_map": {}}') == ()


@for_each(
    "name",
    [
        "", ".", "..", "../x", "/etc/passwd", "a/b", "a\\b", "x\0", "x\n", "\x1b[2J", "a" * 256,
        "..\\x", "\u202eexe.bin",
    ],
)  # fmt: skip
def test_hostile_names_are_refused(name):
    with pytest.raises(FormatError):
        find_shards(json.dumps({"weight_map": {"a": name}}).encode())


@pytest.mark.parametrize(
    "index",
    [
        b"", b"[]", b"{}", b'{"weight_map": []}', b'{"weight_map": {"a": 1}}', b"\xff",
        b'{"weight_map": {"a": "\\ud800"}}', b"[" * 100_000, b'{"x":' + b"[" * 100_000,
    ],
)  # fmt: skip
def test_what_is_no_index_is_refused(index):
    with pytest.raises(FormatError):
        find_shards(index)


@given(st.binary(max_size=100))
def test_any_bytes_are_an_index_or_refused(data):
    with contextlib.suppress(FormatError):
        find_shards(data)
