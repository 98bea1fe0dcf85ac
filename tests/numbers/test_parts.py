"""What a part has of each chunk, against NumPy's own slices."""

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from mvc.numbers.boxes import Box, TensorPart


@st.composite
def boxes(draw):
    shape = tuple(draw(st.lists(st.integers(0, 6), max_size=4)))
    offsets = tuple(draw(st.integers(0, dim)) for dim in shape)
    sizes = tuple(draw(st.integers(0, dim - at)) for dim, at in zip(shape, offsets, strict=True))
    return shape, Box(offsets, sizes)


@given(boxes(), st.sampled_from([1, 2, 8, 16]), st.integers(1, 9))
def test_a_part_is_put_together_from_chunks(pair, item_bytes, chunk_items):
    shape, box = pair
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
