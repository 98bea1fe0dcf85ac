"""The simulation of large runs against what can be computed by hand; nothing here is timed."""

from __future__ import annotations

import math
from random import Random

import pytest

pytest.importorskip("torch")

from benchmarks import report_scale
from benchmarks.scale.cluster import (
    TIERS,
    Cluster,
    serve_in_turn,
    share_link,
    simulate_commit,
    simulate_recovery,
)
from benchmarks.scale.job import (
    Job,
    daly_s,
    find_best,
    simulate_job,
    young_s,
)
from benchmarks.scale.parts import Parts
from benchmarks.scale.picture import draw_picture
from benchmarks.scale.section import simulate_size, simulate_store

pytestmark = pytest.mark.torch
PARTS = Parts(
    copy=[1e-10], hash=[2e-10], encode=[4e-10], decode=[3e-10], stored=[0.8], write=[1e-9],
    read=[1e-9], share=[1e-6], merge=[1e-6], ref=[0.01], capture=[0.02], settle=[0.2], open=[1.0],
    start=[3.0], rendezvous=[1e-4], cores=2,
)  # fmt: skip


@pytest.fixture(scope="module")
def size():
    return simulate_size(PARTS, 2048, is_quick=True)


def test_transfers_share_a_link():
    assert share_link([0, 0], [10, 10], 10, 100) == [2, 2]
    assert share_link([0, 0], [10, 10], 100, 5) == [2, 2]  # each has a link of its own, too
    assert share_link([0, 1], [10, 10], 10, 100) == pytest.approx([1, 2])  # one after the other
    assert share_link([0, 0.5], [10, 10], 10, 100) == pytest.approx([1.5, 2])
    assert share_link([5, 0], [10, 30], 10, 100) == pytest.approx([6, 3])
    assert share_link([], [], 10, 100) == []


def test_requests_wait_for_each_other():
    assert serve_in_turn([0, 0, 5], [2, 1, 1]) == 6
    assert serve_in_turn([0, 0, 1], [2, 1, 1]) == 4


def test_a_commit_is_the_sum_of_its_parts():
    cluster = Cluster(1000, 1e12, cores_per_rank=2, link_bytes_s=1e12, store_bytes_s=1e11)
    found = simulate_commit(cluster, PARTS, Random(0))
    assert found.blocked_s == pytest.approx(1e9 * 1e-10 + 0.02)
    assert found.stored_bytes == pytest.approx(0.8e12)
    last_s = found.blocked_s + max(1e9 * 6e-10 / 2, 0.8e12 / 1e11) + 1000 * 1e-6
    assert found.durable_s == pytest.approx(last_s + 1e12 / 2**22 * 1e-6 + 0.21)


def test_a_recovery_by_each_tier():
    cluster = Cluster(100, 1e11, cores_per_rank=1, link_bytes_s=1e9, store_bytes_s=1e10)
    found = {tier: simulate_recovery(cluster, PARTS, tier, Random(0)) for tier in TIERS}
    states = [one.pop("state") for one in found.values()]
    assert states == pytest.approx([1e9 * 3e-10, 1.0, 0.8e9 * 8 * 1e-9, 0.8e11 / 1e10])
    meet_s = 1200 * 1e-4 + 20 * 99 * 20e-6
    assert found["memory"] == pytest.approx({"seen": 5, "process": 3, "meet": meet_s, "open": 1})
    assert len({sum(one.values()) for one in found.values()}) == 1


def test_all_time_is_accounted_for():
    job = Job(5000, [1.0, 2.0], [30.0, 31.0], [20.0], [40.0])
    for interval_s in (10, 60, 500):  # the first waits for the commit before
        found = simulate_job(job, interval_s, Random(0), 100)
        assert sum((found.useful, found.blocked, found.lost, found.recovering)) == pytest.approx(
            1, abs=1e-3
        )


def test_the_best_interval_is_that_of_young_and_daly_where_they_apply():
    job = Job(20_000, [4.0], [4.0], [30.0], [30.0])
    best_s, shares = find_best(job, lambda: Random(3), 100)
    young = young_s(4, 20_000)
    assert young == pytest.approx(400)
    assert daly_s(4, 20_000) == pytest.approx(400 * (1 + 0.01 / 3 + 0.0001 / 9) - 4)
    assert 0.4 * young < best_s < 2.5 * young
    waste = 1 - shares[best_s].useful
    assert waste == pytest.approx(math.sqrt(2 * 4 / 20_000) + 30 / 20_000, rel=0.25)


def test_the_same_seed_is_the_same_result(size):
    first, again = size, simulate_size(PARTS, 2048, is_quick=True)
    assert first == again
    assert set(first["recovery_s"]) == set(TIERS)
    useful = [rate["share"]["useful"] for rate in first["rates"].values()]
    assert all(0.9 < one < 1 for one in useful)


def test_tables_targets_and_picture(size):
    pair = {"predicted_s": 1.0, "measured_s": 2.0}
    entry = {
        "state_bytes": 1e12,
        "parts": PARTS.as_dict(),
        "sizes": dict.fromkeys((256, 10_240), size),
        "stores": {50e9: simulate_store(PARTS, 64, 50e9)},
        "gloo": {2: {"latency_s": 1e-5, "bandwidth_bytes_s": 1e9, **pair}},
        "real": {2: {"stall": pair}},
    }
    tables = {one.title: one.rows for one in report_scale.scale_tables({"scale": entry})}
    assert all(len({len(row) for row in rows}) == 1 for rows in tables.values())
    assert tables["scale, predictions beside real runs on this machine"][1][-1] == "-50"
    targets = list(report_scale.list_targets({"scale": entry}))
    assert [one.verdict for one in targets] == ["met", "met", "met"]
    assert {one.verdict for one in report_scale.list_targets({})} == {"not measured"}
    picture = draw_picture(entry)
    assert picture.count("<path") > 15
    for tier in TIERS:
        assert f">{tier}</text>" in picture
