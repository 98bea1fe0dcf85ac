import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mvc.dtypes import DTYPES
from mvc.formats.decoding import DecodeScratch, Encoding
from mvc.formats.encoding import EncodedChunk, EncodeScratch, encode_chunk
from support.cases import for_each
from support.encoded import (
    CONTENTS,
    ENCODE,
    decode,
    decode_slowly,
    encode,
    half_zeros,
    ramp,
    weights,
)
from support.machine import peak_below


def round_trip(plain, dtype=None):
    encoding, body = encode(plain, dtype)
    assert decode(encoding, body, len(plain)) == bytes(plain)
    return encoding, body


SIZES = [0, 1, 2, 3, 4, 7, 8, 9, 63, 64, 65, 72, 96, 1000, 4093, 65536, 65544, 140_008]


@for_each("content", CONTENTS)
@for_each("size_bytes", SIZES)
def test_every_dtype_comes_back(content, size_bytes):
    plain = CONTENTS[content](size_bytes)
    for dtype in (None, *DTYPES):
        encoding, body = round_trip(plain, dtype)
        if size_bytes <= 96:
            assert decode_slowly(encoding, body, size_bytes) == plain


@for_each("dtype", ["BF16", "F16", "F32", "F64"])
@for_each("words", [40_000, 65_537, 1_100_001])
def test_weights_come_back_the_fast_and_the_slow_way(dtype, words):
    plain = weights(words, dtype)
    encoding, body = round_trip(plain, dtype)
    assert encoding == Encoding.PLANES
    if words < 100_000:
        assert decode_slowly(encoding, body, len(plain)) == plain


@given(
    plain=st.one_of(
        st.binary(max_size=300),
        st.builds(lambda piece, times: piece * times, st.binary(max_size=9), st.integers(0, 5000)),
        st.lists(st.sampled_from([b"\0\0\0\0", b"\0\0\x80\x3f", b"\0\0\x80\xbf", b"ab"])).map(
            b"".join
        ),
    ),
    dtype=st.sampled_from([None, *DTYPES]),
)
def test_any_bytes_come_back(plain, dtype):
    encoding, body = round_trip(plain, dtype)
    assert decode_slowly(encoding, body, len(plain)) == plain
    assert encode(plain, dtype, EncodeScratch()) == (encoding, body)


@pytest.mark.parametrize("content", CONTENTS)
def test_a_used_scratch_encodes_like_a_fresh_one(content):
    encoder, decoder = EncodeScratch(), DecodeScratch()
    for size_bytes in (3_000_000, 100, 70_001, 3_000_008, 1 << 16, 5_000_000):
        plain = CONTENTS[content](size_bytes)
        for dtype in ("BF16", "F64", None, "I32"):
            encoding, body = encode(plain, dtype, encoder)
            assert (encoding, body) == encode(plain, dtype, EncodeScratch())
            assert decode(encoding, body, size_bytes, decoder) == plain


@pytest.mark.parametrize(
    ("dtype", "limit"), [("BF16", 0.664), ("F16", 0.845), ("F32", 0.832), ("F64", 0.885)]
)
def test_ratio_on_gaussian_weights(dtype, limit):
    plain = weights(1 << 20, dtype)
    encoding, body = encode(plain, dtype)
    assert encoding == Encoding.PLANES
    assert len(body) <= limit * len(plain)


def fp8_weights(size_bytes):
    import ml_dtypes

    values = np.random.default_rng(0).normal(0, 1, size_bytes)
    return values.astype(np.float32).astype(ml_dtypes.float8_e4m3fn).tobytes()


def rare_ids(size_bytes):
    ids = np.minimum(np.random.default_rng(0).zipf(1.2, size_bytes // 8), 50_000)
    return ids.astype("<i8").tobytes()


def bf16_as_f32(size_bytes):
    return (np.frombuffer(weights(size_bytes // 4, "BF16"), "<u2").astype("<u4") << 16).tobytes()


def json_header(size_bytes):
    lines = (
        b'"model.layers.%d.w":{"dtype":"BF16","shape":[%d]},' % (n, n * n) for n in range(9999)
    )
    return b"".join(lines)[:size_bytes]


@for_each(
    ("dtype", "content", "limit"),
    [
        ("F32", bytes, 1e-4),
        ("BOOL", bytes, 1e-4),
        (None, bytes, 1e-4),
        ("F32", lambda size: b"\0\0\x80\x3f" * (size // 4), 1e-4),
        ("I64", lambda size: struct.pack("<q", -100) * (size // 8), 1e-3),
        ("F32", half_zeros, 0.52),
        (None, half_zeros, 0.52),
        ("I64", rare_ids, 0.15),
        ("I64", ramp, 0.01),
        ("F8_E4M3", fp8_weights, 0.83),
        ("F32", bf16_as_f32, 0.34),
        (None, lambda size: weights(size // 2, "BF16"), 0.68),  # in a file mvc cannot parse
        (None, lambda size: b"\x80" + weights(size // 4, "F32")[:-1], 0.84),
        (None, json_header, 0.3),
        ("BOOL", lambda size: np.random.default_rng(0).integers(0, 2, size, np.uint8), 0.2),
    ],
)
def test_ratio_on_what_else_models_hold(dtype, content, limit):
    plain = bytes(content(1 << 19))
    assert len(round_trip(plain, dtype)[1]) <= limit * len(plain)


def test_zeros_are_stored_as_one_word():
    assert encode(bytes(4 << 20), "BF16") == (
        Encoding.PLANES,
        bytes.fromhex("02000000010000000100000001000000010000000000"),
    )


@pytest.mark.parametrize("dtype", [None, "BF16", "F32", "I64", "F8_E4M3", "Q4_K"])
def test_noise_is_stored_as_it_is_without_a_copy(dtype):
    plain = np.random.default_rng(0).bytes(1 << 19)
    encoded = encode_chunk(memoryview(plain), DTYPES[dtype] if dtype else None, ENCODE)
    assert encoded.encoding == Encoding.RAW
    assert [part.obj for part in encoded.parts] == [plain]


def test_a_sample_is_not_taken_from_the_head_only():
    plain = np.random.default_rng(0).bytes(1 << 18) + bytes(3 << 18)
    for dtype in (None, "BF16", "F32", "I64", "U8"):
        assert len(encode(plain, dtype)[1]) < 0.26 * len(plain)


def test_scratch_memory_is_bounded():
    plain = weights(8 << 20, "BF16")
    encoding, body = encode(plain, "BF16")
    with peak_below(len(body) + 2 * len(plain) + (16 << 20)):
        encode(plain, "BF16", EncodeScratch())
    with peak_below(3 * len(plain) + (8 << 20)):  # two of them are bytearray() and bytes()
        decode(encoding, body, len(plain), DecodeScratch())


def test_size_is_the_sum_of_the_parts():
    assert EncodedChunk(Encoding.RAW, (b"ab", memoryview(b"cde"))).size_bytes == 5
