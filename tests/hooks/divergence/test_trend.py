"""Slow divergence is seen, noise and falling losses are not."""

import math

import numpy as np
import pytest

from mvc import UsageError
from mvc_hooks.divergence.history import History, Reading
from mvc_hooks.divergence.trend import Trend
from mvc_hooks.divergence.watch import Watch
from support.cases import for_each

_SMALL = Trend(window=256, smooth=16, patience=64, beyond=-1)


def _first_alarm(losses, detector=_SMALL):
    history = History()
    for step, loss in enumerate(losses, start=1):
        history.append(Reading(step, None if loss is None else float(loss)))
        verdict = detector(history)
        if verdict is not None:
            return verdict
    return None


def _drifting(seed, slope, turn=300, count=900, noise=0.05):
    rng = np.random.default_rng(seed)
    steps = np.arange(count)
    falling = 2 + 3 * np.exp(-steps / 60)
    return falling + np.maximum(steps - turn, 0) * slope + noise * rng.normal(size=count)


def _with(losses, begin, end, by, every=1):
    losses[begin:end:every] += by
    return losses


@for_each("seed", range(4))
def test_slow_drift_alarms_with_its_onset_and_noise_alone_does_not(seed):
    verdict = _first_alarm(_drifting(seed, 0.003))
    assert verdict.cause == "trend"
    assert 360 < verdict.step < 600
    assert 280 < verdict.onset_step < verdict.step - 16
    assert f"at step {verdict.step}" in verdict.reason
    assert _first_alarm(_drifting(seed, 0.0, noise=0.2)) is None


@for_each(
    "losses",
    [
        _with(_drifting(1, 0.0), 310, None, 50.0, every=9),  # single spikes
        _with(_drifting(2, 0.0), 400, 440, 1.0),  # a short hump
        [1.0] * 100 + [math.nan] * 400 + [3.0] * 300,  # the best is forgotten with the window
        *([level] * 300 for level in (1.6e308, -1.6e308, 1e-320, 0.0)),
    ],
)
def test_what_does_not_alarm(losses):
    assert _first_alarm(losses) is None


def test_no_step_of_the_drift_is_a_spike():
    watch = Watch()
    found = [watch.take(Reading(n + 1, float(x))) for n, x in enumerate(_drifting(0, 0.002))]
    assert {verdict.cause for verdict in found if verdict} <= {"trend"}


@pytest.mark.parametrize(("height", "step"), [(3.0, None), (4.8, None), (9.0, range(470, 600))])
def test_a_rise_within_the_range_of_the_run_is_forgiven(height, step):
    """It began at 5 and came down to 2; annealing and curricula take a loss back some of the way."""
    losses = _drifting(3, 0.0)
    losses[400:] += np.minimum(np.arange(500) / 40, 1) * (height - 2)
    verdict = _first_alarm(losses, Trend(window=900, smooth=16, patience=64))
    assert (verdict.step in step) if step else verdict is None


@pytest.mark.parametrize(
    ("level", "slope", "is_found"), [(4.6, 0.0, True), (4.6, -0.003, False), (2.5, 0.0, False)]
)
def test_a_loss_that_went_back_to_the_start_and_stays_there_alarms(level, slope, is_found):
    """The network is dead: nothing of what it learned is left, and it learns nothing."""
    rng = np.random.default_rng(0)
    losses = 0.2 + 5 * np.exp(-np.arange(1500) / 60) + 0.02 * rng.normal(size=1500)
    losses[700:] += level + slope * np.arange(800)
    verdict = _first_alarm(losses, Trend())
    assert (verdict is not None) == is_found
    assert verdict is None or (1170 < verdict.step < 1230 and 660 < verdict.onset_step <= 720)


def test_a_loss_that_keeps_growing_is_found_before_it_is_huge():
    steps = np.arange(2500)
    losses = 0.2 + np.exp(-steps / 60) + 0.01 * np.exp(np.maximum(steps - 900, 0) / 150)
    verdict = _first_alarm(losses, Trend())
    assert losses[verdict.step - 1] < 10


def test_a_lasting_step_up_alarms_once_and_becomes_normal():
    losses = np.full(1000, 2.0)
    losses[500:] = 3.0  # half of the first block of 16 decides it, so 8 steps early
    watch = Watch([_SMALL])
    alarms = [n + 1 for n, x in enumerate(losses) if watch.take(Reading(n + 1, float(x)))]
    assert alarms == [556]
    assert 740 < watch.history.last_alarm_step < 760


@pytest.mark.parametrize("unit", [2.0**-40, 1e-3, 1e6])
def test_units_do_not_matter(unit):
    losses, detector = _drifting(7, 0.003), Trend(256, 16, 64, min_delta=0.0, beyond=-1)
    plain, scaled = _first_alarm(losses, detector), _first_alarm(losses * unit, detector)
    assert (plain.step, plain.onset_step) == (scaled.step, scaled.onset_step)


def test_holes_in_the_readings():
    losses = [x for loss in _drifting(0, 0.004) for x in (None, math.nan, loss)]
    verdict = _first_alarm(losses, Trend(window=900, smooth=16, patience=64, beyond=-1))
    assert verdict is not None
    assert verdict.onset_step % 3 == 0


@pytest.mark.parametrize(
    "settings",
    [
        {"window": 100},
        {"smooth": 0},
        {"patience": 0},
        {"rise": -1},
        {"min_delta": math.inf},
        {"sigmas": math.nan},
        {"cooldown": -1},
        {"beyond": -2},
        {"beyond": math.nan},
    ],
)
def test_bad_settings_are_refused(settings):
    with pytest.raises(UsageError):
        Trend(**settings)
