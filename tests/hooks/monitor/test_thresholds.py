"""Alarms are said once, not at every step, and settings that make no sense are refused."""

import math

import pytest

from mvc import UsageError
from mvc_lab import Monitor, Thresholds
from mvc_lab.monitor.thresholds import COOLDOWN_S, RULES, Alarm


def say(alarm, values, step_s=1.0, at_s=0.0):
    return [
        number for number, value in enumerate(values) if alarm.look(value, at_s + number * step_s)
    ]


def test_an_alarm_is_said_once():
    alarm = Alarm(10.0)
    assert say(alarm, [9, 11, 12, 30]) == [1]
    assert alarm.is_on


def test_a_value_that_wavers_about_its_limit_is_said_once():
    alarm = Alarm(10.0)
    assert say(alarm, [11, 9.5, 11, 9.5, 11], step_s=COOLDOWN_S) == [0], "9.5 is not clearly back"
    assert alarm.is_on


def test_one_that_comes_back_is_quiet_for_a_while():
    alarm = Alarm(10.0)
    assert say(alarm, [11, 1, 11, 1]) == [0]
    assert not alarm.is_on
    assert say(alarm, [11], at_s=COOLDOWN_S) == [0]


def test_a_lower_limit():
    alarm = Alarm(0.85, is_above=False)
    assert say(alarm, [0.9, 0.86, 0.84, 0.86, 0.5]) == [2]
    alarm.look(0.95, 6)
    assert not alarm.is_on


def test_what_has_to_last():
    alarm = Alarm(10.0, hold_s=60.0)
    assert say(alarm, [11] * 59 + [9] + [11] * 61) == [120]
    assert not Alarm(10.0, hold_s=60.0).look(11, 0), "not in the first minute"


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"sync_p99_s": 0}, "threshold sync_p99_s is 0, not a positive number"),
        ({"stall_s": -1.0}, "threshold stall_s is -1.0, not a positive number"),
        ({"deviation": math.nan}, "threshold deviation is nan, not a positive number"),
        ({"recovery_s": True}, "threshold recovery_s is True, not a positive number"),
        ({"bandwidth_used": 85}, "threshold bandwidth_used is 85, not a share of the link's speed"),
    ],
)
def test_bad_thresholds(settings, text):
    with pytest.raises(UsageError) as caught:
        Thresholds(**settings)
    assert caught.value.message == text
    assert caught.value.hint


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"port": 70000}, "port is 70000, not a port"),
        ({"port": True}, "port is True, not a port"),
        ({"address": ""}, "address is '', not an address"),
        ({"jsonl": 3}, "jsonl is 3, not the path of a file"),
        ({"thresholds": 0.05}, "thresholds is 0.05, not Thresholds"),
        ({"link_bytes_per_s": 0}, "link_bytes_per_s is 0, not a positive number"),
        ({"link_bytes_per_s": math.inf}, "link_bytes_per_s is inf, not a positive number"),
    ],
)
def test_bad_monitors(settings, text):
    with pytest.raises(UsageError) as caught:
        Monitor(**settings)
    assert caught.value.message == text


def test_every_threshold_has_a_rule_that_says_what_to_do():
    assert set(RULES) == set(Thresholds.__dataclass_fields__)
    for rule in RULES.values():
        assert rule.fact.format(0.5, 0.25)
        assert rule.advice
