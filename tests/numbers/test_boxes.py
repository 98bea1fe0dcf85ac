"""Boxes against NumPy's own slices, for any shape, box and run."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mvc.numbers.boxes import (
    Box,
    TensorPart,
    count_part,
    find_fault,
    gather,
    is_inside,
    locate_part,
    scatter,
    whole_box,
)


@st.composite
def boxes(draw):
    """A shape, a box in it, a run of its elements and the bytes of an element."""
    shape = tuple(draw(st.lists(st.integers(0, 6), max_size=4)))
    ranges = [sorted(draw(st.tuples(st.integers(0, dim), st.integers(0, dim)))) for dim in shape]
    ranges = [
        (0, dim) if draw(st.booleans()) else pair for pair, dim in zip(ranges, shape, strict=True)
    ]
    box = Box(tuple(low for low, _ in ranges), tuple(high - low for low, high in ranges))
    run = sorted(draw(st.tuples(*[st.integers(0, math.prod(shape))] * 2)))
    return shape, box, run, draw(st.sampled_from([1, 2, 3, 4, 8, 16]))


def numbers_of(shape, box):
    cut = tuple(slice(o, o + n) for o, n in zip(box.offsets, box.sizes, strict=True))
    return np.arange(math.prod(shape)).reshape(shape)[cut].reshape(-1)


@given(boxes())
def test_a_part_is_what_slices_say(case):
    shape, box, (first, last), item_bytes = case
    rng = np.random.default_rng(0)
    tensor = rng.integers(0, 256, (math.prod(shape), item_bytes), np.uint8)
    numbers = numbers_of(shape, box)
    inside = numbers[(numbers >= first) & (numbers < last)]

    assert is_inside(shape, box)
    assert count_part(shape, box, first, last) == len(inside)
    assert locate_part(shape, box, first) == (numbers < first).sum()

    part = np.empty(len(inside) * item_bytes, np.uint8)
    gather(tensor[first:last].reshape(-1), part, shape, box, first, item_bytes)
    assert part.tobytes() == tensor[inside].tobytes()

    run = np.zeros((last - first, item_bytes), np.uint8)
    scatter(part, run.reshape(-1), shape, box, first, item_bytes)
    expected = np.zeros_like(run)
    expected[inside - first] = tensor[inside]
    assert run.tobytes() == expected.tobytes()


@pytest.mark.parametrize(
    "box", [Box((0,), (2, 2)), Box((-1, 0), (1, 1)), Box((2, 0), (2, 3)), Box((0, 0), (-1, 3))]
)
def test_boxes_outside_their_tensor_are_seen(box):
    assert not is_inside((3, 3), box)
    assert is_inside((3, 3), whole_box((3, 3)))


@st.composite
def partitions(draw):
    """A shape, and boxes that cover it once: it is cut again and again."""
    shape = tuple(draw(st.lists(st.integers(1, 5), min_size=1, max_size=3)))
    found = [whole_box(shape)]
    for _ in range(draw(st.integers(0, 6))):
        box = found.pop(draw(st.integers(0, len(found) - 1)))
        place = draw(st.integers(0, len(shape) - 1))
        size = draw(st.integers(0, box.sizes[place]))
        for at, length in ((0, size), (size, box.sizes[place] - size)):
            offsets, sizes = list(box.offsets), list(box.sizes)
            offsets[place] += at
            sizes[place] = length
            found.append(Box(tuple(offsets), tuple(sizes)))
    return shape, draw(st.permutations(found))


@given(partitions(), st.data())
def test_boxes_that_cover_a_tensor_once(case, data):
    shape, found = case
    assert find_fault(shape, found) is None
    count = np.zeros(shape, int)
    other = [*found]
    box = other.pop(data.draw(st.integers(0, len(found) - 1)))
    if data.draw(st.booleans()):
        other += [box, data.draw(st.sampled_from(found))]
    for one in other:
        count[tuple(slice(a, a + n) for a, n in zip(one.offsets, one.sizes, strict=True))] += 1
    expected = "overlap" if count.max() > 1 else "leave gaps" if count.min() < 1 else None
    assert find_fault(shape, other) == expected


def test_faults_of_boxes():
    assert find_fault((3,), [Box((0,), (4,))]) == "reach outside of it"
    assert find_fault((), [whole_box(())]) is None
    assert find_fault((), [whole_box(())] * 2) == "overlap"
    assert find_fault((), []) == "leave gaps"
    assert find_fault((0, 3), []) is None
    # A pinwheel: no plane parts it.
    wheel = [Box((0, 0), (1, 2)), Box((0, 2), (2, 1)), Box((2, 1), (1, 2)), Box((1, 0), (2, 1))]
    assert find_fault((3, 3), [*wheel, Box((1, 1), (1, 1))]) is None
    assert find_fault((3, 3), wheel) == "leave gaps"
    assert find_fault((3, 3), [*wheel, Box((1, 1), (2, 1))]) == "overlap"


def test_boxes_beyond_number():
    peeled, rest = [], Box((0, 0), (1000, 1000))
    for step in range(1998):  # a row, a column, a row: each plane parts one box
        place = step % 2
        sizes = [*rest.sizes]
        sizes[place] = 1
        peeled.append(Box(rest.offsets, tuple(sizes)))
        offsets, sizes = [*rest.offsets], [*rest.sizes]
        offsets[place] += 1
        sizes[place] -= 1
        rest = Box(tuple(offsets), tuple(sizes))
    assert find_fault((1000, 1000), [*peeled, rest]) == "are too many, and lie too crosswise"
    assert find_fault((9, 9), [whole_box((9, 9))] * 500) == "are too many, and lie too crosswise"
    assert find_fault((9000, 9), [Box((row, 0), (1, 9)) for row in range(9000)]) is None


@given(boxes(), st.integers(1, 9))
def test_a_part_is_put_together_from_chunks(case, chunk_items):
    shape, box, _, item_bytes = case
    total = math.prod(shape) * item_bytes
    data = np.random.default_rng(0).integers(0, 256, total, np.uint8)
    part = TensorPart(shape, box, item_bytes)
    cut = tuple(slice(at, at + size) for at, size in zip(box.offsets, box.sizes, strict=True))
    wanted = data.view(f"V{item_bytes}").reshape(shape)[cut].tobytes()
    assert part.size_bytes == len(wanted)
    chunk_bytes, target = chunk_items * item_bytes, bytearray(len(wanted))
    runs = list(part.cut(chunk_bytes))
    assert [run.part_offset for run in runs] == list(
        np.cumsum([0, *(run.part_bytes for run in runs)])[:-1]
    )
    for run in runs:
        assert run.offset == run.number * chunk_bytes
        assert run.part_bytes > 0
        chunk = memoryview(data)[run.offset : run.offset + run.size_bytes]
        part.take(run, chunk, memoryview(target)[run.part_offset :][: run.part_bytes])
    assert bytes(target) == wanted
    assert sum(run.size_bytes for run in runs if run.is_whole) <= len(wanted)
