import dataclasses
import math

import pytest

from mvc import UsageError
from mvc.scaling.limits import (
    GATES,
    Measured,
    ScaleLimits,
    judge_scale,
    make_limits,
    parse_measured,
)
from support.cases import for_each

GOOD = Measured(4, 100, 0, 1e-6, 0.05, 0.85, 30.0, 2.0)
LIMITS = ScaleLimits()


def judge(before=2.0, waived=(), **changes):
    found = judge_scale(dataclasses.replace(GOOD, **changes), LIMITS, before, waived)
    assert tuple(one.gate for one in found) == GATES
    return {one.gate: one for one in found}


def test_what_is_at_its_limit_passes():
    assert {verdict.status for verdict in judge().values()} == {"passed"}


@for_each(
    ("gate", "changes", "text"),
    [
        ("bits", {"mismatches": 1}, "1 of 100 checks found a rank that differs"),
        ("bits", {"checks": 0}, "the ranks were never compared"),
        ("bits", {"mismatches": None}, "mismatches were not measured"),
        ("deviation", {"deviation_max": 1.1e-5}, "deviation is 1.1e-05, at most 1e-05"),
        ("sync", {"sync_p99_s": 0.081}, "P99 of a gradient sync is 0.081 s, at most 0.05 s"),
        ("sync", {"sync_p99_s": math.nan}, "P99 of a gradient sync is nan s, at most 0.05 s"),
        ("bandwidth", {"bandwidth_used": 0.8}, "0.8 of the bandwidth is used, at least 0.85"),
        ("recovery", {"recovery_s": 31}, "recovery is 31 s, at most 30 s"),
        ("recovery", {"recovery_s": None}, "recovery was not measured"),
        ("loss", {"loss": 2.11}, "loss is 2.11, at most 2.1 after 2 at the size before"),
        ("loss", {"loss": math.inf}, "loss is inf"),
        ("loss", {"loss": None}, "loss was not measured"),
    ],
)
def test_a_gate_fails_alone_and_says_why(gate, changes, text):
    found = judge(**changes)
    assert [name for name, one in found.items() if one.status == "failed"] == [gate]
    assert found[gate].text == text
    waived = judge(waived=[gate], **changes)
    assert waived[gate].status == "waived"
    assert {one.status for name, one in waived.items() if name != gate} == {"passed"}


def test_a_lower_loss_is_no_fault():
    assert judge(loss=0.1)["loss"].status == "passed"
    assert judge(before=-1.0, loss=-0.96)["loss"].status == "passed"
    assert judge(before=-1.0, loss=-0.94)["loss"].status == "failed"
    assert judge(before=None, loss=99.0)["loss"].status == "passed"


def test_one_rank_has_no_other():
    found = judge_scale(Measured(1, recovery_s=1.0, loss=3.0), LIMITS, None)
    assert [one.status for one in found] == ["none"] * 4 + ["passed"] * 2


def test_a_gate_that_is_waived_exists():
    with pytest.raises(UsageError, match="'synk' is not a gate"):
        judge(waived=["synk"])


@pytest.mark.parametrize(
    ("values", "ranks", "text"),
    [
        ([], 2, "what was measured must be an object of names and numbers"),
        ({"sync_p99": 1}, 2, "'sync_p99' is nothing that is measured"),
        ({"loss": "2"}, 2, "loss is '2', not a number"),
        ({"loss": 10**20}, 2, "loss is '100000000000000000000', not a number"),
        ({"loss": True}, 2, "loss is 'True', not a number"),
        ({"checks": 1.5}, 2, "checks is '1.5', not a whole number"),
        ({"recovery_s": -1}, 2, "recovery_s is -1, and cannot be negative"),
        ({"bandwidth_used": 85}, 2, "bandwidth_used is 85, not a share such as 0.85"),
        ({"ranks": 4}, 2, "this was measured on 4 ranks, not on 2"),
        ({"ranks": 0}, None, "a run has at least 1 rank, not 0"),
        ({}, None, "how many ranks was this measured on?"),
    ],
)
def test_measured_numbers_that_make_no_sense(values, ranks, text):
    with pytest.raises(UsageError) as caught:
        parse_measured(values, ranks)
    assert caught.value.message == text


def test_measured_numbers():
    assert parse_measured({"loss": 2, "checks": None}, 3) == Measured(3, loss=2)
    assert parse_measured(dataclasses.asdict(GOOD)) == GOOD


@pytest.mark.parametrize(
    ("limits", "text"),
    [
        ({"bandwidth_used": 85}, "the limit bandwidth_used must be a share from 0 to 1, such as 0.85, not 85"),
        ({"sync_p99_s": 50}, "the limit sync_p99_s must be seconds up to 10, such as 0.05 for 50 ms, not 50"),
        ({"loss_rise": -0.1}, "the limit loss_rise must be a share from 0 to 1, such as 0.05, not -0.1"),
        ({"recovery_s": math.nan}, "the limit recovery_s must be seconds up to a day, not nan"),
        ({"recovery": 3}, "'recovery' is not a limit"),
    ],
)  # fmt: skip
def test_limits_that_make_no_sense(limits, text):
    with pytest.raises(UsageError) as caught:
        make_limits(limits)
    assert caught.value.message == text


def test_limits():
    assert make_limits({"recovery_s": 60}) == ScaleLimits(recovery_s=60)
