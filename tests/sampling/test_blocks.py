"""The order by blocks: a bijection for each key, near the order of reading, the same everywhere."""

import json

import numpy as np
import pytest

from mvc import FormatError, UsageError
from mvc.sampling import BlockOrder, SamplePlan, Source
from support.cases import for_each

GOLDEN = [6, 5, 3, 4, 8, 7, 10, 9, 0, 2, 1, 11]
GOLDEN_ID = "f75407289d498f907b54bb3c8db64ec129f302b398362eb6ece9aa6ada0afa8e"
SIZES = np.array([5, 0, 7, 300, 1, 1000, 0])


@pytest.mark.parametrize("block", [1, 2, 16, 1000, 5000])
def test_every_record_comes_once_and_is_found_again(block):
    order = BlockOrder(SIZES, block)
    places = np.arange(order.size)
    for key in (0, 1, b"seed 1 epoch 2"):
        indices = order.find_indices(places, key)
        assert sorted(indices.tolist()) == places.tolist()
        assert order.find_places(indices, key).tolist() == places.tolist()


def test_any_places_in_any_order_are_those_of_the_whole_pass():
    order = BlockOrder(SIZES, 16)
    whole = order.find_indices(np.arange(order.size), 7)
    chosen = np.array([1312, 0, 17, 15, 16, 700, 17])
    assert order.find_indices(chosen, 7).tolist() == whole[chosen].tolist()


def test_a_block_of_one_reads_shard_after_shard():
    order = BlockOrder(SIZES, 1)
    indices = order.find_indices(np.arange(order.size), 3)
    jumps = np.flatnonzero(np.diff(indices) != 1)
    assert len(jumps) <= np.count_nonzero(SIZES) - 1
    assert indices[0] in np.cumsum(SIZES) - SIZES


def test_a_record_moves_by_less_than_a_block():
    block = 64
    shuffled = BlockOrder(SIZES, block).find_places(np.arange(SIZES.sum()), 5)
    plain = BlockOrder(SIZES, 1).find_places(np.arange(SIZES.sum()), 5)
    assert np.abs(shuffled - plain).max() < block
    assert np.abs(shuffled - plain).mean() > block / 6


def test_the_order_is_the_same_for_good():
    order = BlockOrder(np.array([3, 4, 5]), 4)
    assert order.find_indices(np.arange(12), b"golden").tolist() == GOLDEN
    assert order.id == GOLDEN_ID


def test_what_cannot_be_is_refused():
    with pytest.raises(UsageError, match="shuffle block of 0"):
        BlockOrder(SIZES, 0)
    with pytest.raises(UsageError, match="a shard of -1 records"):
        BlockOrder(np.array([-1]), 4)
    with pytest.raises(UsageError, match="outside an order of 1313"):
        BlockOrder(SIZES, 4).find_indices(np.array([1313]), 0)


def test_a_hundred_thousand_shards_cost_little():
    order = BlockOrder(np.full(100_000, 10_000), 4096)
    places = np.arange(5 * 10**8, 5 * 10**8 + 512)
    indices = order.find_indices(places, b"key")
    assert order.find_places(indices, b"key").tolist() == places.tolist()


@pytest.mark.parametrize("sizes", [[5], [7] * 1000 + [3], list(range(1, 200))])
def test_a_stored_order_is_the_same(sizes):
    order = BlockOrder(np.array(sizes), 16)
    stored = BlockOrder.parse(json.loads(json.dumps(order.to_json())))
    assert stored == order
    assert hash(stored) == hash(order)
    assert len(json.dumps(order.to_json())) < 1024
    if stored.is_known:
        assert stored.sizes.tolist() == sizes
    else:
        with pytest.raises(UsageError, match="does not tell the sizes of its shards"):
            stored.find_indices(np.array([0]), 1)


@for_each(
    "value",
    [
        None,
        {},
        {"block": 0, "runs": [[1, 1]]},
        {"block": True, "runs": [[1, 1]]},
        {"block": 4, "runs": []},
        {"block": 4, "runs": [[1]]},
        {"block": 4, "runs": [[1, -1]]},
        {"block": 4, "runs": [[1, 1.5]]},
        {"block": 4, "runs": [[1 << 60, 1]]},
        {"block": 4, "runs": [[2, 1 << 62]]},
        {"block": 4, "id": "no hash"},
        {"block": 4, "id": 7},
    ],
)
def test_a_stored_order_that_is_none_is_refused(value):
    with pytest.raises(FormatError):
        BlockOrder.parse(value)


def make_plan(**options):
    order = BlockOrder(np.full(20, 50), 64)
    return SamplePlan((Source("stream", 1000, order=order),), seed=3, batch=10, **options)


def test_a_plan_shuffles_a_source_by_its_blocks():
    plan = make_plan()
    located = plan.locate(np.arange(2000))
    for epoch in range(2):
        indices = located.index[1000 * epoch : 1000 * (epoch + 1)]
        assert sorted(indices.tolist()) == list(range(1000))
        assert len(set((indices[:64] // 50).tolist())) <= 3
        places = plan.find(0, indices, epoch)
        assert places.tolist() == list(range(1000 * epoch, 1000 * (epoch + 1)))
    assert make_plan(shuffle=False).locate(np.arange(5)).index.tolist() == [0, 1, 2, 3, 4]
    again = SamplePlan.parse(json.loads(json.dumps(plan.to_json())))
    assert again.id == plan.id
    assert again == plan
    assert again.locate(np.arange(50)).index.tolist() == located.index[:50].tolist()


def test_sources_one_after_another_are_read_in_order_together():
    order = BlockOrder(np.full(20, 50), 64)
    plan = SamplePlan((Source("stream", 1000, order=order), Source("rest", 77)), seed=3)
    located = plan.locate(np.arange(1077))
    numbers = located.index + 1000 * located.source
    assert sorted(numbers.tolist()) == list(range(1077))
    assert plan.find(1, np.arange(77), 0).min() >= 0


def test_a_mixture_takes_streams_in_their_own_order():
    order = BlockOrder(np.full(20, 50), 64)
    sources = Source("stream", 1000, 0.75, order=order), Source("rest", 77, 0.25)
    plan = SamplePlan(sources, seed=3)
    located = plan.locate(np.arange(4000))
    stream = located.index[located.source == 0][:1000]
    assert sorted(stream.tolist()) == list(range(1000))
    assert len(set((stream[:64] // 50).tolist())) <= 3
    assert np.count_nonzero(located.source[:1024] == 0) == 768


def test_an_order_of_other_samples_is_refused():
    with pytest.raises(UsageError, match="source 'a' has 9 samples, its order 10"):
        Source("a", 9, order=BlockOrder(np.array([10]), 4))
