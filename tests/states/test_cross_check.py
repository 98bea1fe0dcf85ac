"""Who checks what, and when: never what it keeps itself, all of it in one cycle, and evenly."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mvc.numbers.boxes import Box, whole_box
from mvc.states.cross_check import (
    CHECK_ROUNDS,
    count_checkable,
    list_checked,
    list_checkers,
    list_due,
)
from mvc.states.keepers import ArrayForm, Keepers, list_holders
from support.boxes import grid

CYCLE = range(7, 7 + CHECK_ROUNDS)
"""Rounds in a row; any would do."""
MIB = 2**20


@given(st.integers(0, 200), st.integers(0, 40), st.integers(0, 60), st.integers(0, 100))
def test_every_chunk_is_due_once_in_a_cycle(array, start, count, first):
    chunks = range(start, start + count)
    cycle = range(first, first + CHECK_ROUNDS)
    assert sorted(one for number in cycle for one in list_due(array, chunks, number)) == [*chunks]


@given(
    st.tuples(st.integers(1, 40), st.integers(1, 40)),
    st.integers(1, 3),
    st.integers(1, 3),
    st.integers(2, 3),
    st.sampled_from([16, 64, 4096]),
)
def test_each_element_is_checked_once_by_a_rank_that_holds_and_does_not_keep_it(
    shape, rows, columns, copies, chunk_bytes
):
    """Boxes of HSDP and of two dimensions, even or not."""
    form, ranks = ArrayForm(shape, 4, grid(shape, rows, columns, copies)), rows * columns * copies
    keepers = Keepers([form] * 3, ranks, chunk_bytes)
    holders = dict(enumerate(set(one) for one in form.holders.ranks))
    seen = [np.zeros((form.elements, 4), np.uint8) for _ in keepers.forms]
    parts = {}
    for number in CYCLE:
        for rank in range(ranks):
            end = 0
            for part in list_checked(keepers, rank, 0, number):
                kept = keepers.divisions[part.array].kept[part.number]
                assert rank == kept.checker != kept.rank
                assert any({rank, kept.rank} <= one for one in holders.values())
                assert part.offset >= end
                end = part.offset + part.size_bytes
                elements = np.arange(form.elements).reshape(kept.shape)
                box = zip(kept.box.offsets, kept.box.sizes, strict=True)
                mine = elements[tuple(slice(at, at + size) for at, size in box)].reshape(-1)
                seen[part.array][mine[part.start // 4 :][: part.size_bytes // 4]] += 1
                parts.setdefault((number, part.array, part.chunk), set()).add(rank)
    if form.elements == 1:
        assert not parts, "single numbers are not checked"
        return
    assert all((one == 1).all() for one in seen)
    found = [(number, *one) for number in CYCLE for one in list_checkers(keepers, number)]
    assert {(number, array, chunk) for number, array, chunk, _ in found} == parts.keys()
    assert len(found) == len(parts) == sum(map(len, keepers.owners)) == count_checkable(keepers)
    for number, array, chunk, checker in found:
        assert checker != keepers.owners[array][chunk]
        assert checker in parts[number, array, chunk]


def test_what_one_rank_alone_has_is_not_checked():
    """As in FSDP; and of a chunk with some of that, nothing is compared."""
    rows = [Box((0, 0), (6, 8)), Box((6, 0), (2, 8)), Box((6, 0), (2, 8))]
    mixed = ArrayForm((8, 8), 4, list_holders(range(3), rows))
    sharded = ArrayForm((8, 8), 4, grid((8, 8), 3, 1, 1))
    number = ArrayForm((), 4, list_holders(range(3), [whole_box(())] * 3))
    keepers = Keepers([sharded, number], 3, 64)
    assert count_checkable(keepers) == 0
    assert not any([*list_checked(keepers, rank, 0, one)] for rank in range(3) for one in CYCLE)
    keepers = Keepers([mixed], 3, 128)
    assert sorted(one for number in CYCLE for one in list_checkers(keepers, number)) == []
    keepers = Keepers([mixed], 3, 64)
    assert [one for number in CYCLE for one in list_checkers(keepers, number)] == [(0, 3, 2)]


@pytest.mark.parametrize("ranks", [2, 16])
@pytest.mark.parametrize("step", [1, 4, 13])
def test_every_rank_copies_about_a_sixteenth_more_in_every_round(ranks, step):
    """Layers of one large tensor and small ones, which come again after so many arrays."""
    large, small = (2**24,), (2**10,)
    forms = [
        ArrayForm(shape, 4, list_holders(range(ranks), [whole_box(shape)] * ranks))
        for _ in range(48)
        for shape in (large, *[small] * (step - 1))
    ]
    keepers = Keepers(forms, ranks)
    kept = sum(form.elements for form in forms) * 4 / ranks
    sizes = [
        sum(part.size_bytes for part in list_checked(keepers, rank, 0, number))
        for rank in range(ranks)
        for number in range(CHECK_ROUNDS)
    ]
    assert sum(sizes) == kept * ranks
    assert max(sizes) <= 2.5 * kept / CHECK_ROUNDS, (
        "of 16 ranks, which have 3 chunks each in a round"
    )
