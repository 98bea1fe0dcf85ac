"""Stored bodies: the old ones stay readable, hostile ones are refused."""

import contextlib
import struct
from pathlib import Path

import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from mvc.errors import FormatError
from mvc.formats.decoding import Encoding
from support.cases import for_each
from support.encoded import (
    CONTENTS,
    decode,
    decode_slowly,
    encode,
    frame,
    ramp,
)
from support.machine import peak_below

GOLDEN = Path(__file__).parent.parent / "golden" / "encodings"


@for_each("case", sorted(path.stem for path in GOLDEN.glob("*.body")))
def test_golden_bodies_stay_readable(case):
    plain = (GOLDEN / f"{case}.plain").read_bytes()
    body = (GOLDEN / f"{case}.body").read_bytes()
    encoding = Encoding[case.split("-")[0].upper()]
    assert decode(encoding, body, len(plain)) == plain
    assert decode_slowly(encoding, body, len(plain)) == plain


def test_golden_bodies_are_there():
    assert len(list(GOLDEN.glob("*.body"))) >= 12


@pytest.mark.parametrize(("encoding", "name"), [(4, "delta"), (5, "cast")])
def test_bodies_that_refer_need_their_bases(encoding, name):
    with pytest.raises(FormatError, match=f"a {name} body needs its bases"):
        decode(encoding, b"anything", 8)


@pytest.mark.parametrize("encoding", [-1, 3, 6, 7, 255, 2**31])
def test_unknown_encodings_are_refused(encoding):
    with pytest.raises(FormatError):
        decode(encoding, b"", 0)


NOISE = np.random.default_rng(5).bytes(100)


@for_each(
    "body",
    [
        b"",
        b"\x28\xb5\x2f\xfd",
        frame(bytes(99)),
        frame(bytes(101)),
        frame(bytes(100)) + b"\0",
        frame(bytes(100)) + frame(b""),
        frame(b"") + frame(bytes(100)),
        frame(bytes(100))[:-1],
        frame(bytes(100), write_checksum=True),
        frame(bytes(100), write_content_size=False),
        frame(NOISE, dict_data=zstandard.ZstdCompressionDict(NOISE)),  # a dictionary without id
        frame(NOISE, dict_data=zstandard.train_dictionary(1024, [NOISE * 2, ramp(200)] * 99)),
        frame(bytes(100 << 20)),
        b"\x50\x2a\x4d\x18" + struct.pack("<I", 100) + bytes(100),  # a skippable frame
        bytes.fromhex("28b52ffde0ffffffffffffff7f010000"),  # claims 2**63 - 1 bytes
        bytes.fromhex("28b52ffdc0f86400000000000000010000"),  # and a huge window
    ],
)
def test_only_one_plain_frame_of_the_right_size_is_taken(body):
    with peak_below(1 << 20):
        with pytest.raises(FormatError):
            decode(Encoding.ZSTD, body, 100)


def planes_body(*planes, layout=2):
    entries = b"".join(struct.pack("<B3xI", kind, len(body)) for kind, body in planes)
    return bytes([layout, 0, 0, 0]) + entries + b"".join(body for _, body in planes)


@pytest.mark.parametrize(
    ("planes", "is_right"),
    [
        ([(0, bytes(600)), (1, b"a")], True),
        ([(0, bytes(599)), (1, b"a")], False),
        ([(2, frame(bytes(600))), (1, b"a")], True),
        ([(2, frame(bytes(601))), (1, b"a")], False),
        ([(2, b""), (1, b"a")], False),
        ([(3, bytes(8) + frame(bytes(300))), (1, b"a")], True),
        ([(3, bytes(8) + frame(bytes(299))), (1, b"a")], False),
        ([(3, bytes(4) + b"\x02\0\0\0" + bytes(10) + frame(bytes(300))), (1, b"a")], False),
        ([(3, b""), (1, b"a")], False),
    ],
)
def test_planes_must_have_one_byte_per_word(planes, is_right):
    body = planes_body(*planes)
    if is_right:
        assert decode(Encoding.PLANES, body, 1200) == b"a\0" * 600
        return
    with pytest.raises(FormatError):
        decode(Encoding.PLANES, body, 1200)


VALID = [
    (*encode(content(size_bytes), dtype), size_bytes)
    for content in CONTENTS.values()
    for dtype in (None, "BF16", "F32", "I64")
    for size_bytes in (800, 70_000)
]


def decode_or_refuse(encoding, body, size_bytes):
    with contextlib.suppress(FormatError):
        decode(encoding, body, size_bytes)


@given(
    encoding=st.integers(0, 6),
    body=st.binary(max_size=400),
    size_bytes=st.integers(0, 3000),
)
def test_garbage_is_refused_and_nothing_worse(encoding, body, size_bytes):
    decode_or_refuse(encoding, body, size_bytes)


@given(
    valid=st.sampled_from(VALID),
    encoding=st.sampled_from([None, 0, 1, 2]),
    edits=st.lists(st.tuples(st.integers(0, 200), st.integers(0, 255)), max_size=4),
    ends=st.tuples(st.integers(0, 60), st.binary(max_size=4)),
    excess=st.sampled_from([0, 0, 0, -8, -2, -1, 1, 2, 8, 1 << 20]),
)
def test_damaged_bodies_are_refused_or_decode_to_something(valid, encoding, edits, ends, excess):
    right_encoding, body, size_bytes = valid
    cut, tail = ends
    damaged = bytearray(body[: max(len(body) - cut, 0)] + tail)
    for place, value in edits:
        if damaged:
            damaged[place % len(damaged)] = value
    tag = right_encoding if encoding is None else encoding
    decode_or_refuse(tag, damaged, max(size_bytes + excess, 0))
