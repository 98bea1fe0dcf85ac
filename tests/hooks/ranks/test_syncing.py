"""Sums of gradients are timed without a changed bit: three real ranks, since sums of two round alike."""

import pytest

from support.programs import call_ranks

pytestmark = pytest.mark.torch


def run(verb, folder, size, **arguments):
    folder.mkdir(exist_ok=True)
    return call_ranks("support.monitored_ranks", verb, size, folder, **arguments)


@pytest.mark.slow
def test_bits_are_those_of_ddp(tmp_path):
    for cases in run("compare_bits", tmp_path, 3):
        for kind, view, is_timed, updates, is_same in cases:
            assert is_same, (kind, view)
            assert is_timed is not view, "a hook cannot tell what DDP would divide"
            assert updates == (0 if view else 4)


@pytest.mark.slow
def test_a_view_of_the_bucket_is_timed_where_both_ways_round_alike(tmp_path):
    for cases in run("compare_bits", tmp_path, 2):
        assert all(is_timed and is_same for *_, is_timed, _, is_same in cases)


@pytest.mark.slow
def test_hooks_of_the_user_groups_and_copies(tmp_path):
    said = run("look_at_hooks", tmp_path, 3)
    for one in said:
        assert one["other"] == (
            "DistributedDataParallel has the hook fp16_compress_hook; register "
            "monitor.timed(fp16_compress_hook) instead"
        )
        assert one["bytes of a wrapped one"] == [None] * 4, "what it sends is unknown"
        assert one["again"]
    size_bytes = 4 * (16 * 40 + 40 + 40 * 40 + 40 + 40 * 3 + 3)
    for one in said[:2]:
        assert [[size, bus] for size, bus, _ in one["pair"]] == [[size_bytes, size_bytes]] * 4
        assert one["pair"][-1][2] > 1, "several buckets"


@pytest.mark.slow
def test_a_monitored_run_that_resumes_is_the_plain_one(tmp_path):
    plain = run("train", tmp_path / "plain", 3, total=8, watched=False)
    run("train", tmp_path / "watched", 3, total=4, watched=True)
    watched = run("train", tmp_path / "watched", 3, total=8, watched=True)
    assert {one["digest"] for one in plain} == {one["digest"] for one in watched}
    first = watched[0]
    assert len(set(first["endpoints"])) == 3
    assert all(one["endpoints"] == first["endpoints"] for one in watched)
    for rank, one in enumerate(watched):
        assert f'mvc_ranks{{rank="{rank}"}} 3.0' in one["page"]
        assert f'mvc_resume_info{{rank="{rank}",tier="' in one["page"]
        assert 'mvc_gradient_sync_seconds_bucket{bucket="0",le="+Inf",' in one["page"]
        assert "mvc_link_speed_bytes_per_second" in one["page"]
        measured = one["measure"]
        assert measured["ranks"] == 3
        assert 0 < measured["sync_p50_s"] <= measured["sync_p99_s"]
        assert measured["recovery_s"] > 0
        assert "bandwidth_used" not in measured, (
            "its buckets are small, and all ranks on one machine"
        )
