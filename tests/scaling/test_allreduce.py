"""Predictions against closed forms, and against messages that are counted one by one."""

import math

import pytest

from mvc import UsageError
from mvc.scaling.allreduce import ALGORITHMS, predict_all
from mvc.scaling.fabric import PRESETS, Fabric, Link, find_torus
from support.cases import for_each

ALPHA, BETA, GAMMA = 4e-6, 1 / 20e9, 1 / 100e9
LINK = Link(ALPHA, 1 / BETA)
BYTES = 3e7


def predict(ranks, size_bytes=BYTES, **fabric):
    tori = [find_torus(ranks, dimensions) for dimensions in (2, 3)]
    fabric = {"tori": tuple(filter(None, tori))} | fabric
    found = predict_all(Fabric(ranks, LINK, 1 / GAMMA, **fabric), size_bytes)
    return {one.algorithm: one for one in found}


def run_ring(ranks, size_bytes):
    """Return the seconds of a ring, one message after the other."""
    seconds = 0.0
    for turn in range(2 * (ranks - 1)):
        adds = turn < ranks - 1
        seconds += ALPHA + size_bytes / ranks * (BETA + GAMMA * adds)
    return seconds


def run_halving(ranks, size_bytes):
    """Return the seconds of recursive halving and doubling."""
    seconds, part = 0.0, size_bytes
    for _ in range(int(math.log2(ranks))):
        part /= 2
        seconds += 2 * (ALPHA + part * BETA) + part * GAMMA
    return seconds


def run_torus(length, dimensions, size_bytes):
    """Return the seconds of rings in one dimension after the other; all parts go alike in a cube."""
    seconds, part = 0.0, size_bytes / dimensions
    for _ in range(dimensions):
        seconds += run_ring(length, part)
        part /= length
    return seconds


@pytest.mark.parametrize("ranks", [2, 4, 8, 64, 1024])
def test_ring_and_halving_are_what_their_messages_add_up_to(ranks):
    found = predict(ranks)
    assert found["ring"].time_s == pytest.approx(run_ring(ranks, BYTES))
    assert found["halving-doubling"].time_s == pytest.approx(run_halving(ranks, BYTES))


def test_other_numbers_of_ranks_pay_for_a_hand_over():
    parts = {"latency_s": (2 * 3 + 3) * ALPHA, "transfer_s": (7 / 8 + 1) * 2 * BYTES * BETA}
    parts["reduce_s"] = (7 / 8 + 1 / 2) * BYTES * GAMMA
    found = predict(12)["halving-doubling"]
    assert {name: getattr(found, name) for name in parts} == pytest.approx(parts)


@pytest.mark.parametrize(("ranks", "levels"), [(2, 1), (3, 2), (8, 3), (9, 4), (1000, 10)])
def test_a_tree_goes_up_and_down(ranks, levels):
    expected = levels * (2 * (ALPHA + BYTES * BETA) + BYTES * GAMMA)
    assert predict(ranks)["tree"].time_s == pytest.approx(expected)


@for_each("ranks", [2, 7, 256, 10_240])
@for_each("size_bytes", [1e3, 1e6, 1e9])
def test_a_double_tree_has_the_best_number_of_blocks(ranks, size_bytes):
    levels = math.ceil(math.log2(ranks))
    found = predict(ranks, size_bytes)["double-tree"]

    def seconds(blocks):
        messages = 2 * (2 * levels + 2 * blocks)
        return messages * (ALPHA + size_bytes / (2 * blocks) * BETA) + size_bytes * GAMMA

    assert found.time_s == pytest.approx(min(seconds(blocks) for blocks in range(1, 20_000)))
    moved = size_bytes * BETA
    closed = 4 * levels * ALPHA + 2 * moved + 2 * math.sqrt(8 * levels * ALPHA * moved)
    assert closed <= found.time_s - size_bytes * GAMMA + 1e-12
    if size_bytes > 1e3:  # so many blocks that a whole number costs nothing
        assert closed == pytest.approx(found.time_s - size_bytes * GAMMA, rel=0.01)


@pytest.mark.parametrize(("length", "dimensions"), [(4, 2), (32, 2), (3, 3), (8, 3), (16, 3)])
def test_a_torus_is_rings_in_each_dimension(length, dimensions):
    found = predict(length**dimensions)[f"torus-{dimensions}d"]
    assert found.shape == (length,) * dimensions
    assert found.time_s == pytest.approx(run_torus(length, dimensions, BYTES))
    least = 2 * (1 - 1 / length**dimensions) * BYTES * BETA / dimensions
    assert found.transfer_s == pytest.approx(least)


def test_a_flat_torus_waits_for_its_longest_ring():
    """Parts A and B of 8x2: first 7/8 beside 1/2 of a part, then 1/8·1/2 beside 1/2·7/8."""
    found = predict(16, tori=((8, 2),))["torus-2d"]
    assert found.transfer_s == pytest.approx(2 * (7 / 8 + 7 / 16) * BYTES / 2 * BETA)
    assert found.latency_s == pytest.approx(2 * (7 + 1) * ALPHA)


def test_levels_are_two_rings():
    fast = Link(1e-6, 1e12)
    found = predict(64, per_node=8, inside=fast)["hierarchical"]
    low = 2 * 7 * (1e-6 + BYTES / 8 / 1e12) + 7 / 8 * BYTES * GAMMA
    assert found.time_s == pytest.approx(low + run_ring(8, BYTES / 8))
    assert found.shape == (8, 8)
    flat = predict(64, per_node=8)["hierarchical"]  # within a node as between them
    assert flat.time_s == pytest.approx(run_ring(8, BYTES) + run_ring(8, BYTES / 8))


def test_the_founding_example():
    preset = PRESETS["founding"]
    found = {
        prediction.algorithm: prediction
        for prediction in predict_all(preset.fabric, preset.size_bytes)
    }
    assert round(found["ring"].time_s * 1e3) == 12
    assert round(found["torus-3d"].time_s * 1e3, 1) == 3.2
    one_at_a_time = found["torus-3d"].latency_s + 3 * found["torus-3d"].transfer_s
    assert one_at_a_time > 0.009  # three links in use at once make most of it


def test_no_algorithm_beats_its_links():
    for ranks in range(2, 300):
        for one in predict(ranks).values():
            assert one.time_s > 0
            assert 0 < one.bandwidth_used <= 1
            assert math.prod(one.shape) in (1, ranks)


def test_links_without_latency():
    found = {
        prediction.algorithm: prediction for prediction in predict_all(Fabric(8, Link(0, 1e9)), 1e6)
    }
    assert found["ring"].bandwidth_used == pytest.approx(1)
    assert found["double-tree"].time_s == pytest.approx(2e-3, rel=1e-4)


def test_tori_are_near_to_cubes():
    assert find_torus(512, 3) == (8, 8, 8)
    assert find_torus(10_240, 3) == (32, 20, 16)
    assert find_torus(256, 2) == (16, 16)
    assert find_torus(6, 3) is None
    assert find_torus(7, 2) is None


@for_each(
    ("fabric", "size_bytes", "names", "text"),
    [
        (Fabric(0, LINK), 1, (), "an AllReduce takes 2 to 10,000,000 ranks, not 0"),
        (Fabric(1, LINK), 1, (), "an AllReduce takes 2 to 10,000,000 ranks, not 1"),
        (Fabric(8, LINK), 0, (), "bytes must be a positive number, not 0"),
        (Fabric(8, LINK), math.nan, (), "bytes must be a positive number, not nan"),
        (Fabric(8, Link(-1, 1)), 1, (), "the latency must be a time, not -1 s"),
        (Fabric(8, Link(0, math.inf)), 1, (), "bandwidth must be a positive number, not inf"),
        (Fabric(8, LINK, 0), 1, (), "the speed of reducing must be positive, not 0"),
        (Fabric(8, LINK, per_node=3), 1, (), "8 ranks are not whole nodes of 3"),
        (Fabric(8, LINK, tori=((2, 3),)), 1, (), "a torus of 2x3 has 6 ranks, not 8"),
        (Fabric(8, LINK, tori=((8, 1),)), 1, (), "8x1 is not a torus of 2 or 3 dimensions, each of 2 or more"),
        (Fabric(8, LINK), 1, ("rings",), "'rings' is not an algorithm"),
        (Fabric(7, LINK), 1, ("torus-2d",), "torus-2d needs links that are not stated"),
        (Fabric(8, LINK), 1, ("hierarchical",), "hierarchical needs links that are not stated"),
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_named(fabric, size_bytes, names, text):
    with pytest.raises(UsageError) as caught:
        predict_all(fabric, size_bytes, names)
    assert caught.value.message == text


def test_algorithms_that_are_named():
    found = predict_all(Fabric(8, LINK), 1, ("tree", "ring"))
    assert {one.algorithm for one in found} == {"ring", "tree"}
    assert set(predict(8, per_node=2)) == set(ALGORITHMS)
