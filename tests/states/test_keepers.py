"""Who keeps and who stores what: every element once, and planned in time that grows with the ranks."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mvc.numbers.boxes import Box, find_fault, whole_box
from mvc.states import keepers
from mvc.states.keepers import ArrayForm, Keepers, list_holders
from support.boxes import grid


@given(
    st.tuples(st.integers(0, 40), st.integers(0, 40)),
    st.integers(1, 3),
    st.integers(1, 3),
    st.integers(1, 3),
    st.sampled_from([16, 64, 4096]),
)
def test_every_element_is_kept_and_stored_once(shape, rows, columns, copies, chunk_bytes):
    form = ArrayForm(shape, 4, grid(shape, rows, columns, copies))
    assert find_fault(shape, form.holders.boxes) is None
    found = Keepers([form] * 2, rows * columns * copies, chunk_bytes)
    for division, owners in zip(found.divisions, found.owners, strict=True):
        seen = np.zeros(math.prod(shape) * 4, np.uint8)
        for one in division.kept:
            numbers = np.arange(form.elements, dtype=np.uint32).reshape(one.shape)
            inside = numbers[
                tuple(slice(o, o + n) for o, n in zip(one.box.offsets, one.box.sizes, strict=True))
            ].reshape(-1)
            seen.view(np.uint32)[inside] += 1
        assert (seen.view(np.uint32) == 1).all()
        assert len(owners) == -(-form.elements * 4 // chunk_bytes)
        for chunk, owner in enumerate(owners.tolist()):
            parts = division.find_parts(chunk)
            first, last = division.run_of(chunk)
            assert sum(count for _, count in parts) == last - first
            of = {}
            for number, count in parts:
                rank = division.kept[number].rank
                of[rank] = of.get(rank, 0) + count
            assert of[owner] == max(of.values())


def test_boxes_that_overlap_or_leave_out_something_are_seen():
    whole = whole_box((4, 4))
    for boxes in (
        [whole, Box((0, 0), (1, 1))],
        [Box((0, 0), (2, 4))],
        [Box((0, 0), (2, 4)), Box((1, 0), (2, 4))],
        [Box((0, 0), (4, 2)), Box((0, 1), (4, 2))],
    ):
        holders = list_holders(range(len(boxes)), boxes)
        assert find_fault((4, 4), holders.boxes) is not None


@pytest.mark.parametrize("copies", [1, 4])
def test_planning_grows_with_tensors_and_ranks_and_no_faster(monkeypatch, copies):
    """1,024 tensors on 1,024 ranks: boxes are looked at once for each form and turn, not for each tensor."""
    calls = []
    real = keepers.count_part
    monkeypatch.setattr(keepers, "count_part", lambda *a: calls.append(1) or real(*a))
    counts = {}
    for size in (256, 1024):
        shape = (4096, 1024)
        form = ArrayForm(shape, 4, grid(shape, size // copies, 1, copies))
        found = Keepers([form] * size, size)
        assert len(found.owners) == size
        loads = np.zeros(size, np.int64)
        for division in found.divisions:
            np.add.at(loads, *division.bytes_by_rank)
        assert loads.max() <= 1.1 * loads.mean()
        counts[size] = len(calls)
        calls.clear()
    assert 0 < counts[1024] <= 4.5 * counts[256]
