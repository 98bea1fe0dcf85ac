"""Which chunks are looked at, and what looks say of groups that they did not see."""

import pytest

from mvc.chunkstore.looks import choose_looks, judge_groups
from mvc.chunkstore.values import ChunkSpan
from mvc.dtypes import get_dtype
from mvc.formats.deltas import MIN_DELTA_BYTES
from mvc.ids import ChunkId

BF16, F32 = get_dtype("BF16"), get_dtype("F32")
BASE = ChunkId(bytes(32))


def span(group, size_bytes=2**20, dtype=F32, base=BASE, offset=0):
    return ChunkSpan(offset, size_bytes, dtype, base=base, group=group)


def groups_of(spans):
    return [one.group for one in spans]


def test_looks_are_a_twelfth_and_go_to_the_largest_groups():
    spans = [span(group, 2 ** (16 + group), offset=i) for group in range(6) for i in range(12)]
    looks = choose_looks(spans)
    assert groups_of(looks) == [5, 4, 3, 2, 1, 0]
    assert {one.offset for one in looks} == {6}
    assert groups_of(choose_looks(spans[:36])) == [2, 1, 0]
    assert [one.offset for one in choose_looks(spans[:12] * 9)] == [6, 6, 6]
    assert groups_of(choose_looks([span(group) for group in range(40)])) == [0, 1, 2]


@pytest.mark.parametrize(("count", "looks"), [(0, 0), (1, 0), (2, 1), (23, 1), (24, 2)])
def test_few_chunks_have_one_look_and_one_has_none(count, looks):
    assert len(choose_looks([span(i) for i in range(count)])) == looks


def test_only_chunks_that_may_be_differences_are_looked_at():
    others = [span(1, MIN_DELTA_BYTES - 1)] * 30 + [span(2, base=None)] * 30
    assert choose_looks(others) == []
    assert groups_of(choose_looks([*others, span(0), span(0)])) == [0]


def test_groups_without_a_look_go_by_others_of_their_type():
    spans = [span(group, dtype=BF16 if group < 4 else F32) for group in range(8)]
    good, bad = (0.3, 0.6), (0.59, 0.6)
    assert judge_groups(spans, []) == {}
    looks = [(spans[0], *good), (spans[4], *bad)]
    assert judge_groups(spans, looks) == {0: 0.6, 1: 0.6, 2: 0.6, 3: 0.6} | dict.fromkeys(
        range(4, 8)
    )
    mixed = judge_groups(spans, [*looks, (spans[5], *good)])
    assert mixed[4] is None
    assert mixed[5] == 0.6
    assert not mixed.keys() & {6, 7}
    assert mixed[3] == 0.6


@pytest.mark.parametrize(("as_delta", "is_taken"), [(0.44, True), (0.46, False)])
def test_a_group_is_judged_by_all_of_its_looks(as_delta, is_taken):
    looks = [(span(0), as_delta - 0.2, 0.5), (span(0), as_delta + 0.2, 0.7)]
    verdict = judge_groups([span(0)], looks)[0]
    assert verdict == (pytest.approx(0.6) if is_taken else None)
