import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mvc.errors import FormatError
from mvc.formats.plane_kinds import find_base, pack_nibbles, parse_nibbles, unpack_nibbles
from support.cases import for_each

ARENA_BYTES = 1 << 10  # small, so that planes span several rounds


def pack(plane, base):
    work = np.array(plane, np.uint8)
    packed = pack_nibbles(work, base, np.empty(ARENA_BYTES, np.uint8))
    if packed is None:
        assert np.array_equal(work, plane)
        return None
    return packed[0], packed[1].tobytes()


def unpack(head, nibbles, words):
    base, positions, values, frame = parse_nibbles(memoryview(head + nibbles), words)
    plane = np.full(words, 0xA5, np.uint8)
    unpack_nibbles(np.frombuffer(frame, np.uint8), base, positions, values, plane)
    return plane


def unpack_slowly(head, nibbles, words):
    base, count = head[0], int.from_bytes(head[4:8], "little")
    plane = [(base + (byte & 15)) % 256 for byte in nibbles]
    plane += [(base + (byte >> 4)) % 256 for byte in nibbles]
    del plane[words:]
    for number in range(count):
        position = int.from_bytes(head[8 + 4 * number : 12 + 4 * number], "little")
        plane[position] = head[8 + 4 * count + number]
    return plane


@given(
    words=st.integers(1, 3 * ARENA_BYTES),
    base=st.integers(0, 240),
    exceptions=st.lists(st.integers(0, 255), max_size=9),
    seed=st.integers(0, 999),
)
def test_round_trip(words, base, exceptions, seed):
    rng = np.random.default_rng(seed)
    plane = (base + rng.integers(0, 16, words)).astype(np.uint8)
    places = rng.integers(0, words, len(exceptions))
    plane[places] = exceptions
    outside = int(np.count_nonzero((plane < base) | (plane > base + 15)))
    packed = pack(plane, base)
    if outside > words // 256:
        assert packed is None
        return
    assert packed is not None
    assert len(packed[1]) == (words + 1) // 2
    assert len(packed[0]) == 8 + 5 * outside
    assert np.array_equal(unpack(*packed, words), plane)
    assert unpack_slowly(*packed, words) == plane.tolist()


def test_exceptions_at_both_ends_and_at_every_seam():
    plane = np.full(40 * ARENA_BYTES + 3, 100, np.uint8)
    plane[[0, 7, 8, ARENA_BYTES - 1, ARENA_BYTES, plane.size // 2, -1]] = [0, 1, 255, 99, 116, 3, 9]
    packed = pack(plane, 100)
    assert packed is not None
    assert np.array_equal(unpack(*packed, plane.size), plane)


def test_bytes_of_a_packed_plane():
    plane = np.full(256, 113, np.uint8)
    plane[5] = 7
    plane[128:] = 114
    head, nibbles = pack(plane, 110)
    assert head.hex() == "6e000000010000000500000007"
    assert nibbles == b"\x43" * 5 + b"\x40" + b"\x43" * 122


@pytest.mark.parametrize(
    ("values", "base"),
    [
        (range(16), 0),
        (range(240, 256), 240),
        ([*range(100, 116)] * 100 + [3] * 6, 100),
        ([*range(100, 116)] * 100 + [3] * 7, None),
        (range(17), None),
        ([0, 255], None),
    ],
)
def test_find_base(values, base):
    assert find_base(np.array(values, np.uint8)) == base


def head(base=1, zeros=b"\0\0\0", positions=(3,), values=b"\x09", count=None):
    number = len(positions) if count is None else count
    listed = b"".join(position.to_bytes(4, "little") for position in positions)
    return bytes([base]) + zeros + number.to_bytes(4, "little") + listed + values


@for_each(
    "body",
    [
        b"",
        b"\0" * 7,
        head(zeros=b"\1\0\0"),
        head(zeros=b"\0\1\0"),
        head(zeros=b"\0\0\1"),
        head(values=b""),
        head(count=2),
        head(count=2**32 - 1),
        head(positions=(512,)),
        head(positions=(2**32 - 1,)),
        head(positions=(3, 3), values=b"ab"),
        head(positions=(4, 3), values=b"ab"),
        head(positions=(3, 4, 5), values=b"abc"),
    ],
)
def test_impossible_headers_are_refused(body):
    with pytest.raises(FormatError):
        parse_nibbles(memoryview(body), 512)


def test_two_exceptions_are_allowed_in_512_words():
    _, positions, values, frame = parse_nibbles(
        memoryview(head(positions=(3, 511), values=b"ab") + b"frame"), 512
    )
    assert positions.tolist() == [3, 511]
    assert values.tobytes() == b"ab"
    assert bytes(frame) == b"frame"
