import struct
import threading
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from mvc.dtypes import DTYPES
from mvc.errors import FormatError
from mvc.formats.decoding import DecodeScratch, Encoding, decode_chunk
from mvc.formats.encoding import EncodedChunk, EncodeScratch, encode_chunk

GOLDEN = Path(__file__).parent.parent / "golden" / "encodings"
ENCODE, DECODE = EncodeScratch(), DecodeScratch()


def encode(plain, dtype=None, scratch=ENCODE):
    encoded = encode_chunk(memoryview(plain), DTYPES[dtype] if dtype else None, scratch)
    body = b"".join(encoded.parts)
    assert encoded.size_bytes == len(body) <= len(plain)
    return encoded.encoding, body


def decode(encoding, body, size_bytes, scratch=DECODE):
    plain = bytearray(b"\xa5" * size_bytes)
    decode_chunk(encoding, memoryview(body), memoryview(plain), scratch)
    return bytes(plain)


def round_trip(plain, dtype=None):
    encoding, body = encode(plain, dtype)
    assert decode(encoding, body, len(plain)) == bytes(plain)
    return encoding, body


def decode_slowly(encoding, body, size_bytes):
    """The format as it is written down, byte by byte."""
    if encoding == 0:
        return body
    if encoding == 1:
        return zstandard.decompress(body)
    width, rotated = body[0] & 15, body[0] >> 4
    words = size_bytes // width
    at = 4 + 8 * width
    planes = []
    for number in range(width):
        kind, stored = struct.unpack_from("<B3xI", body, 4 + 8 * number)
        piece = body[at : at + stored]
        at += stored
        planes.append(decode_plane_slowly(kind, piece, words))
    plain = bytearray()
    for column in zip(*planes, strict=True):
        word = int.from_bytes(bytes(column), "big")
        if rotated:
            rest = 8 * width - 9
            nine = word >> rest
            nine = nine >> 1 | (nine & 1) << 8
            word = nine << rest | word & ((1 << rest) - 1)
        plain += word.to_bytes(width, "little")
    return bytes(plain)


def decode_plane_slowly(kind, piece, words):
    if kind == 0:
        return piece
    if kind == 1:
        return piece * words
    if kind == 2:
        return zstandard.decompress(piece)
    base, count = struct.unpack_from("<B3xI", piece)
    nibbles = zstandard.decompress(piece[8 + 5 * count :])
    plane = [base + (byte & 15) for byte in nibbles] + [base + (byte >> 4) for byte in nibbles]
    for number in range(count):
        (position,) = struct.unpack_from("<I", piece, 8 + 4 * number)
        plane[position] = piece[8 + 4 * count + number]
    return bytes(byte % 256 for byte in plane[:words])


def weights(count, dtype, seed=0, scale=0.02):
    values = np.random.default_rng(seed).normal(0, scale, count)
    if dtype == "BF16":
        bits = values.astype("<f4").view("<u4")
        return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2").tobytes()
    return values.astype({"F16": "<f2", "F32": "<f4", "F64": "<f8"}[dtype]).tobytes()


def ramp(size_bytes):
    return np.arange(size_bytes // 8 + 1, dtype="<u8").tobytes()[:size_bytes]


def special_floats(size_bytes):
    """NaN payloads, -0.0, infinities and subnormals of every width, in turn."""
    words = [
        *(0x7FC00001, 0xFFBFFFFF, 0x80000000, 0x00000001, 0x7F800000, 0xFF800000, 0x807FFFFF),
        *(0x7FF80001, 0xFFF00000, 0x80000001, 0x000F0000, 0x7C01FC00, 0xFF80807F, 0xFFFFFFFF),
    ]
    return (np.array(words, "<u4").tobytes() * (size_bytes // 56 + 1))[:size_bytes]


def half_zeros(size_bytes):
    return bytes(size_bytes // 2) + np.random.default_rng(1).bytes(size_bytes - size_bytes // 2)


CONTENTS = {
    "random": np.random.default_rng(0).bytes,
    "zeros": bytes,
    "ones": lambda size: b"\xff" * size,
    "one word": lambda size: (b"\x00\x00\x80\x3f\x01\x02\x03\x04" * (size // 8 + 1))[:size],
    "ramp": ramp,
    "special floats": special_floats,
    "half zeros": half_zeros,
    "fp32 weights": lambda size: weights(size // 4 + 1, "F32")[:size],
    "bf16 weights": lambda size: weights(size // 2 + 1, "BF16")[:size],
    "text": lambda size: (b'{"lm_head.weight": {"dtype": "BF16"}}' * (size // 37 + 1))[:size],
}
SIZES = [0, 1, 2, 3, 4, 7, 8, 9, 63, 64, 65, 72, 96, 1000, 4093, 65536, 65544, 140_008]


@pytest.mark.parametrize("content", CONTENTS)
@pytest.mark.parametrize("size_bytes", SIZES)
def test_every_dtype_comes_back(content, size_bytes):
    plain = CONTENTS[content](size_bytes)
    for dtype in (None, *DTYPES):
        encoding, body = round_trip(plain, dtype)
        if size_bytes <= 96:
            assert decode_slowly(encoding, body, size_bytes) == plain


@pytest.mark.parametrize("dtype", ["BF16", "F16", "F32", "F64"])
@pytest.mark.parametrize("words", [40_000, 65_537, 1_100_001])
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


def test_threads_with_their_own_scratch_do_not_meet():
    plains = [weights(600_000, "BF16", seed) for seed in range(4)]
    expected = [encode(plain, "BF16") for plain in plains]
    failures = []

    def work(plain, result):
        encoder, decoder = EncodeScratch(), DecodeScratch()
        for _ in range(4):
            if encode(plain, "BF16", encoder) != result:
                failures.append("encode")
            if decode(*result, len(plain), decoder) != plain:
                failures.append("decode")

    threads = [
        threading.Thread(target=work, args=pair) for pair in zip(plains, expected, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


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


@pytest.mark.parametrize(
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
    tracemalloc.start()
    try:
        encoding, body = encode(plain, "BF16", EncodeScratch())
        encode_peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.reset_peak()
        before = tracemalloc.get_traced_memory()[0]
        decode(encoding, body, len(plain), DecodeScratch())
        decode_peak = tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()
    assert encode_peak - len(body) <= 2 * len(plain) + (16 << 20)
    assert decode_peak - 2 * len(plain) <= len(plain) + (8 << 20)  # bytearray() and bytes()


@pytest.mark.parametrize("case", sorted(path.stem for path in GOLDEN.glob("*.body")))
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


def frame(plain, **options):
    return zstandard.ZstdCompressor(**options).compress(plain)


@pytest.mark.parametrize(
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
    tracemalloc.start()
    try:
        with pytest.raises(FormatError):
            decode(Encoding.ZSTD, body, 100)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


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
    try:
        decode(encoding, body, size_bytes)
    except FormatError:
        return


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


def test_size_is_the_sum_of_the_parts():
    assert EncodedChunk(Encoding.RAW, (b"ab", memoryview(b"cde"))).size_bytes == 5
