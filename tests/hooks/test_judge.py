"""Which commits become healthy, and when."""

import math
from types import SimpleNamespace

import numpy as np

from mvc_hooks import NotFinite, Spike
from mvc_hooks.divergence.ladder import lr_scale
from mvc_hooks.judge import Judge
from mvc_hooks.ranks.messages import StepSums

_LOG = SimpleNamespace(step=lambda *_: None, alarm=lambda _: None, action=lambda *_: None)


def _make(healthy_after, *detectors):
    return Judge(detectors, [lr_scale(limit=9)], healthy_after)


def _feed(judge, losses, commits=(), first=1):
    """Judge steps; return the commits that became healthy, and the step after which they did."""
    found = []
    for step, loss in enumerate(losses, first):
        judge.judge([StepSums(step, {"loss": float(loss)}, {})], _LOG)
        if step in commits:
            judge.note_commit(step, f"commit {step}")
        found += [(commit, step) for _, commit in judge.take_healthy()]
    return found


def test_a_commit_is_healthy_after_calm_steps():
    judge = _make(20, NotFinite())
    assert list(judge.take_healthy()) == []
    found = _feed(judge, [1.0] * 50, commits=(10, 30, 31))
    assert found == [("commit 10", 30), ("commit 30", 50)]
    assert _feed(judge, [1.0], first=51) == [("commit 31", 51)]


def test_an_alarm_at_its_step_or_soon_after_keeps_a_commit_from_being_healthy():
    losses = [1.0] * 100
    losses[49] = math.nan  # step 50
    found = _feed(_make(10, NotFinite()), losses, commits=(39, 40, 49, 50, 51))
    assert found == [("commit 39", 49), ("commit 51", 61)]


def test_an_alarm_long_after_a_commit_does_not_matter_to_it():
    """Even if the writer reports the commit after the alarm."""
    judge = _make(10, NotFinite())
    assert _feed(judge, [1.0] * 15 + [math.nan]) == []
    judge.note_commit(5, "commit 5")
    assert list(judge.take_healthy()) == [(5, "commit 5")]


def test_an_alarm_within_a_cooldown_is_not_calm_either():
    losses = np.random.default_rng(0).normal(2.5, 0.05, 400)
    losses[200] = losses[300] = 9.0
    assert _feed(_make(20, Spike(cooldown=1000)), losses, commits=(285,)) == []


def test_commits_that_a_rollback_abandons_do_not_become_healthy():
    judge = _make(10, NotFinite())
    assert _feed(judge, [1.0] * 30, commits=(25, 29)) == []
    judge.forget_after(25)
    assert _feed(judge, [1.0] * 20, first=26) == [("commit 25", 35)]


def test_metrics_name_a_scaler_only_where_there_is_one():
    judge = _make(10, NotFinite())
    assert judge.read_metrics(1) == judge.read_scaler() == {}
    judge.judge([StepSums(1, {"loss": 2.0}, {})], _LOG)
    assert judge.read_metrics(1) == {"loss": 2.0}
    judge.judge([StepSums(2, {"loss": 2.0, "scale": 8.0}, {})], _LOG)
    assert judge.read_metrics(2) == {"loss": 2.0, "scale": 8.0, "overflows": 0}
    assert judge.read_metrics(1) == {}
