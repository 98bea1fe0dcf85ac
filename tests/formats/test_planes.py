import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mvc.errors import FormatError
from mvc.formats.planes import (
    ARENA_BYTES,
    BLOCK_BYTES,
    PLANE_CONSTANT,
    PLANE_NIBBLES,
    PLANE_RAW,
    PLANE_ZSTD,
    WORD_SIZES,
    PlaneLayout,
    StoredPlane,
    encode_header,
    merge_planes,
    parse_header,
    split_planes,
)
from support.cases import for_each

LAYOUTS = [PlaneLayout(width, rotated) for width in WORD_SIZES for rotated in (False, True)]


def split_slowly(plain, layout):
    """The definition: rotate the nine highest bits left by one, then deal out the bytes."""
    bits = 8 * layout.word_bytes
    rest = bits - 9
    planes = [bytearray() for _ in range(layout.word_bytes)]
    for start in range(0, len(plain), layout.word_bytes):
        word = int.from_bytes(plain[start : start + layout.word_bytes], "little")
        if layout.rotated:
            nine = word >> rest
            nine = (nine << 1 | nine >> 8) & 0x1FF
            word = nine << rest | word & ((1 << rest) - 1)
        for plane, byte in zip(planes, word.to_bytes(layout.word_bytes, "big"), strict=True):
            plane.append(byte)
    return [bytes(plane) for plane in planes]


def split(plain, layout):
    data = np.frombuffer(plain, np.uint8)
    planes = list(np.empty((layout.word_bytes, data.size // layout.word_bytes), np.uint8))
    split_planes(data, layout, planes, np.empty(ARENA_BYTES, np.uint8))
    return planes


def merge(planes, layout):
    plain = np.full(planes[0].size * layout.word_bytes, 0xA5, np.uint8)
    merge_planes(planes, layout, plain, np.empty(ARENA_BYTES, np.uint8))
    return plain.tobytes()


@pytest.mark.parametrize("layout", LAYOUTS)
@given(data=st.data())
def test_split_is_the_definition_and_merge_its_inverse(layout, data):
    words = data.draw(st.integers(1, 70))
    plain = data.draw(
        st.binary(min_size=words * layout.word_bytes, max_size=words * layout.word_bytes)
    )
    planes = split(plain, layout)
    assert [plane.tobytes() for plane in planes] == split_slowly(plain, layout)
    assert merge(planes, layout) == plain


@pytest.mark.parametrize("rotated", [False, True])
def test_every_16_bit_word(rotated):
    plain = np.arange(1 << 16, dtype="<u2").tobytes()
    layout = PlaneLayout(2, rotated)
    planes = split(plain, layout)
    assert [plane.tobytes() for plane in planes] == split_slowly(plain, layout)
    assert merge(planes, layout) == plain


@for_each("layout", LAYOUTS)
@for_each("excess", [-1, 0, 1])
def test_blocks_join_without_a_seam(layout, excess):
    words = 2 * BLOCK_BYTES // layout.word_bytes + excess
    plain = np.random.default_rng(7).bytes(words * layout.word_bytes)
    planes = split(plain, layout)
    ends = slice(-100 * layout.word_bytes, None)
    assert [plane[-100:].tobytes() for plane in planes] == split_slowly(plain[ends], layout)
    assert merge(planes, layout) == plain


@pytest.mark.parametrize("layout", LAYOUTS)
def test_unaligned_buffers(layout):
    plain = np.random.default_rng(3).bytes(1000 * layout.word_bytes)
    for offset in range(1, 8):
        buffer = bytearray(offset) + plain
        planes = split(memoryview(buffer)[offset:], layout)
        assert merge(planes, layout) == plain
        target = np.zeros(len(buffer), np.uint8)
        merge_planes(planes, layout, target[offset:], np.empty(ARENA_BYTES, np.uint8))
        assert target.tobytes() == bytes(offset) + plain


@pytest.mark.parametrize("layout", LAYOUTS)
@given(constant=st.integers(0, 255), seed=st.integers(0, 99))
def test_broadcast_planes_are_like_filled_ones(layout, constant, seed):
    rng = np.random.default_rng(seed)
    broadcast = np.broadcast_to(np.array([constant], np.uint8), 50)
    choices = [bool(bit) for bit in rng.integers(0, 2, layout.word_bytes)]
    noise = rng.integers(0, 256, (layout.word_bytes, 50), dtype=np.uint8)
    planes = [broadcast if choice else noise[n] for n, choice in enumerate(choices)]
    assert merge(planes, layout) == merge([plane.copy() for plane in planes], layout)


def test_the_exponent_has_the_top_plane_for_itself():
    values = np.array([1.5, -1.5, 1.25, -1.0], np.float32)
    for plain, width in ((values.tobytes(), 4), ((values.view("<u4") >> 16).astype("<u2"), 2)):
        top, second, *_ = split(bytes(plain), PlaneLayout(width, rotated=True))
        assert top.tolist() == [127] * 4
        assert second.tolist() == [0x40, 0xC0, 0x20, 0x80]


ENTRIES = [
    StoredPlane(PLANE_ZSTD, 5),
    StoredPlane(PLANE_RAW, 9),
    StoredPlane(PLANE_CONSTANT, 1),
    StoredPlane(PLANE_NIBBLES, 7),
]
BODY = encode_header(PlaneLayout(4, rotated=True), ENTRIES) + bytes(5 + 9 + 1 + 7)


def test_header_bytes():
    assert BODY[:36].hex() == (
        "140000000200000005000000000000000900000001000000010000000300000007000000"
    )


def test_header_round_trip():
    layout, planes, start = parse_header(memoryview(BODY), 36)
    assert (layout, list(planes), start) == (PlaneLayout(4, rotated=True), ENTRIES, 36)


@for_each(
    ("position", "value"),
    [
        (0, 0x03), (0, 0x24), (0, 0x94), (0, 0x10), (0, 0x08), (0, 0x02), (1, 1), (2, 1), (3, 1),
        (4, 4), (4, 255), (5, 1), (6, 1), (7, 1), (8, 6), (11, 1), (12, 1), (16, 8),
        (20, 0), (24, 2),
    ],
)  # fmt: skip
def test_every_field_of_the_header_is_checked(position, value):
    body = bytearray(BODY)
    body[position] = value
    with pytest.raises(FormatError):
        parse_header(memoryview(body), 36)


@pytest.mark.parametrize("plain_bytes", [0, 4, 32, 35, 37, 40, 2**32])
def test_header_must_fit_the_plain_size(plain_bytes):
    with pytest.raises(FormatError):
        parse_header(memoryview(BODY), plain_bytes)


def test_body_must_be_whole():
    for cut in range(len(BODY)):
        with pytest.raises(FormatError):
            parse_header(memoryview(BODY)[:cut], 36)
    with pytest.raises(FormatError):
        parse_header(memoryview(BODY + b"\0"), 36)
