"""What is a spike and, above all, what is not."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.hooks import alarms
from mvc import UsageError
from mvc_hooks import History, NotFinite, Reading, Spike, Trend
from mvc_hooks.divergence.robust import measure_spread
from mvc_hooks.divergence.watch import default_detectors
from support.cases import for_each
from support.readings import finite, history_of, noise


@for_each("scale", [0.01, 0.05, 0.1, 0.3])
@for_each("seed", range(5))
def test_six_and_a_half_sigmas_alarm_and_five_and_a_half_do_not(seed, scale):
    losses = np.random.default_rng(seed).normal(2.5, scale, 128)
    median, sigma = measure_spread(losses)
    spike = Spike(min_rise=0.0, record=0)
    assert spike(history_of([*losses, median + 6.5 * sigma])).cause == "spike"
    assert spike(history_of([*losses, median + 5.5 * sigma])) is None
    assert spike(history_of([*losses, median - 50 * sigma])) is None


@given(st.integers(0, 1000), finite(1e-3, 1e6))
def test_spikes_are_found_in_any_unit(seed, unit):
    losses = noise(seed) * unit
    verdict = Spike()(history_of([*losses, 9.0 * unit]))
    assert verdict.step == verdict.onset_step == 129
    assert "129" in verdict.reason
    assert "sigmas" in verdict.reason
    assert "\n" not in verdict.reason


@given(
    st.lists(finite(-1e300, 1e300), min_size=1, max_size=300).map(lambda v: sorted(v)[::-1]),
)
def test_losses_that_never_rise_never_alarm(losses):
    history = History()
    detectors = default_detectors()
    for step, loss in enumerate(losses, start=1):
        history.append(Reading(step, loss, abs(loss)))
        assert not any(detector(history) for detector in detectors)


@for_each("level", [0.0, 1.0, -3.0, 1e-30, 1e300])
def test_constant_losses_and_dust_on_them_do_not_alarm_but_a_jump_does(level):
    dust = level * (1 + 1e-6) + 1e-9
    assert Spike()(history_of([level] * 200, [abs(level)] * 200)) is None
    assert Spike()(history_of([*[level] * 200, dust], [*[abs(level)] * 200, abs(dust)])) is None
    assert "inf sigmas" in Spike()(history_of([*[1.0] * 100, 2.0])).reason


@for_each("part", [0.25, 0.45, 0.5, 0.55])
def test_losses_with_many_zeros_are_no_spikes(part):
    rng = np.random.default_rng(1)
    losses = np.where(rng.random(3000) < part, rng.random(3000) * 0.5, 0.0)
    history = History()
    for step, loss in enumerate(losses, start=1):
        history.append(Reading(step, float(loss)))
        assert Spike()(history) is None


CALM, NORMS = list(noise()), list(np.exp(noise(2, scale=0.2)))
HOLED = [x for value in CALM for x in (value, None, math.nan, math.inf)]


@for_each(
    "losses, norms, options, alarms",
    [
        *(([*CALM[:count], 1e9], None, {}, False) for count in (0, 1, 63)),  # too short a history
        ([*noise(count=99), 9.0], None, {"window": 16, "warm_up": 100}, False),
        ([*noise(count=100), 9.0], None, {"window": 16, "warm_up": 100}, True),
        ([*CALM, 2.5], [*NORMS, 25.0], {}, False),
        ([*CALM, 2.5], [*NORMS, 0.0], {}, False),
        ([None] * 200, [0.0] * 199 + [1.0], {}, False),
        ([*HOLED, 2.5], None, {}, False),  # missing and broken readings are passed over
        ([*HOLED, None], None, {}, False),
        ([*HOLED, 9.0], None, {}, True),
    ],
)
def test_what_alarms(losses, norms, options, alarms):
    assert (Spike(**options)(history_of(losses, norms)) is not None) == alarms


def test_gradient_norms_alarm_by_their_factor():
    verdict = Spike()(history_of([*CALM, 2.5], [*NORMS, 400.0]))
    assert "gradient norm 400" in verdict.reason


def _started_high():
    """Return losses that began at 5 and are calm now, at 2.5."""
    return [*np.linspace(5, 2.6, 30), *noise(count=200)]


@pytest.mark.parametrize(
    ("loss", "is_new"), [(4.0, False), (5.1, False), (5.5, False), (6.5, True)]
)
def test_where_the_run_has_been_before_is_no_spike(loss, is_new):
    losses = [*_started_high(), loss]
    assert (Spike()(history_of(losses)) is not None) == is_new
    assert Spike(record=0)(history_of(losses)) is not None


@pytest.mark.parametrize(
    ("slope", "stays"), [(0.0, True), (0.02, True), (-0.02, True), (-0.2, False)]
)
def test_a_loss_little_above_its_record_must_stay_there(slope, stays):
    """It falls while a run learns something harder."""
    losses = [*_started_high(), *(6.0 + slope * np.arange(8))]
    found = [
        Spike()(history_of(losses[: n + 1])) is not None
        for n in range(len(losses) - 8, len(losses))
    ]
    assert found == [stays and n >= 4 for n in range(8)]


@pytest.mark.parametrize(("norm", "agrees"), [(1.0, False), (3.0, True), (None, True)])
def test_gradient_norms_have_to_agree(norm, agrees):
    losses = _started_high()
    history = history_of([*losses, 7.0], [*np.linspace(2.0, 1.0, len(losses)), norm])
    assert (Spike()(history) is not None) == agrees


@pytest.mark.parametrize(("rate", "is_raised"), [(0.1, False), (0.25, False), (1.0, True)])
@pytest.mark.parametrize("at", [0, 40, 80])
def test_a_learning_rate_never_had_before_lowers_the_bar(rate, is_raised, at):
    """Not one that is restarted: the run has been there."""
    history = History()
    losses = _started_high()
    for step, loss in enumerate(losses, start=1):
        lr = rate if step > len(losses) - at else 0.1 if step < 40 else 0.01
        history.append(Reading(step, loss, lr=lr))
    history.append(Reading(999, 4.0, lr=rate))
    assert (Spike()(history) is not None) == (is_raised and at < 64)


def _rare(seed, part, count=1500):
    rng = np.random.default_rng(seed)
    return np.where(rng.random(count) < part, 3.0, 1e-3) * np.exp(rng.normal(size=count))


@pytest.mark.parametrize("part", [0.01, 0.02, 0.05])
@pytest.mark.parametrize("seed", range(2))
def test_rare_events_are_no_spikes_but_a_series_of_them_is(seed, part):
    losses = _rare(seed, part)
    history = History()
    for step, loss in enumerate(losses, start=1):
        history.append(Reading(step, loss))
        assert Spike()(history) is None
    for factor, delay in ((2.0, 4), (6.0, 0)):
        series = [*losses, *[factor * np.max(losses)] * 8]
        found = [Spike()(history_of(series[: n + 1])) is not None for n in range(1500, 1508)]
        assert found.index(True) == delay


@pytest.mark.parametrize(("loss", "is_new"), [(4.2, False), (30.0, True)])
def test_events_rarer_than_the_window_tell_how_wild_the_noise_is(loss, is_new):
    losses = 0.01 + 0.001 * np.random.default_rng(0).random(801)
    losses[[100, 130, 160, 800]] = 3.0, 3.0, 3.0, loss
    assert (Spike()(history_of(losses)) is not None) == is_new


def test_an_alarm_says_how_to_have_fewer():
    found = [
        Spike()(history_of([*noise(), 9.0])),
        NotFinite()(history_of([1.0], [math.inf])),
        Trend(64, 4, 8, min_delta=0.1)(history_of([1.0] * 32 + [3.0] * 16)),
    ]
    for verdict, name in zip(
        found, ("Spike(record=2)", "overflows=16", "Trend(beyond=3)"), strict=True
    ):
        assert name in verdict.advice


def test_alarms_are_in_no_statistics():
    history = history_of(noise())
    for step in range(129, 400):
        history.append(Reading(step, 9.0))
        verdict = Spike()(history)
        assert verdict.onset_step == 129, "the plateau must not become the rule"
        history.mark_alarm()


@pytest.mark.parametrize(
    "bad",
    [
        lambda: Spike(window=1),
        lambda: Spike(warm_up=0),
        lambda: Spike(sigmas=0),
        lambda: Spike(sigmas=math.nan),
        lambda: Spike(min_delta=-1),
        lambda: Spike(min_rise=math.nan),
        lambda: Spike(cooldown=-1),
        lambda: Spike(record=-1),
        lambda: Spike(tail=math.inf),
        lambda: NotFinite(overflows=-1),
    ],
)
def test_bad_settings_are_refused(bad):
    with pytest.raises(UsageError):
        bad()


@pytest.mark.torch
@pytest.mark.parametrize(("kind", "steps"), [("length curriculum", 260), ("warm restarts", 320)])
def test_healthy_trainings_that_stand_out_are_no_failures(kind, steps):
    score_alone, default = alarms.study(kind, 1, steps)
    assert score_alone is not None
    assert default is None


@pytest.mark.torch
@pytest.mark.parametrize(("failure", "within"), [("bad batches, inputs times 30", 2), ("NaN", 1)])
def test_trainings_that_fail_are_found_as_soon_as_by_the_score_alone(failure, within):
    score_alone, default = alarms.study(failure, 0, alarms.FAILS_AT + 10)
    assert default <= within
    assert default <= score_alone


# What is not finite.


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("before", [0, 1, 300])
def test_not_finite_alarms_at_once(bad, before):
    for readings in ((bad, None), (1.0, bad), (None, bad)):
        history = history_of([*[1.0] * before, readings[0]], [*[1.0] * before, readings[1]])
        verdict = NotFinite()(history)
        assert (verdict.cause, verdict.step) == ("not finite", before + 1)
        assert str(bad) in verdict.reason
    assert NotFinite()(history_of([1.0])) is None
    assert NotFinite()(history_of([None])) is None
    assert NotFinite()(History()) is None


def test_overflows_of_a_scaler_are_its_own_business():
    detector = NotFinite(overflows=2)
    norms = [math.inf, math.nan, 1.0, math.inf, math.inf, math.inf]
    found = [detector(history_of([1.0] * n, norms[:n])) is not None for n in range(1, 7)]
    assert found == [False, False, False, False, False, True]
    assert detector(history_of([math.nan], [1.0]))
