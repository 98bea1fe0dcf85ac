import json
from itertools import chain

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mvc import FormatError, UsageError
from mvc.sampling import SamplePlan, Skips, Source, draw_batch


def plan_of(size, batch, tail="short", **options):
    return SamplePlan((Source("a", size),), batch=batch, tail=tail, **options)


def walk(plan, skips, epochs=1, cursor=0):
    """Return the positions of each batch of some epochs, as a loader draws them."""
    batches = []
    for epoch in range(epochs):
        end = (epoch + 1) * plan.epoch_length
        while cursor < end and (batch := draw_batch(plan, skips, cursor)) is not None:
            batches.append(batch.positions.tolist())
            cursor = batch.stop
        cursor = max(cursor, end)
    return batches


def test_an_epoch_ends_with_a_short_batch():
    assert [len(node) for node in walk(plan_of(10, 4), Skips(), 2)] == [4, 4, 2, 4, 4, 2]


def test_the_rest_of_an_epoch_is_dropped():
    batches = walk(plan_of(10, 4, "drop"), Skips(), 2)
    assert batches == [[0, 1, 2, 3], [4, 5, 6, 7], [10, 11, 12, 13], [14, 15, 16, 17]]


def test_a_batch_is_filled_up_from_the_next_epoch():
    batches = walk(plan_of(10, 4, "wrap"), Skips(), 2)
    assert list(chain(*batches)) == list(range(20))
    assert {len(batch) for batch in batches} == {4}


@settings(max_examples=12)
@given(
    st.integers(1, 60),
    st.integers(1, 70),
    st.sampled_from(["short", "drop", "wrap"]),
    st.lists(st.tuples(st.integers(0, 150), st.integers(1, 30)), max_size=4),
    st.lists(st.tuples(st.integers(0, 59), st.integers(0, 20)), max_size=4),
)
def test_what_is_not_skipped_comes_once_and_in_order(size, batch, tail, windows, ranges):
    plan, skips = plan_of(size, batch, tail), Skips()
    for start, count in windows:
        skips = skips.add_window(start, start + count, reason="bad")
    for first, count in ranges:
        skips = skips.add_samples("a", first, first + count, reason="bad")
    batches = walk(plan, skips, 3)
    drawn = list(chain(*batches))
    positions = np.arange(5 * size)
    kept = positions[~skips.find(plan, positions, plan.locate(positions))].tolist()
    assert drawn == sorted(set(drawn))
    assert set(drawn) <= set(kept) | set(range(5 * size, 5 * size + 10**6))
    if tail == "short":
        assert drawn == [entry for entry in kept if entry < 3 * size]
    else:
        assert all(len(one) == batch for one in batches)


def test_a_skip_in_the_middle_changes_only_what_comes_after():
    plan = plan_of(100, 10)
    before = walk(plan, Skips())
    skips = Skips().add_window(50, 60, reason="a spike")
    assert walk(plan, skips)[:5] == before[:5]
    assert walk(plan, skips)[5:] == before[6:]
    assert skips.reason(plan, 55) == "a spike"


def test_samples_and_shards_are_skipped_in_every_epoch():
    plan = SamplePlan((Source("a", 50), Source("b", 50)), batch=10)
    skips = Skips().add_samples("b", 10, 19, reason="taken down").add_samples("a", 3, reason="dup")
    for epoch in (0, 1):
        positions = np.array(list(chain(*walk(plan, skips, 2))))
        located = plan.locate(positions[positions // 100 == epoch])
        seen = set(zip(located.source.tolist(), located.index.tolist(), strict=True))
        assert len(seen) == 89
        assert not seen & {(0, 3), *((1, at) for at in range(10, 20))}
    assert skips.reason(plan, int(plan.find(1, np.array([12]), 1)[0])) == "taken down"


def test_a_run_passes_over_a_long_window_without_looking_at_it():
    plan = plan_of(10**12, 8)
    batch = draw_batch(plan, Skips().add_window(4, 10**11, reason="seen elsewhere"), 0)
    assert batch.positions.tolist() == [0, 1, 2, 3, *range(10**11, 10**11 + 4)]


@pytest.mark.parametrize("tail", ["short", "drop", "wrap"])
def test_where_all_is_skipped_the_search_ends(tail):
    skips = Skips().add_samples("a", 0, 99_999, reason="all of it")
    assert draw_batch(plan_of(100_000, 8, tail), skips, 5) is None


def test_skips_are_stored_and_joined():
    one = Skips().add_samples("a", 4, reason="x").add_window(3, 9, reason="y")
    stored = json.loads(json.dumps(one.to_json()))
    assert Skips.parse(stored) == one
    assert one.join(one) == one
    other = Skips().add_window(100, 101, reason="z")
    assert one.join(other) == other.join(one)
    assert not Skips()
    assert one


@pytest.mark.parametrize(
    "wrong",
    [
        lambda skips: skips.add_samples("a", -1, reason="x"),
        lambda skips: skips.add_samples("a", 5, 3, reason="x"),
        lambda skips: skips.add_samples("a", 5, reason=""),
        lambda skips: skips.add_window(5, 5, reason="x"),
        lambda skips: skips.add_window(5, 6, reason=None),
        lambda skips: skips.add_window(1.5, 6, reason="x"),
    ],
)
def test_wrong_skips_are_refused(wrong):
    with pytest.raises(UsageError):
        wrong(Skips())


@pytest.mark.parametrize(
    "stored",
    [
        None,
        {},
        {"ranges": [], "windows": {}},
        {"ranges": [["a", 1, 2]], "windows": []},
        {"ranges": [["a", 3, 2, "x"]], "windows": []},
        {"ranges": [["a", True, 2, "x"]], "windows": []},
        {"ranges": [], "windows": [[0, 0, "x"]]},
        {"ranges": [], "windows": [[0, 2**63, "x"]]},
    ],
)
def test_hostile_skips_are_format_errors(stored):
    with pytest.raises(FormatError):
        Skips.parse(stored)
