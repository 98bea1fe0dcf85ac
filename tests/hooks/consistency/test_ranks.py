"""Real ranks in which bits flip: what is found, why, and what is done about it.

All cases of one number of ranks share one set of processes.
"""

from __future__ import annotations

import pytest

from support.bounds import bounded, rest_nightly
from support.programs import call_ranks

pytestmark = pytest.mark.torch

BIT = 20
"""A high bit of the fraction of a 32-bit float."""


def fault(when, what="param", name="0.weight", *, rank=1, step=5, element=3, bit=BIT, **more):
    return {"fault": {"when": when, "what": what, "name": name, "rank": rank, "step": step,
                      "element": element, "bit": bit, **more}}  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Return a function that runs named cases; it returns name → what each rank has said."""

    def run_cases(size, cases):
        folder = tmp_path_factory.mktemp("consistency")
        said = call_ranks(
            "support.consistent_ranks", "run_cases", size, folder, cases=list(cases.values())
        )
        return {name: list(results) for name, *results in zip(cases, *said, strict=True)}

    return run_cases


def only_report(said):
    """Return the one report, which all ranks have alike."""
    assert all(one["reports"] == said[0]["reports"] for one in said)
    (report,) = said[0]["reports"]
    return report


def assert_same_end(said, other):
    assert [one["end"] for one in said] == [one["end"] for one in other]
    assert len({one["end"] for one in said}) == 1


PLACES = [
    ("before", "param", "0.weight", "compute"),
    ("after", "state", "2.weight:exp_avg", "compute"),
    ("before", "gradient", "1.weight", "transport"),
    ("after", "param", "2.weight", "compute"),
    ("before", "state", "0.weight:exp_avg_sq", "compute"),
    ("after", "state", "1.bias:exp_avg", "compute"),
]
EVERY_PLACE = [(place, rank) for place in range(len(PLACES)) for rank in range(3)]
BY_DAY = [(0, 1), (1, 2), (2, 0)]
EVERY_PLACE.sort(key=lambda case: case not in BY_DAY)


@pytest.fixture(scope="module")
def three(run):
    cases = {"healthy": {}, "own": {"kind": "norm"}}
    for place, rank in bounded(BY_DAY, EVERY_PLACE):
        when, what, name, _ = PLACES[place]
        cases[place, rank] = fault(when, what, name, rank=rank, element=1, bit=12)
    for rank in bounded([1], range(3)):
        cases["sums", rank] = {"by_hook": True, **fault("sum", rank=rank)}
    return run(3, cases)


@pytest.mark.slow
class TestThreeRanks:
    """With three there is a majority."""

    def test_healthy_ranks_raise_no_alarm(self, three):
        for one in three["healthy"]:
            assert (one["reports"], one["lines"], one["error"]) == ([], [], None)
            assert (one["checks"], one["mismatches"], one["shares"]) == (5, 0, 1)
            assert one["bytes"] > 0

    def test_buffers_that_are_a_ranks_own_raise_no_alarm(self, three):
        for one in three["own"]:
            assert one["reports"] == []
            assert one["own"] == ["model.1.running_mean", "model.1.running_var"]

    @pytest.mark.parametrize(("place", "rank"), rest_nightly(EVERY_PLACE, kept=3))
    def test_a_bit_that_flips_is_found_and_mended(self, three, place, rank):
        said, (when, what, name, cause) = three[place, rank], PLACES[place]
        report = only_report(said)
        assert (report["cause"], report["ranks"], report["bits"]) == (cause, [rank], 1)
        param, _, key = name.partition(":")
        assert report["index"] == ([0, 1] if param.endswith(("0.weight", "2.weight")) else [1])
        number = ["0.weight", "0.bias", "1.weight", "1.bias", "2.weight"].index(param)
        expected = f"optimizer.state.{number}.{key}" if key else f"model.{param}"
        assert report["tensor"].removeprefix("gradient of ") == expected
        assert (report["step"], report["answer"]) == (5, "resync")
        reason = {
            "before": f"changed between two steps, while transport is sound: the memory of rank {rank}",
            "after": f"done again it gives other bits on rank {rank}",
        }
        assert what == "gradient" or report["reason"].endswith(reason[when])
        assert_same_end(said, three["healthy"])
        (alarm, answer) = said[0]["lines"]
        assert alarm.startswith(f"alarm at step 5: {report['tensor']} differs on rank {rank} at ")
        assert answer == f"answer at step 5: resync: {report['tensor']}"

    @pytest.mark.parametrize("rank", rest_nightly([1, 0, 2]))
    def test_sums_that_differ_after_the_collective(self, three, rank):
        report = only_report(three["sums", rank])
        assert report["tensor"].startswith("gradient of model.")
        assert (report["ranks"], report["bits"], report["cause"]) == ([rank], 1, "transport")
        assert (report["right"], report["answer"]) == (0 if rank else 1, "resync")
        assert len({one["end"] for one in three["sums", rank]}) == 1


@pytest.fixture(scope="module")
def two(run):
    cases = {
        "healthy": {},
        "step": fault("after", rank=0),
        "memory": fault("before"),
        "gradient": fault("before", "gradient"),
        "report": {"answers": ["report"], **fault("before")},
        "trace": {"optimizer": "sgd", **fault("before", "gradient", bit=0)},
        "sgd": {"optimizer": "sgd"},
        "late": {"extra": "late", **fault("after")},
        "late gradient": {"extra": "late", **fault("before", "gradient")},
        "coupled": {"optimizer": "coupled", **fault("after")},
        "often": {"stop_after": 1, **fault("after", again=True, rank=0)},
        "twice": {"stop_after": 0, **fault("after", rank=0)},
        "kept": {"verb": "kept"},
        "kept memory": {"verb": "kept", **fault("before")},
        "kept gradient": {"verb": "kept", "by_hook": True, **fault("sum")},
        "kept step": {"verb": "kept", **fault("after")},
        "kept pack": {"verb": "kept", "damage": True, **fault("before")},
        "slow": {"every": 4, "total": 12, **fault("after", step=9, rank=0)},
        "kept slow": {"verb": "kept", "every": 4, "total": 12, **fault("after", step=9)},
        "shares": {"every": 3, "share_bytes": 64, "total": 12, **fault("after", step=7)},
        "frozen": {"kind": "norm", "extra": "eval", "total": 12},
        "one rank": {"kind": "norm", "extra": "one rank", "total": 9},
        "strangers": {"kind": "plain"},
        "fsdp": {"kind": "fsdp", "total": 9},
        "ignored": {"ignore": ["model.0.*", "optimizer.*"], **fault("after")},
    }  # fmt: skip
    return run(2, cases)


@pytest.mark.slow
class TestTwoRanks:
    """With two only the step done again, or a commit, says who is right."""

    def test_the_step_done_again_says_who_is_right(self, two):
        report = only_report(two["step"])
        assert (report["ranks"], report["right"], report["answer"]) == ([0], 1, "resync")
        assert_same_end(two["step"], two["healthy"])

    @pytest.mark.parametrize("name", ["memory", "gradient"])
    def test_alone_the_run_stops_if_nobody_can_say(self, two, name):
        report = only_report(two[name])
        assert (report["ranks"], report["right"], report["answer"]) == ([0, 1], None, "stop")
        for one in two[name]:
            assert one["error"].startswith(
                "InconsistentError: the ranks are not the same at step 5: "
            )

    def test_a_report_changes_nothing(self, two):
        said = two["report"]
        assert [one["step"] for one in said[0]["reports"]] == [5, 6, 7]
        assert {one["answer"] for one in said[0]["reports"]} == {"report"}
        assert said[0]["end"] != said[1]["end"]
        assert said[0]["error"] is None

    def test_a_gradient_whose_difference_is_rounded_away_is_reported(self, two):
        report = only_report(two["trace"])
        assert (report["cause"], report["answer"]) == ("transport", "report")
        assert report["tensors"] == ["gradient of model.0.weight"]
        assert_same_end(two["trace"], two["sgd"])

    def test_on_a_device_it_is_found_one_step_later(self, two):
        report = only_report(two["late"])
        assert (report["step"], report["ranks"], report["answer"]) == (5, [1], "resync")
        assert (report["cause"], report["index"]) == ("compute", [0, 3])
        assert len({one["end"] for one in two["late"]}) == 1
        report = only_report(two["late gradient"])
        assert (report["cause"], report["bits"], report["answer"]) == ("transport", 1, "stop")

    def test_an_optimizer_that_couples_parameters(self, two):
        report = only_report(two["coupled"])
        assert (report["cause"], report["ranks"]) == ("compute", [1])

    def test_what_comes_again_is_stopped(self, two):
        assert [one["answer"] for one in two["twice"][0]["reports"]] == ["stop"]
        assert all(one["error"] for one in two["twice"])

    @pytest.mark.parametrize("name", ["kept memory", "kept gradient"])
    def test_a_checkpointer_goes_back_and_ends_as_if_nothing_was(self, two, name):
        report = only_report(two[name])
        assert report["answer"] == "rollback"
        for one in two[name]:
            assert one["error"] is None
            assert one["back"] in ([4], [2])
        assert two[name][0]["alarms"] == [report["cause"]]
        assert_same_end(two[name], two["kept"])

    def test_a_checkpointer_resyncs_before_it_commits(self, two):
        assert only_report(two["kept step"])["answer"] == "resync"
        assert_same_end(two["kept step"], two["kept"])

    def test_a_damaged_pack_is_storage(self, two):
        report = only_report(two["kept pack"])
        assert (report["cause"], report["answer"]) == ("storage", "rollback")
        assert report["reason"].startswith("model.0.weight is damaged in the newest commit: chunk ")
        assert two["kept pack"][0]["alarms"] == ["storage"]
        assert all("there is nothing to go back to" in one["error"] for one in two["kept pack"])

    def test_everything_is_seen_once_in_every_steps(self, two):
        report = only_report(two["slow"])
        assert (report["step"], report["tensor"], report["answer"]) == (
            12,
            "model.0.weight",
            "stop",
        )
        assert only_report(two["shares"])["step"] in (7, 8, 9)
        assert two["shares"][0]["shares"] == 3

    def test_a_rollback_goes_back_to_when_all_was_well(self, two):
        report = only_report(two["kept slow"])
        assert (report["step"], report["answer"]) == (12, "rollback")
        assert [one["back"] for one in two["kept slow"]] == [[8], [8]]
        assert len({one["end"] for one in two["kept slow"]}) == 1

    def test_buffers_that_change_on_all_ranks_are_their_own_and_on_one_rank_are_not(self, two):
        assert two["frozen"][0]["reports"] == []
        assert "model.1.running_mean" in two["frozen"][0]["own"]
        assert two["one rank"][0]["reports"] == []  # it was a rank's own already

    def test_ranks_that_train_models_of_their_own(self, two):
        for one in two["strangers"]:
            assert one["error"] is None or "differs between ranks 0 and 1 before" in one["error"]
        assert two["strangers"][0]["error"].startswith("UnsupportedError: model.0.weight differs")

    def test_shards_without_a_replica_are_said_once(self, two):
        assert two["fsdp"][0]["reports"] == []
        (line,) = two["fsdp"][0]["lines"]
        assert line.startswith("consistency: no two ranks hold the same part of a parameter: only ")

    def test_what_is_ignored_is_not_compared(self, two):
        assert two["ignored"][0]["reports"] == []


@pytest.fixture(scope="module")
def four(run):
    cases = {
        "hsdp": {"kind": "hsdp"},
        "tp": {"kind": "tp"},
        "hsdp step": {"kind": "hsdp", **fault("after", rank=3)},
        "hsdp memory": {"kind": "hsdp", **fault("before", rank=2)},
        "hsdp state": {"kind": "hsdp", **fault("before", "state", "2.weight:exp_avg", rank=1)},
        "hsdp gradient": {"kind": "hsdp", **fault("before", "gradient", rank=0)},
        "tp step": {"kind": "tp", **fault("after", name="2.bias", rank=3, element=0)},
    }
    return run(4, cases)


@pytest.mark.slow
class TestFourRanks:
    """Replicas of shards."""

    def test_healthy_replicas_of_shards(self, four):
        for name in ("hsdp", "tp"):
            assert all(one["reports"] == [] and one["checks"] == 5 for one in four[name])
            assert all(not one["lines"] for one in four[name])

    def test_the_index_is_that_in_the_whole_tensor(self, four):
        report = only_report(four["hsdp step"])
        assert (report["tensor"], report["ranks"], report["right"]) == ("model.0.weight", [3], 1)
        assert (report["index"], report["answer"]) == ([4, 3], "resync")
        assert [one["end"] for one in four["hsdp step"]] == [one["end"] for one in four["hsdp"]]

    def test_two_replicas_of_a_shard_have_no_majority(self, four):
        for name, ranks in (("memory", [0, 2]), ("state", [1, 3]), ("gradient", [0, 2])):
            report = only_report(four[f"hsdp {name}"])
            assert (report["ranks"], report["right"], report["bits"]) == (ranks, None, 1)
            assert report["answer"] == "stop"

    def test_what_tensor_parallelism_leaves_whole(self, four):
        report = only_report(four["tp step"])
        assert (report["tensor"], report["ranks"], report["cause"]) == (
            "model.2.bias",
            [3],
            "compute",
        )
        assert report["answer"] == "resync"
        assert [one["end"] for one in four["tp step"]] == [one["end"] for one in four["tp"]]


@pytest.mark.nightly
def test_thousands_of_healthy_checks_raise_no_alarm(run):
    checks = 10_000
    (said,) = run(2, {"long": {"kind": "norm", "total": checks + 2}}).values()
    for one in said:
        assert (one["checks"], one["mismatches"], one["lines"]) == (checks, 0, [])
        assert one["own"] == ["model.1.running_mean", "model.1.running_var"]


@pytest.mark.slow
def test_a_step_done_twice(run):
    """A wrong gradient before the collective makes all ranks wrong alike; the step done again sees it."""
    cases = {
        "sound": {"verb": "twice"},
        "faulty": {"verb": "twice", "fault": {"rank": 1, "what": "input"}},
    }
    found = run(2, cases)
    assert found["sound"][0]["reports"] == []
    for one in found["faulty"]:
        (report,) = one["reports"]
        assert (report["cause"], report["answer"]) == ("compute", "report")
        assert report["tensor"].startswith(("model.", "gradients", "optimizer."))
        assert report["ranks"] == [0, 1]
    assert found["faulty"][0]["end"] == found["faulty"][1]["end"]
