"""Elements by rank, against sorting the whole tensor, whatever a sample of it says."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mvc.numbers.merge_methods import selection
from mvc.numbers.merge_methods.method import MergePiece, choose, keep
from mvc.numbers.merge_methods.selection import ArrayStore, find_places, order_keys, rank_ranges

STEP = 64
ODD = [np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-45, -1e-45, 3.4e38]


class Runs:
    """A tensor in memory, in runs of some elements; how often it is read is counted."""

    def __init__(self, values):
        self.values, self.shape, self.read = values, values.shape, 0

    def map(self, function, every=1):
        for first in range(0, len(self.values), STEP):
            some = self.values[first : first + STEP][::every]
            self.read += len(some)
            yield function(MergePiece(first, None, (some,)))


def _ranged(values, start, end):
    """Return which elements have the ranks, by a stable sort: of equal ones the later is higher."""
    ranks = np.empty(len(values), np.int64)
    ranks[np.argsort(order_keys(values), kind="stable")] = np.arange(len(values))
    return (ranks >= start) & (ranks < end)


def _select(runs, start, end):
    (chosen,) = rank_ranges(runs, lambda piece: piece.inputs, [(start, end)])
    masks = [
        chosen.mask(first, runs.values[first : first + STEP])
        for first in range(0, len(runs.values), STEP)
    ]
    return np.concatenate(masks)


@pytest.fixture(autouse=True)
def small_samples(monkeypatch):
    monkeypatch.setattr(selection, "_SAMPLED", 50)


@given(
    st.lists(st.sampled_from(ODD) | st.floats(width=32), min_size=1, max_size=300),
    st.integers(1, 4),
    st.sampled_from([np.float32, np.float64]),
    st.data(),
)
def test_any_ranks_of_any_values(listed, times, kind, data):
    values = np.array(listed * times, kind)
    start = data.draw(st.integers(0, len(values) - 1))
    end = data.draw(st.integers(start + 1, len(values)))
    for most in (2**23, 0):  # all by the sample, then all by counting
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(selection, "_MOST_KEYS", most)
            assert np.array_equal(_select(Runs(values), start, end), _ranged(values, start, end))


def test_a_tensor_is_read_once_after_a_sample_of_it():
    values = np.random.default_rng(1).normal(size=50_000).astype(np.float32)
    runs = Runs(values)
    assert np.array_equal(_select(runs, 25_000, 50_000), _ranged(values, 25_000, 50_000))
    assert runs.read < 1.1 * len(values)


def test_a_sample_that_misleads_costs_reads_and_nothing_else():
    values = np.random.default_rng(1).normal(size=25_600).astype(np.float32)
    values.reshape(-1, STEP)[:, 0] += 100  # just what a sample of every 255th sees
    runs = Runs(values)
    assert np.array_equal(_select(runs, 9_000, 12_000), _ranged(values, 9_000, 12_000))
    assert runs.read > 3 * len(values)


def test_places_say_what_is_below_and_what_is_equal_before_each_piece():
    values = np.tile(np.arange(10, dtype=np.float32), 30)
    ((place,),) = find_places(Runs(values), lambda piece: piece.inputs, [[100]])
    assert place.key == order_keys(np.float32([3]))[0]
    assert place.below == 90
    assert place.before == {first: np.sum(values[:first] == 3) for first in range(0, 300, STEP)}


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_what_a_mask_leaves_out_is_zero_even_if_it_is_not_a_number(kind):
    values, others = np.array(ODD, kind), np.array(ODD[::-1], kind)
    mask = np.arange(len(ODD)) % 3 == 0
    word = f"i{values.itemsize}"
    for got, expected in (
        (keep(values, mask), np.where(mask, values, kind(0))),
        (choose(mask, values, others), np.where(mask, values, others)),
    ):
        assert got.dtype == kind
        assert np.array_equal(got.view(word), expected.view(word))


def test_what_pieces_leave_behind_is_in_one_run_of_memory():
    store, whole = ArrayStore(100, np.uint32), np.arange(100, dtype=np.uint32)
    held = [store.hold(whole[:60]), store.hold(whole[60:80]), store.hold(whole[:30])]
    assert held[2] is None
    assert held[0].base is held[1].base
    assert np.array_equal(np.concatenate(held[:2]), whole[:80])
