import numpy as np
import pytest

from mvc.dtypes import DTYPES
from mvc.errors import FormatError
from mvc.formats.casts import CAST_F32_BF16, CAST_F32_F16, find_cast, round_words
from mvc.formats.decoding import DecodeScratch, Encoding
from mvc.formats.encoding import encode_cast
from mvc.formats.pack import References, encode_references, parse_references
from mvc.ids import hash_chunk
from support.casts import apply_cast

SCRATCH = DecodeScratch()
HIGH_HALVES = np.arange(65536, dtype="<u4") << 16
LOW_HALVES = [0, 1, 0x0FFF, 0x1000, 0x1001, 0x1FFF, 0x2000, 0x7FFF, 0x8000, 0x8001, 0xFFFF]


def round_all(kind, words):
    rounded = np.empty(words.size, "<u2")
    round_words(kind, words.view(np.uint8), rounded.view(np.uint8), SCRATCH.arena)
    return rounded


def is_nan(words):
    return (words & 0x7FFFFFFF) > 0x7F800000


def round_bf16_slowly(word):
    if word & 0x7FFFFFFF > 0x7F800000:
        return 0xFFFF
    low, high = word & 0xFFFF, word >> 16
    return high + (low > 0x8000 or (low == 0x8000 and high & 1))


@pytest.mark.torch
@pytest.mark.parametrize("low", LOW_HALVES)
def test_every_kind_of_word_is_rounded_as_torch_does(low):
    torch = pytest.importorskip("torch")
    words = HIGH_HALVES | np.uint32(low)
    values = torch.from_numpy(words.view("<i4").copy()).view(torch.float32)
    numbers = ~is_nan(words)
    for kind, dtype in ((CAST_F32_BF16, torch.bfloat16), (CAST_F32_F16, torch.float16)):
        expected = values.to(dtype).view(torch.int16).numpy().view("<u2")
        rounded = round_all(kind, words)
        # The bits of a BF16 NaN are torch's on x86 with AVX2 only.
        compared = slice(None) if kind == CAST_F32_F16 else numbers
        assert np.array_equal(rounded[compared], expected[compared])


def test_every_upper_half_beside_usual_numbers_is_rounded_alike():
    """Takes the way for blocks of usual numbers, which the test above does not."""
    for low in LOW_HALVES:
        words = HIGH_HALVES | np.uint32(low)
        usual = np.full(20 * words.size, 0x3F800000, "<u4")
        usual[::20] = words
        assert np.array_equal(round_all(CAST_F32_F16, usual)[::20], round_all(CAST_F32_F16, words))


def test_bf16_is_what_the_format_says():
    words = np.concatenate([HIGH_HALVES[::7] | np.uint32(low) for low in LOW_HALVES])
    expected = [round_bf16_slowly(int(word)) for word in words]
    assert round_all(CAST_F32_BF16, words).tolist() == expected


def test_f16_nans_keep_sign_and_payload():
    words = np.array([0x7F800001, 0xFF800001, 0x7FC00000, 0xFFFFFFFF, 0x7F802000, 0x7FA02000])
    assert [f"{word:04x}" for word in round_all(CAST_F32_F16, words.astype("<u4"))] == [
        *("7e00", "fe00", "7e00", "ffff", "7e01", "7f01")
    ]


def test_nans_are_found_in_every_block():
    for position in (0, (1 << 18) - 1, 1 << 18, 600_000):
        words = np.zeros(600_001, "<u4")
        words[position] = 0xFF800001
        assert np.flatnonzero(round_all(CAST_F32_BF16, words) == 0xFFFF).tolist() == [position]
        assert np.flatnonzero(round_all(CAST_F32_F16, words)).tolist() == [position]


def test_f16_is_the_same_among_few_and_many_unusual_numbers():
    unusual = np.array([0, 1, 0x80000000, 0x7FC12345, 0xFF812345, 0x387FFFFF, 0x33000001], "<u4")
    unusual = np.concatenate([unusual, np.array([0x477FF000, 0x477FEFFF, 0x38800000], "<u4")])
    usual = np.random.default_rng(2).normal(0, 1, 5000).astype("<f4").view("<u4")
    among_few = round_all(CAST_F32_F16, np.concatenate([usual, unusual]))[5000:]
    assert among_few.tolist() == round_all(CAST_F32_F16, unusual).tolist()
    assert np.array_equal(
        round_all(CAST_F32_F16, usual), usual.view("<f4").astype("<f2").view("<u2")
    )


def test_which_dtypes_are_casts():
    assert find_cast(DTYPES["F32"], DTYPES["BF16"]) == CAST_F32_BF16 == 1
    assert find_cast(DTYPES["F32"], DTYPES["F16"]) == CAST_F32_F16 == 2
    assert find_cast(DTYPES["F32"], DTYPES["F32"]) is None
    assert find_cast(DTYPES["F64"], DTYPES["BF16"]) is None


MASTER = np.random.default_rng(1).normal(0, 0.02, 3000).astype("<f4").tobytes()
IDS = (hash_chunk(MASTER[:8000]), hash_chunk(MASTER[8000:]))


def apply(body, master=MASTER, size_bytes=6000):
    plain = bytearray(size_bytes)
    apply_cast(memoryview(body), memoryview(master), memoryview(plain), SCRATCH)
    return bytes(plain)


def test_a_cast_is_its_references_and_nothing_else():
    encoded = encode_cast(CAST_F32_BF16, IDS)
    assert (encoded.encoding, encoded.bases) == (Encoding.CAST, IDS)
    body = b"".join(encoded.parts)
    assert encoded.size_bytes == len(body) == 72
    assert parse_references(body) == References(IDS, CAST_F32_BF16, 0)
    assert apply(body) == round_all(CAST_F32_BF16, np.frombuffer(MASTER, "<u4")).tobytes()


@pytest.mark.parametrize(
    ("body", "master", "size_bytes"),
    [
        (b"", MASTER, 6000),
        (encode_references(References(IDS, 0, 0)), MASTER, 6000),
        (encode_references(References(IDS, 3, 0)), MASTER, 6000),
        (encode_references(References(IDS, 1, 1)), MASTER, 6000),
        (encode_references(References(IDS, 1, 0)) + b"\0", MASTER, 6000),
        (encode_references(References(IDS, 1, 0)), MASTER, 5998),
        (encode_references(References(IDS, 1, 0)), MASTER, 6002),
        (encode_references(References(IDS, 1, 0)), MASTER[:-2], 5999),
        (encode_references(References(IDS, 2, 0)), b"", 0),
    ],
)
def test_casts_that_do_not_fit_are_refused(body, master, size_bytes):
    with pytest.raises(FormatError):
        apply(body, master, size_bytes)
