"""Manifests: canonical, strict, pinned for ever."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mvc.dtypes import DTYPES
from mvc.errors import FormatError, UnsupportedError
from mvc.formats.layout import Segment, TensorView, find_gaps, single_tensor
from mvc.formats.manifest import (
    DEFAULT_CHUNK_BYTES,
    Manifest,
    StoredSegment,
    cut_sizes,
    is_manifest,
    tensor_id,
)
from mvc.formats.manifest_lines import (
    content_id,
    encode_manifest,
    find_contents,
    parse_manifest,
)
from mvc.ids import ChunkId
from support.cases import for_each

GOLDEN = Path(__file__).parent.parent / "golden" / "manifests"


def _id(number: int) -> ChunkId:
    return ChunkId(number.to_bytes(32, "big"))


def _example() -> Manifest:
    plain = single_tensor("w", "F32", (16, 16), 72)
    storage = Segment(
        1152,
        1024,
        "F32",
        (
            TensorView("a", "F32", (16, 16)),
            TensorView("a.T", "F32", (16, 16), 0, (1, 16)),
            TensorView("a.tail", "F32", (8,), 992),
        ),
    )
    empty = single_tensor("empty", "BF16", (0, 4), 2176)
    return Manifest(
        "torch",
        2200,
        DEFAULT_CHUNK_BYTES,
        (_id(1),),
        (
            StoredSegment(plain, (_id(2),)),
            StoredSegment(storage, (_id(3),)),
            StoredSegment(empty, ()),
        ),
    )


def test_golden_bytes_stay_readable_and_canonical():
    data = (GOLDEN / "version1.jsonl").read_bytes()
    assert parse_manifest(data) == _example()
    assert encode_manifest(_example()) == data


def test_gap_bytes_are_what_segments_do_not_cover():
    manifest = _example()
    assert list(manifest.gap_ranges()) == [(0, 72), (1096, 56), (2176, 24)]
    assert manifest.gap_bytes == 72 + 56 + 24


def test_identity_of_a_tensor_is_its_elements_not_its_place():
    first = StoredSegment(single_tensor("x", "F32", (4,), 0), (_id(9),))
    moved = StoredSegment(single_tensor("y", "F32", (4,), 4096), (_id(9),))
    other_shape = StoredSegment(single_tensor("x", "F32", (2, 2), 0), (_id(9),))
    other_dtype = StoredSegment(single_tensor("x", "I32", (4,), 0), (_id(9),))
    ids = [
        tensor_id(stored.segment.tensors[0], stored)
        for stored in (first, moved, other_shape, other_dtype)
    ]
    assert ids[0] == ids[1]
    assert len(set(ids)) == 3


@st.composite
def manifests(draw):
    chunk_bytes = draw(st.sampled_from([1024, 4096, DEFAULT_CHUNK_BYTES]))
    position = draw(st.integers(0, 100))
    segments = []
    names = draw(
        st.lists(
            st.text(st.characters(exclude_categories=["Cs"]), max_size=8), max_size=6, unique=True
        )
    )
    for name in names:
        dtype = draw(st.sampled_from([d for d in DTYPES.values() if d.block_elements == 1]))
        shape = tuple(draw(st.lists(st.integers(0, 40), max_size=3)))
        segment = single_tensor(name, dtype.name, shape, position)
        count = len(cut_sizes(segment.size_bytes, chunk_bytes))
        chunks = tuple(_id(draw(st.integers(0, 2**64))) for _ in range(count))
        segments.append(StoredSegment(segment, chunks))
        position = segment.end + draw(st.integers(0, 50))
    gap_bytes = sum(size for _, size in find_gaps(position, [s.segment for s in segments]))
    gaps = tuple(_id(index) for index in range(len(cut_sizes(gap_bytes, chunk_bytes))))
    return Manifest("safetensors", position, chunk_bytes, gaps, tuple(segments))


@given(manifests())
def test_round_trip(manifest):
    data = encode_manifest(manifest)
    assert is_manifest(data)
    assert parse_manifest(data) == manifest
    assert encode_manifest(parse_manifest(data)) == data


@given(st.binary(max_size=400))
def test_garbage_is_a_format_error(data):
    for candidate in (data, b'{"mvc-manifest":1,' + data, b'{"mvc-manifest":' + data):
        with pytest.raises((FormatError, UnsupportedError)):
            parse_manifest(candidate)


@given(st.data())
def test_mutations_never_raise_anything_else(data):
    original = encode_manifest(_example())
    place = data.draw(st.integers(0, len(original) - 1))
    changed = bytearray(original)
    changed[place] = data.draw(st.integers(0, 255))
    try:
        manifest = parse_manifest(bytes(changed))
    except (FormatError, UnsupportedError):
        return
    assert manifest.size_bytes >= 0


def _lines() -> list[dict]:
    return [json.loads(line) for line in encode_manifest(_example()).splitlines()]


def _parse(lines) -> Manifest:
    return parse_manifest(
        b"".join(json.dumps(line, separators=(",", ":")).encode() + b"\n" for line in lines)
    )


@for_each(
    ("number", "change"),
    [
        (0, {"size": -1}),
        (0, {"size": 2**50}),
        (0, {"size": 2**63}),
        (0, {"chunk_bytes": 7}),
        (0, {"chunk_bytes": 2**40}),
        (0, {"surprise": 1}),
        (0, {"gaps": []}),
        (0, {"gaps": ["zz" * 32]}),
        (0, {"gaps": ["0" * 62]}),
        (1, {"at": 5000}),
        (1, {"at": -4}),
        (1, {"dtype": "F33"}),
        (1, {"shape": [16, -1]}),
        (1, {"shape": [2**62, 2**62]}),
        (1, {"shape": [1] * 65}),
        (1, {"chunks": []}),
        (1, {"chunks": ["AB" * 32]}),
        (1, {"strides": [1, 16]}),
        (2, {"storage": None}),
        (2, {"size": 4}),
        (2, {"size": None}),
        (2, {"at": 100}),
        (2, {"at": None}),
        (3, {"view": "w"}),
        (4, {"strides": [1]}),
        (4, {"strides": [-1, 16]}),
        (4, {"strides": [16, 17]}),
        (5, {"offset": 1000}),
        (5, {"offset": -8}),
    ],
)
def test_every_broken_rule_is_refused(number, change):
    lines = _lines()
    lines[number].update(change)
    with pytest.raises(FormatError):
        _parse(lines)


def test_a_view_without_a_storage_is_refused():
    lines = _lines()
    del lines[2]
    with pytest.raises(FormatError):
        _parse(lines)


def test_a_later_version_says_so():
    lines = _lines()
    lines[0]["mvc-manifest"] = 2
    lines[0]["something"] = "new"
    with pytest.raises(UnsupportedError, match="version 2"):
        _parse(lines)


def test_boxes_have_room_and_say_that_they_are_newer():
    lines = _lines()
    chunks = lines[1].pop("chunks")
    lines[1]["boxes"] = [{"offset": [0, 0], "shape": [16, 16], "chunks": chunks}]
    with pytest.raises(UnsupportedError, match="boxes"):
        _parse(lines)


def test_a_name_that_is_no_text_is_refused():
    segment = single_tensor("\ud800", "F32", (1,), 0)
    manifest = Manifest("torch", 4, DEFAULT_CHUNK_BYTES, (), (StoredSegment(segment, (_id(1),)),))
    with pytest.raises(FormatError, match="name"):
        encode_manifest(manifest)


@given(
    st.dictionaries(
        st.text(max_size=8), st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=6
    ),
    st.booleans(),
)
def test_contents_name_the_same_tensors_as_ids_do(tensors, with_views):
    at, segments = 16, []
    for name, (rows, number) in tensors.items():
        segment = single_tensor(name, "F32", (rows, 5), at)
        segments.append(StoredSegment(segment, (_id(number),) * bool(rows)))
        at += 20 * rows
    manifest = Manifest("safetensors", at, DEFAULT_CHUNK_BYTES, (_id(9),), tuple(segments))
    if with_views:
        manifest = replace(
            manifest, segments=(*segments, replace(_example().segments[1])), size_bytes=2200
        )
    lines = find_contents(encode_manifest(manifest))
    contents = dict(lines.values())
    assert find_contents(encode_manifest(manifest), lines) == lines
    ids = {view.name: tensor_id(view, stored) for view, stored in manifest.tensors()}
    assert {name: content_id(content) for name, content in contents.items()} == ids
    assert len(set(contents.values())) == len(set(ids.values()))


@pytest.mark.parametrize("name", [b"\xff", b"\\x", b"\\ud800"])
def test_contents_of_what_is_malformed(name):
    data = encode_manifest(Manifest("npy", 20, DEFAULT_CHUNK_BYTES, (_id(1),), (
        StoredSegment(single_tensor("NAME", "U8", (4,), 16), (_id(2),)),
    )))  # fmt: skip
    with pytest.raises(FormatError):
        find_contents(data.replace(b"NAME", name))
    with pytest.raises(FormatError):
        find_contents(b"{}")
