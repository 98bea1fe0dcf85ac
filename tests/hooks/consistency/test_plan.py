"""The plan of shares: everything has its turn once in so many steps, and shares are even."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mvc_lab.consistency.held import SHARE_BYTES, Unit, UnitSlice, cut_shares, find_due

pytestmark = pytest.mark.torch

units = st.lists(
    st.tuples(st.sampled_from("ab"), st.integers(0, 5000), st.booleans()), min_size=1, max_size=40
).map(lambda found: [Unit(at, *one) for at, one in enumerate(found)])


@given(units, st.integers(1, 50), st.integers(1, 4000))
def test_every_element_is_in_one_share(units, every, share_bytes):
    shares = cut_shares(units, every, share_bytes)
    seen = [(share.group, piece) for share in shares for piece in share.slices]
    for unit in units:
        pieces = [
            piece for group, piece in seen if (group, piece.unit) == (unit.group, unit.number)
        ]
        assert [one.part for one in pieces] == list(range(pieces[0].parts))
        assert len(pieces) == 1 or unit.can_cut
    assert len(seen) == sum(share.slices != () and len(share.slices) for share in shares)
    assert cut_shares(units, every, share_bytes) == shares


@given(st.integers(1, 300), st.integers(1, 120), st.integers(0, 5))
def test_every_share_has_its_turn_once_in_every_steps(count, every, rotation):
    first = rotation * every + 1
    turns = [
        share for step in range(first, first + every) for share in find_due(step, count, every)
    ]
    assert turns == list(range(count))
    assert count - 1 in find_due(first + every - 1, count, every)


@given(st.integers(0, 5000), st.integers(1, 9))
def test_slices_cover_a_tensor(numel, parts):
    ends = [UnitSlice(0, part, parts).range(numel) for part in range(parts)]
    assert [ends[0][0], ends[-1][1]] == [0, numel]
    assert all(left[1] == right[0] for left, right in itertools.pairwise(ends))


def test_shares_are_even():
    units = [Unit(at, "whole", 1000, can_cut=True) for at in range(990)]
    units.append(Unit(990, "whole", 10_000, can_cut=True))
    shares = cut_shares(units, 100, 10)
    sizes = [
        sum(units[one.unit].size_bytes / one.parts for one in share.slices) for share in shares
    ]
    assert len(shares) == 100
    assert max(sizes) <= 1.2 * min(sizes)


def test_a_small_state_is_one_share_and_a_large_one_has_at_most_every():
    assert len(cut_shares([Unit(0, "whole", SHARE_BYTES, can_cut=True)], 100)) == 1
    assert len(cut_shares([Unit(0, "whole", 5 * SHARE_BYTES, can_cut=True)], 100)) == 5
    assert len(cut_shares([Unit(0, "whole", 500 * SHARE_BYTES, can_cut=True)], 100)) == 100
    assert len(cut_shares([Unit(0, "whole", 500 * SHARE_BYTES, can_cut=False)], 100)) == 1


def test_each_group_has_shares_of_its_own():
    shares = cut_shares([Unit(0, "whole", 4, False), Unit(1, "copied", 4, False)], 1)
    assert [share.group for share in shares] == ["whole", "copied"]
    assert find_due(1, 2, 1) == [0, 1]
