import json
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mvc import FormatError, UsageError
from mvc.sampling import SamplePlan, Source, Stage
from mvc.sampling.mixture import choose_slots
from support.cases import for_each

MIXED = SamplePlan((Source("a", 100, 0.7), Source("b", 7, 0.2), Source("c", 4000, 0.1)), seed=3)
STAGED = SamplePlan(
    (Source("a", 100), Source("b", 7), Source("c", 4000)),
    stages=(Stage(1234, (1, 0, 0)), Stage(3000, (1, 2, 3)), Stage(None, (0, 1, 1))),
)


@st.composite
def plans(draw):
    sizes = draw(st.lists(st.integers(1, 400), min_size=1, max_size=4))
    kind = draw(st.sampled_from(["plain", "weights", "stages"]))
    weight = st.floats(0.01, 1)
    sources = tuple(
        Source(str(at), size, draw(weight) if kind == "weights" else None)
        for at, size in enumerate(sizes)
    )
    stages = ()
    if kind == "stages":
        ends = sorted(draw(st.sets(st.integers(1, 3000), max_size=3)))
        shares = st.lists(st.just(0.0) | weight, min_size=len(sizes), max_size=len(sizes))
        stages = tuple(Stage(end, tuple(draw(shares.filter(any)))) for end in [*ends, None])
    return SamplePlan(sources, draw(st.integers(0, 9)), 4, draw(st.booleans()), stages=stages)


@settings(max_examples=20)
@given(plans())
def test_find_is_the_inverse_of_locate(plan):
    positions = np.arange(4000)
    located = plan.locate(positions)
    for source, one in enumerate(plan.sources):
        its = located.source == source
        found = plan.find(source, located.index[its], located.epoch[its])
        assert np.array_equal(found, positions[its])
        # Each once in an epoch of the source, and the epochs one after another.
        numbers = located.epoch[its] * one.size + located.index[its]
        assert len(np.unique(numbers)) == len(numbers)
        assert np.all(np.diff(located.epoch[its]) >= 0)
        whole = located.index[its][: len(numbers) // one.size * one.size].reshape(-1, one.size)
        assert np.array_equal(np.sort(whole), np.tile(np.arange(one.size), (len(whole), 1)))


@given(plans(), st.lists(st.integers(0, 2**61), min_size=1, max_size=20))
@settings(max_examples=15)
def test_far_positions_are_computed_alone(plan, positions):
    positions = np.array(positions)
    located = plan.locate(positions)
    for at, position in enumerate(positions.tolist()):
        source = int(located.source[at])
        found = plan.find(source, located.index[at : at + 1], located.epoch[at : at + 1])
        assert found.tolist() == [position]


@settings(max_examples=20)
@given(plans())
def test_a_plan_is_stored_and_read(plan):
    stored = json.loads(json.dumps(plan.to_json()))
    assert SamplePlan.parse(stored) == plan
    assert SamplePlan.parse(stored).id == plan.id


def test_without_weights_sources_are_shuffled_as_one():
    located = SamplePlan((Source("a", 30), Source("b", 70))).locate(np.arange(200))
    assert np.array_equal(np.bincount(located.source), [60, 140])
    assert len(np.unique(located.source[:20])) == 2
    assert located.epoch.tolist() == [0] * 100 + [1] * 100
    first = list(zip(located.source[:100].tolist(), located.index[:100].tolist(), strict=True))
    assert sorted(first) == [(0, at) for at in range(30)] + [(1, at) for at in range(70)]


def test_epochs_and_seeds_have_orders_of_their_own():
    plan = SamplePlan((Source("a", 1000),), seed=1)
    both = plan.locate(np.arange(2000)).index.reshape(2, 1000)
    other = SamplePlan((Source("a", 1000),), seed=2).locate(np.arange(1000)).index
    assert (both[0] == both[1]).sum() < 8
    assert (both[0] == other).sum() < 8


def test_without_shuffling_samples_come_as_they_are():
    plan = SamplePlan((Source("a", 5), Source("b", 2)), shuffle=False)
    located = plan.locate(np.arange(9))
    assert located.source.tolist() == [0, 0, 0, 0, 0, 1, 1, 0, 0]
    assert located.index.tolist() == [0, 1, 2, 3, 4, 0, 1, 0, 1]


def test_unshuffled_mixtures_are_spread_evenly():
    plan = SamplePlan((Source("a", 5, 3), Source("b", 2, 1)), shuffle=False)
    sources = plan.locate(np.arange(400)).source.reshape(-1, 4)
    assert np.all((sources == 1).sum(axis=1) == 1)
    assert plan.locate(np.arange(40)).index[sources[:10].reshape(-1) == 1].tolist() == [0, 1] * 5


def test_shares_are_exact_in_every_block():
    slots = choose_slots((0.7, 0.2, 0.1))
    assert [Fraction(one, sum(slots)) for one in slots] == [Fraction(at, 10) for at in (7, 2, 1)]
    sources = MIXED.locate(np.arange(5 * sum(slots))).source.reshape(5, -1)
    for block in sources:
        assert np.bincount(block).tolist() == list(slots)
    assert not np.array_equal(sources[0], sources[1])


@pytest.mark.parametrize("weights", [(1,), (1, 2), (1e-5, 1), (0.333, 0.333, 0.334), (1,) * 700])
def test_slots_are_near_to_weights(weights):
    slots = np.array(choose_slots(tuple(map(float, weights))))
    assert slots.min() > 0
    assert np.abs(slots / slots.sum() - np.array(weights) / sum(weights)).max() < 1 / 1024


def test_stages_go_on_where_each_source_was():
    located = STAGED.locate(np.arange(6000))
    assert set(located.source[:1234].tolist()) == {0}
    assert set(located.source[3000:].tolist()) == {1, 2}
    middle = np.bincount(located.source[1234:3000]) / 1766
    assert np.abs(middle - np.array([1, 2, 3]) / 6).max() < 0.02
    assert STAGED.find(0, np.array([5]), 1000).tolist() == [-1]


GOLDEN = {
    "plain": (
        SamplePlan((Source("a", 1000),), seed=7),
        [[0, 0, 0, 0, 0, 0], [0, 0, 0, 0, 2, 1000000000], [527, 520, 600, 918, 833, 952]],
        "f7b82fa6b12e08137ad20ace495a718b4daf42abbf44bb3152a3484cd2855be9",
    ),
    "mixed": (
        MIXED,
        [[0, 1, 1, 0, 2, 0], [0, 0, 0, 6, 0, 7000000000], [34, 2, 1, 26, 1438, 92]],
        "ac3a58a375f10de24d4882fdf2a59b1f978ee00aaf996ee2d1209fbaa3a6183b",
    ),
    "staged": (
        STAGED,
        [[0, 0, 0, 0, 1, 2], [0, 0, 0, 9, 37, 124999999], [21, 44, 30, 82, 3, 418]],
        "acacf91e15a7f61e246375e12de6b0d33c09c0b949c5dab67ccfeb4933f98065",
    ),
}


@pytest.mark.parametrize("name", GOLDEN)
def test_orders_and_ids_are_the_same_for_ever(name):
    plan, numbers, digits = GOLDEN[name]
    located = plan.locate(np.array([0, 1, 2, 999, 2000, 10**12]))
    rows = [located.source.tolist(), located.epoch.tolist(), located.index.tolist()]
    assert rows == numbers
    assert plan.id == digits


def test_what_differs_between_plans_is_said():
    mine = SamplePlan((Source("a", 10),), seed=1, batch=4)
    other = SamplePlan((Source("a", 12, shards="ab"),), seed=2, batch=4)
    assert list(mine.differences(other)) == [
        "size of a: 10, there 12",
        "shards of a: None, there 'ab'",
        "seed: 1, there 2",
    ]


@for_each(
    ("make", "words"),
    [
        (lambda: Source("a", 0), "source 'a' is empty"),
        (lambda: Source("a", -5), "has -5 samples"),
        (lambda: Source("", 5), "named ''"),
        (lambda: Source("a", 5, -1.0), "weight of source 'a' is -1.0"),
        (lambda: Source("a", 5, float("nan")), "weight of source 'a' is nan"),
        (lambda: SamplePlan(()), "1 to 4096 sources"),
        (lambda: SamplePlan((Source("a", 5), Source("a", 5))), "two sources have one name"),
        (lambda: SamplePlan((Source("a", 5), Source("b", 5, 1))), "'a' has no weight"),
        (lambda: SamplePlan((Source("a", 5),), seed=-1), "seed is -1"),
        (lambda: SamplePlan((Source("a", 5),), batch=0), "batch size is 0"),
        (lambda: SamplePlan((Source("a", 5),), tail="keep"), "tail is 'keep'"),
        (lambda: SamplePlan((Source("a", 5),), epoch_size=3), "epoch_size is for sources"),
        (lambda: SamplePlan((Source("a", 5, 1), Source("b", 5, 1e-9))), "less than 1 in"),
        (
            lambda: SamplePlan((Source("a", 5),), stages=(Stage(5, (1,)),)),
            "each stage but the last",
        ),
        (lambda: SamplePlan((Source("a", 5),), stages=(Stage(None, (0,)),)), "every weight is 0"),
    ],
)
def test_wrong_plans_are_refused(make, words):
    with pytest.raises(UsageError, match=words):
        make()


@settings(max_examples=150)
@given(st.data())
def test_hostile_plans_are_format_errors(data):
    stored = json.loads(json.dumps(STAGED.to_json()))
    junk = st.none() | st.integers() | st.text(max_size=3) | st.lists(st.integers(), max_size=2)
    junk |= st.floats() | st.booleans() | st.just({})
    where = data.draw(st.sampled_from([*stored, "size", "name", "until"]))
    value = data.draw(junk)
    if where in ("size", "name"):
        stored["sources"][0][where] = value
    elif where == "until":
        stored["stages"][0][where] = value
    else:
        stored[where] = value
    try:
        plan = SamplePlan.parse(stored)
    except FormatError:
        return
    plan.locate(np.arange(10))
