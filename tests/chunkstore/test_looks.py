"""Which chunks are looked at, and what looks say of groups that they did not see."""

import pytest

from mvc.chunkstore.looks import (
    DeltaVerdict,
    Look,
    choose_looks,
    judge,
    judge_groups,
    may_grow,
    plan_folds,
)
from mvc.chunkstore.values import ChunkSpan
from mvc.dtypes import get_dtype
from mvc.formats.deltas import MIN_DELTA_BYTES
from mvc.formats.pack import MAX_DEPTH
from mvc.ids import ChunkId

BF16, F32 = get_dtype("BF16"), get_dtype("F32")
BASE = ChunkId(bytes(32))


def span(group, size_bytes=2**20, dtype=F32, base=BASE, offset=0):
    return ChunkSpan(offset, size_bytes, dtype, base=base, group=group)


def groups_of(spans):
    return [one.group for one in spans]


def test_looks_are_a_twentieth_and_go_to_the_largest_groups():
    spans = [span(group, 2 ** (16 + group), offset=i) for group in range(6) for i in range(20)]
    looks = choose_looks(spans)
    assert groups_of(looks) == [5, 4, 3, 2, 1, 0]
    assert {one.offset for one in looks} == {10}
    assert groups_of(choose_looks(spans[:60])) == [2, 1, 0]
    assert [one.offset for one in choose_looks(spans[:20] * 9)] == [10, 10, 10]
    assert groups_of(choose_looks([span(group) for group in range(70)])) == [0, 1, 2]


@pytest.mark.parametrize(("count", "looks"), [(0, 0), (1, 0), (2, 1), (39, 1), (40, 2)])
def test_few_chunks_have_one_look_and_one_has_none(count, looks):
    assert len(choose_looks([span(i) for i in range(count)])) == looks


def test_only_chunks_that_may_be_differences_are_looked_at():
    others = [span(1, MIN_DELTA_BYTES - 1)] * 30 + [span(2, base=None)] * 30
    assert choose_looks(others) == []
    assert groups_of(choose_looks([*others, span(0), span(0)])) == [0]


def look(group, dtype=F32, whole=0.6, near=0.3, last=0.3):
    return Look(span(group, dtype=dtype), whole, near, last)


def test_groups_without_a_look_go_by_others_of_their_type():
    spans = [span(group, dtype=BF16 if group < 4 else F32) for group in range(8)]
    assert judge_groups(spans, []) == {}
    looks = [look(0, BF16), look(4, near=0.59, last=0.59)]
    of_one_mind = judge_groups(spans, looks)
    assert [of_one_mind[group].gains for group in range(8)] == [True] * 4 + [False] * 4
    assert {of_one_mind[group].whole for group in range(8)} == {0.6}
    mixed = judge_groups(spans, [*looks, look(5)])
    assert [group for group, verdict in mixed.items() if verdict.gains] == [0, 5, 1, 2, 3]
    assert not mixed.keys() & {6, 7}


@pytest.mark.parametrize(("share", "gains"), [(0.44, True), (0.46, False)])
def test_a_group_is_judged_by_all_of_its_looks(share, gains):
    looks = [look(0, whole=0.6 + by, near=share + 2 * by, last=1) for by in (-0.1, 0.1)]
    assert judge(looks) == DeltaVerdict(pytest.approx(0.6), gains=gains, to_last=False)


@pytest.mark.parametrize(
    ("near", "last", "to_last"), [(0.3, 0.3, True), (0.3, 0.31, True), (0.3, 0.33, False)]
)
def test_the_last_base_is_taken_unless_another_is_nearer(near, last, to_last):
    assert judge([look(0, near=near, last=last)]).to_last == to_last


@pytest.mark.parametrize(
    ("near", "last", "light", "to_last"),
    [(0.007, 0.0082, 0.007, True), (0.007, 0.012, 0.007, False), (0.016, 0.02, None, True)],
)
def test_a_light_difference_is_to_the_nearest(near, last, light, to_last):
    verdict = judge([look(0, near=near, last=last)])
    assert (verdict.light, verdict.to_last, verdict.gains) == (light, to_last, True)


def chain(*sizes):
    return {ChunkId(bytes([number]) * 32): size for number, size in enumerate(sizes)}


@pytest.mark.parametrize(
    ("sizes", "grows"),
    [
        ([], False),
        ([0], True),
        ([50, 50, 0], True),
        ([50, 51, 0], False),
        ([50, -1], False),
        ([*[1] * (MAX_DEPTH - 1), 0], True),
        ([*[1] * MAX_DEPTH, 0], False),
    ],
)
def test_a_row_grows_until_it_is_as_long_as_the_chunk(sizes, grows):
    assert may_grow(chain(*sizes), 100) == grows


def test_the_longest_rows_are_folded_as_far_as_bytes_are_left():
    long = chain(*[1] * 12, 0)
    longer = {ChunkId(key[:31] + b"x"): size for key, size in chain(*[1] * 20, 0).items()}
    names, others = list(long), list(longer)
    assert plan_folds([long], 7.9) == {}
    assert plan_folds([long], 8.5) == {names[0]: names[8]}
    assert plan_folds([long, long], 100) == {names[0]: names[12]}
    assert plan_folds([long, longer], 30) == {others[0]: others[20], names[0]: names[10]}
    assert plan_folds([chain(*[1] * 7, 0)], 100) == {}
    assert plan_folds([chain(), chain(0)], 100) == {}
