import itertools
import struct
from pathlib import Path

import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from mvc.dtypes import DTYPES
from mvc.errors import FormatError
from mvc.formats.decoding import DecodeScratch, Encoding, apply_delta, decode_chunk
from mvc.formats.deltas import MIN_DELTA_BYTES, encode_delta, estimate_delta
from mvc.formats.encoding import EncodeScratch, encode_chunk
from mvc.formats.pack import References, encode_references, parse_references
from mvc.ids import hash_chunk
from support.cases import for_each
from support.casts import apply_cast
from support.encoded import decode_plane_slowly, frame
from support.machine import peak_below

GOLDEN = Path(__file__).parent.parent / "golden" / "relatives"
ENCODE, DECODE = EncodeScratch(), DecodeScratch()
BASE_ID = hash_chunk(b"the base")
WHOLE = [name for name, dtype in DTYPES.items() if dtype.block_elements == 1]
RNG = np.random.default_rng


def encode(plain, base, dtype, scratch=ENCODE):
    dtype = DTYPES[dtype] if dtype else None
    encoded = encode_delta(memoryview(plain), memoryview(base), BASE_ID, dtype, scratch)
    body = b"".join(encoded.parts)
    assert encoded.size_bytes == len(body) <= len(plain)
    assert encoded.bases == ((BASE_ID,) if encoded.encoding == Encoding.DELTA else ())
    return encoded.encoding, body


def decode(encoding, body, base, scratch=DECODE):
    plain = bytearray(base)
    if encoding == Encoding.DELTA:
        apply_delta(memoryview(body), memoryview(plain), scratch)
    else:
        decode_chunk(encoding, memoryview(body), memoryview(plain), scratch)
    return bytes(plain)


def decode_slowly(body, base):
    """The format as it is written down, word by word."""
    count, words, coding = body[:3]
    assert count == 1
    width = words & 15
    rest, number = body[40:], len(base) // width
    if coding == 1:
        planes = [zstandard.decompress(rest)]
    else:
        assert rest[:4] == bytes([width, 0, 0, 0])
        at, planes = 4 + 8 * width, []
        for entry in range(width):
            kind, stored = struct.unpack_from("<B3xI", rest, 4 + 8 * entry)
            planes.append(decode_plane_slowly(kind, rest[at : at + stored], number))
            at += stored
        assert at == len(rest)
    plain = bytearray()
    for place, column in enumerate(zip(*planes, strict=True)):
        word = int.from_bytes(base[place * width : (place + 1) * width], "little")
        word = (word + join_slowly(column)) % 256**width
        plain += word.to_bytes(width, "little")
    return bytes(plain)


def join_slowly(column):
    """Two's complement of the low half, plus the high half."""
    if len(column) == 1:
        return column[0]
    middle = len(column) // 2
    size = 256**middle
    low, high = join_slowly(column[middle:]) % size, join_slowly(column[:middle])
    return high * size + (low if low < size // 2 else low - size)


def round_trip(plain, base, dtype):
    encoding, body = encode(plain, base, dtype)
    assert decode(encoding, body, base) == bytes(plain)
    return encoding, body


def to_bf16(values):
    bits = values.astype("<f4").view("<u4")
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2")


def train(dtype, count, step, seed=0):
    """Return weights and the same weights after an update of that relative size."""
    rng = RNG(seed)
    weights = rng.normal(0, 0.02, count)
    moved = weights + rng.normal(0, 0.02 * step, count)
    kind = {"F16": "<f2", "F32": "<f4", "F64": "<f8"}.get(dtype)
    return tuple(
        to_bf16(values).tobytes() if kind is None else values.astype(kind).tobytes()
        for values in (moved, weights)
    )


def change(base, how, width, seed=0):
    """Return ``base`` with words changed in one of the ways that are hard to get right."""
    rng = RNG(seed)
    plain = np.frombuffer(base, f"<u{width}").copy()
    top = 8 * width - 1
    if how == "nothing":
        return plain.tobytes()
    if how == "signs":
        plain[rng.random(plain.size) < 0.3] ^= plain.dtype.type(1 << top)
    elif how == "few":
        places = rng.integers(0, plain.size, 9)
        plain[places] = rng.integers(0, 2**32, 9).astype(plain.dtype)
    elif how == "extremes":
        ends = [n % (1 << (top + 1)) for n in (0, 1, -1, 127, 128, -128, -129, 1 << top, 0x7F80, 8)]
        plain += rng.choice(np.array(ends, plain.dtype), plain.size)
    elif how == "small":
        plain += rng.integers(-9, 9, plain.size).astype(plain.dtype)
    elif how == "constant":
        plain -= plain.dtype.type(300 % (1 << (top + 1)))
    elif how == "tails":
        step = rng.integers(-4, 5, plain.size)
        step[rng.random(plain.size) < 0.03] *= 9
        plain += step.astype(plain.dtype)
    return plain.tobytes()


CHANGES = ["nothing", "signs", "few", "extremes", "small", "constant", "tails"]


@for_each("how", CHANGES)
@for_each("dtype", WHOLE)
def test_every_dtype_comes_back(dtype, how):
    width = DTYPES[dtype].word_bytes
    for size_bytes in (MIN_DELTA_BYTES, 70_000, 70_000 + 8 * 13):
        base = RNG(1).bytes(size_bytes)
        plain = change(base, how, width)
        encoding, body = round_trip(plain, base, dtype)
        assert encoding == Encoding.DELTA
        if size_bytes == MIN_DELTA_BYTES:
            assert decode_slowly(body, base) == plain


@pytest.mark.parametrize("dtype", ["BF16", "F32", "F64", "U8"])
def test_large_chunks_go_through_several_blocks(dtype):
    width = DTYPES[dtype].word_bytes
    base = RNG(2).bytes((5 << 20) + 8)
    for how in ("few", "tails", "extremes", "constant"):
        encoding, _ = round_trip(change(base, how, width), base, dtype)
        assert encoding == Encoding.DELTA


@given(
    dtype=st.sampled_from(WHOLE),
    how=st.sampled_from(CHANGES),
    again=st.sampled_from(CHANGES),
    count=st.integers(2048, 3000),
    seed=st.integers(0, 2**32),
)
def test_any_change_comes_back(dtype, how, again, count, seed):
    width = DTYPES[dtype].word_bytes
    base = RNG(seed).bytes(8 * count)
    plain = change(change(base, how, width, seed), again, width, seed + 1)
    encoding, body = round_trip(plain, base, dtype)
    assert encode(plain, base, dtype, EncodeScratch()) == (encoding, body)
    if encoding == Encoding.DELTA and width > 1:
        assert decode_slowly(body, base) == plain


@pytest.mark.parametrize(
    ("dtype", "step", "limit"),
    [
        *(("BF16", 1e-4, 0.032), ("BF16", 1e-3, 0.12), ("BF16", 1e-2, 0.3), ("BF16", 0.1, 0.57)),
        *(("F32", 1e-4, 0.45), ("F32", 1e-3, 0.56), ("F32", 1e-2, 0.65), ("F32", 0.1, 0.79)),
    ],
)
def test_ratio_on_trained_weights(dtype, step, limit):
    plain, base = train(dtype, 1 << 20, step)
    encoding, body = encode(plain, base, dtype)
    assert encoding == Encoding.DELTA
    assert len(body) <= limit * len(plain)


def test_the_block_names_base_words_and_coding():
    base = RNG(3).bytes(MIN_DELTA_BYTES)
    for dtype, words_byte, coding in (
        ("BF16", 0x12, 2), ("U16", 2, 2), ("F32", 0x14, 2), ("C64", 0x14, 2), ("I64", 8, 2),
        ("F8_E4M3", 1, 1), ("I8", 1, 1), ("BOOL", 1, 1),
    ):  # fmt: skip
        _, body = encode(base, base, dtype)
        assert parse_references(body) == References((BASE_ID,), words_byte, coding)


@pytest.mark.parametrize(
    ("plain", "base", "dtype"),
    [
        (b"", b"", "F32"),
        (bytes(MIN_DELTA_BYTES - 2), bytes(MIN_DELTA_BYTES - 2), "BF16"),
        (RNG(4).bytes(20_000), RNG(4).bytes(20_004), "F32"),
        (RNG(4).bytes(20_004), RNG(4).bytes(20_000), "F32"),
        (RNG(4).bytes(20_002), RNG(4).bytes(20_002), "F32"),
        (RNG(4).bytes(20_000), RNG(4).bytes(20_000), None),
        (RNG(4).bytes(20_000), RNG(4).bytes(20_000), "Q4_K"),
        (RNG(4).bytes(20_000), RNG(4).bytes(20_000), "F4"),
        (RNG(4).bytes(20_000), RNG(5).bytes(20_000), "F32"),
        (bytes(20_000), RNG(5).bytes(20_000), "F32"),
        (train("BF16", 50_000, 10)[0], train("BF16", 50_000, 10)[1], "BF16"),
    ],
)
def test_where_no_difference_pays_the_chunk_is_encoded_by_itself(plain, base, dtype):
    encoded = encode_chunk(memoryview(plain), DTYPES[dtype] if dtype else None, ENCODE)
    assert encode(plain, base, dtype) == (encoded.encoding, b"".join(encoded.parts))


def test_a_delta_is_kept_only_if_it_is_smaller_by_a_margin():
    kept = set()
    for step in (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1, 2):
        for dtype in ("BF16", "F32"):
            plain, base = train(dtype, 100_000, step)
            ordinary = encode_chunk(memoryview(plain), DTYPES[dtype], ENCODE).size_bytes
            encoding, body = round_trip(plain, base, dtype)
            if encoding == Encoding.DELTA:
                assert len(body) <= 0.97 * ordinary
            else:
                assert len(body) == ordinary
            kept.add(encoding)
    assert kept == {Encoding.DELTA, Encoding.PLANES}


def test_a_sample_that_misleads_costs_no_space():
    """The places of the sample are equal to the base, the rest is not."""
    base = RNG(6).bytes(1 << 20)
    plain = bytearray(RNG(7).bytes(1 << 20))
    for piece in range(16):
        span = (1 << 20) - 4096
        start = (piece * 40503 % 65536 * span >> 16) & ~7
        plain[start : start + 4096] = base[start : start + 4096]
    assert estimate_delta(memoryview(plain), memoryview(base), DTYPES["F32"], ENCODE)[0] == 0
    encoding, body = round_trip(bytes(plain), base, "F32")
    assert len(body) <= len(plain)
    assert encoding == Encoding.DELTA or len(body) == len(plain)


@pytest.mark.parametrize("dtype", ["BF16", "F32", "I64", "F8_E4M3"])
def test_estimates_tell_what_the_whole_gives(dtype):
    width = DTYPES[dtype].word_bytes
    for how in ("small", "few", "tails"):
        base = RNG(8).bytes(1 << 20)
        plain = change(base, how, width)
        dtype_ = DTYPES[dtype]
        delta, ordinary = estimate_delta(memoryview(plain), memoryview(base), dtype_, ENCODE)
        whole = len(encode(plain, base, dtype)[1]) / len(plain)
        assert delta / ordinary == pytest.approx(whole, abs=0.02)


def test_estimates_of_what_cannot_be_compared_are_equal():
    for plain, base, dtype in ((b"", b"", "F32"), (bytes(20_000), bytes(20_004), "F32")):
        delta, ordinary = estimate_delta(memoryview(plain), memoryview(base), DTYPES[dtype], ENCODE)
        assert delta == ordinary
    assert estimate_delta(memoryview(bytes(20_000)), memoryview(bytes(20_000)), None, ENCODE) == (
        *(20_000, 20_000),
    )


def test_equal_samples_cost_nothing():
    data = memoryview(RNG(9).bytes(1 << 20))
    assert estimate_delta(data, data, DTYPES["F32"], ENCODE) == (0, 65536)


def test_a_used_scratch_encodes_like_a_fresh_one():
    encoder, decoder = EncodeScratch(), DecodeScratch()
    for size_bytes in (3_000_000, 20_000, 70_000, 3_000_008, 5_000_000):
        for dtype, how in (("BF16", "tails"), ("F32", "extremes"), ("U8", "few"), ("F64", "small")):
            base = RNG(10).bytes(size_bytes)
            plain = change(base, how, DTYPES[dtype].word_bytes)
            encoding, body = encode(plain, base, dtype, encoder)
            assert (encoding, body) == encode(plain, base, dtype, EncodeScratch())
            assert decode(encoding, body, base, decoder) == plain


def test_a_chain_is_applied_in_place():
    chunks = [train("BF16", 40_000, 1e-3)[1]]
    for step in range(4):
        chunks.append(change(chunks[-1], "tails", 2, step))
    plain = bytearray(chunks[0])
    for base, chunk in itertools.pairwise(chunks):
        encoding, body = encode(chunk, base, "BF16")
        assert encoding == Encoding.DELTA
        apply_delta(memoryview(body), memoryview(plain), DECODE)
        assert plain == chunk


def test_scratch_memory_is_bounded():
    base = RNG(11).bytes(16 << 20)
    plain = change(base, "tails", 2)
    body = encode(plain, base, "BF16")[1]
    target = bytearray(base)
    with peak_below(3 * len(plain) + (16 << 20)):
        scratch = EncodeScratch()
        encode_delta(memoryview(plain), memoryview(base), BASE_ID, DTYPES["BF16"], scratch)
    with peak_below(2 * len(plain) + (8 << 20)):
        apply_delta(memoryview(body), memoryview(target), DecodeScratch())
    assert target == plain


@pytest.mark.parametrize("case", sorted(path.stem for path in GOLDEN.glob("*.body")))
def test_golden_bodies_stay_readable(case):
    body, base, plain = (
        (GOLDEN / f"{case}.{end}").read_bytes() for end in ("body", "base", "plain")
    )
    assert parse_references(body).bases == (hash_chunk(base),)
    if case.startswith("cast"):
        target = bytearray(len(plain))
        apply_cast(memoryview(body), memoryview(base), memoryview(target), DECODE)
        assert target == plain
        return
    assert decode(Encoding.DELTA, body, base) == plain
    assert decode_slowly(body, base) == plain


def test_golden_bodies_are_there():
    kinds = set()
    for path in GOLDEN.glob("delta-*.body"):
        body = path.read_bytes()
        if body[2] == 2:
            kinds.update(body[44 + 8 * n] for n in range(body[40]))
    assert kinds == {0, 1, 2, 3, 4, 5}
    assert len(list(GOLDEN.glob("cast-*.body"))) == 2


def body_of(*planes, words_byte=2, coding=2, layout=2):
    entries = b"".join(struct.pack("<B3xI", kind, len(piece)) for kind, piece in planes)
    pieces = b"".join(piece for _, piece in planes)
    block = encode_references(References((BASE_ID,), words_byte, coding))
    return block + bytes([layout, 0, 0, 0]) + entries + pieces


def listed(gaps, values, count=None, size=None):
    first = frame(gaps)
    head = struct.pack("<II", len(gaps) if count is None else count, size or len(first))
    return head + first + frame(values)


ZERO = (1, b"\0")
BLOCK = encode_references(References((BASE_ID,), 1, 1))
HOSTILE = {
    "nothing": b"",
    "block only": encode_references(References((BASE_ID,), 2, 2)),
    "two bases": encode_references(References((BASE_ID, BASE_ID), 2, 2)) + body_of(ZERO, ZERO)[40:],
    "damaged block": b"\1\2\2\0aaaa" + body_of(ZERO, ZERO)[8:],
    "coding 0": body_of(ZERO, ZERO, coding=0),
    "coding 3": body_of(ZERO, ZERO, coding=3),
    "zstd of wide words": body_of(ZERO, ZERO, coding=1),
    "other words": body_of(ZERO, ZERO, words_byte=4),
    "odd words": body_of(ZERO, ZERO, words_byte=0x22),
    "rotated": body_of(ZERO, ZERO, words_byte=0x12, layout=0x12),
    "planes of bytes": body_of(ZERO, words_byte=1, layout=1),
    "kind 6": body_of((6, b"\0"), ZERO),
    "short raw": body_of((0, bytes(599)), ZERO),
    "empty list": body_of((4, listed(b"", b"")), ZERO),
    "no list": body_of((4, b""), ZERO),
    "list without frames": body_of((4, struct.pack("<II", 1, 0)), ZERO),
    "list too long": body_of((4, listed(bytes(76), bytes(76))), ZERO),
    "list beyond": body_of((4, listed(b"\xff\xff\x58", b"abc")), ZERO),
    "low list beyond": body_of(ZERO, (4, listed(b"\xff\xff\x58", b"abc"))),
    "list of other count": body_of((4, listed(b"ab", b"abc")), ZERO),
    "frame beyond": body_of((4, listed(b"ab", b"ab", size=999)), ZERO),
    "count beyond": body_of((4, listed(b"ab", b"ab", count=2**32 - 1)), ZERO),
    "tails without list": body_of((5, struct.pack("<I", 9) + frame(bytes(300))), ZERO),
    "tails too short": body_of((5, b"\1"), ZERO),
    "tails of other size": body_of(
        (5, struct.pack("<I", len(frame(bytes(299)))) + frame(bytes(299)) + listed(b"a", b"b")),
        ZERO,
    ),
    "bytes of other size": BLOCK + frame(bytes(1199)),
    "bytes and more": BLOCK + frame(bytes(1200)) + b"\0",
    "huge": BLOCK + frame(bytes(100 << 20)),
}


@for_each("body", HOSTILE.values())
def test_hostile_bodies_are_refused_and_change_nothing(body):
    plain = bytearray(b"\xa5" * 1200)
    with peak_below(1 << 20):
        with pytest.raises(FormatError):
            apply_delta(memoryview(body), memoryview(plain), DECODE)
    assert plain == b"\xa5" * 1200


def test_lists_that_just_fit_are_taken():
    gaps = b"\xff\xff\x57"
    body = body_of((4, listed(gaps, b"\1\2\3")), (4, listed(bytes(75), b"\xff" * 75)))
    plain = bytearray(1200)
    apply_delta(memoryview(body), memoryview(plain), DECODE)
    assert plain == decode_slowly(body, bytes(1200))
    assert plain[255 * 2 + 1], plain[-1] == (1, 3)


def test_a_delta_of_nothing_is_refused():
    with pytest.raises(FormatError):
        apply_delta(memoryview(BLOCK + frame(b"")), memoryview(bytearray()), DECODE)


VALID = [
    (encode(change(base, how, DTYPES[dtype].word_bytes), base, dtype)[1], size_bytes)
    for how in CHANGES
    for dtype in ("BF16", "F32", "I64", "U8")
    for size_bytes in (16384, 70_000)
    for base in (RNG(12).bytes(size_bytes),)
]


@given(
    valid=st.sampled_from(VALID),
    edits=st.lists(st.tuples(st.integers(0, 300), st.integers(0, 255)), max_size=4),
    ends=st.tuples(st.integers(0, 60), st.binary(max_size=4)),
    excess=st.sampled_from([0, 0, 0, -8, -2, -1, 1, 2, 8, 1 << 20]),
    keep_block=st.booleans(),
)
def test_damaged_bodies_are_refused_or_give_something(valid, edits, ends, excess, keep_block):
    body, size_bytes = valid
    cut, tail = ends
    damaged = bytearray(body[: max(len(body) - cut, 0)] + tail)
    for place, value in edits:
        damaged[place % len(damaged)] = value
    if keep_block:
        damaged[:40] = body[:40]
    plain = bytearray(size_bytes + excess)
    try:
        apply_delta(memoryview(damaged), memoryview(plain), DECODE)
    except FormatError:
        assert not any(plain)
