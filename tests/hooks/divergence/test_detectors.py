"""What alarms and, above all, what does not."""

import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from benchmarks.hooks import alarms
from mvc import UsageError
from mvc_hooks.divergence.detectors import (
    NotFinite,
    Spike,
    Trend,
    find_medians,
    measure_spread,
    robust_score,
)
from mvc_hooks.divergence.history import History, Reading, Verdict
from mvc_hooks.divergence.watch import Detector, as_detector, default_detectors


def _history(losses, norms=None):
    history = History()
    norms = [None] * len(losses) if norms is None else norms
    for step, (loss, norm) in enumerate(zip(losses, norms, strict=True), start=1):
        history.append(Reading(step, loss, norm))
    return history


def _noise(seed=0, count=128, scale=0.05):
    return np.random.default_rng(seed).normal(2.5, scale, count)


def _finite(low=-1e6, high=1e6):
    return st.floats(low, high, allow_nan=False, allow_subnormal=False)


@given(st.lists(_finite(), min_size=1, max_size=40))
def test_medians_are_numpys(values):
    assert math.isclose(
        float(find_medians(np.array(values))), float(np.median(values)), rel_tol=1e-12, abs_tol=1e-9
    )


@given(st.lists(_finite(), min_size=3, max_size=40), _finite(), st.integers(-300, 300))
def test_score_does_not_depend_on_the_unit(values, value, exponent):
    values = np.array(values)
    scaled = np.ldexp(values, exponent), math.ldexp(value, exponent)
    assume(np.array_equal(np.ldexp(scaled[0], -exponent), values))
    score, median = robust_score(value, values)
    again, scaled_median = robust_score(scaled[1], scaled[0])
    assert again == score
    assert math.ldexp(scaled_median, -exponent) == median


@given(st.lists(_finite(), min_size=3, max_size=40), _finite(), st.randoms())
def test_score_does_not_depend_on_the_order(values, value, random):
    shuffled = list(values)
    random.shuffle(shuffled)
    first, second = (robust_score(value, np.array(v)) for v in (values, shuffled))
    assert first[1] == second[1]
    assert math.isclose(first[0], second[0], rel_tol=1e-9)


def test_spread_of_normal_noise_is_its_standard_deviation():
    median, sigma = measure_spread(np.random.default_rng(3).normal(7, 2, 100_000))
    assert abs(median - 7) < 0.03
    assert abs(sigma - 2) < 0.03


def test_wild_values_in_the_window_do_not_move_the_score_far():
    calm = _noise(count=101)
    wild = calm.copy()
    wild[:9] = 1e9
    assert robust_score(4.0, wild)[0] > robust_score(4.0, calm)[0] / 3


@pytest.mark.parametrize("largest", [1.7e308, 5e-324, 1e-310, 0.0])
def test_ends_of_the_range_do_not_overflow(largest):
    values = np.array([largest, -largest, 0.0, largest, largest])
    for value in (1.7e308, -1.7e308, 0.0, 5e-324, largest):
        score, median = robust_score(value, values)
        assert not math.isnan(score)
        assert math.isclose(median, largest, abs_tol=1e-300)


@pytest.mark.parametrize("scale", [0.01, 0.05, 0.1, 0.3])
@pytest.mark.parametrize("seed", range(5))
def test_six_and_a_half_sigmas_alarm_and_five_and_a_half_do_not(seed, scale):
    losses = np.random.default_rng(seed).normal(2.5, scale, 128)
    median, sigma = measure_spread(losses)
    spike = Spike(min_rise=0.0, record=0)
    assert spike(_history([*losses, median + 6.5 * sigma])).cause == "spike"
    assert spike(_history([*losses, median + 5.5 * sigma])) is None
    assert spike(_history([*losses, median - 50 * sigma])) is None


@given(st.integers(0, 1000), _finite(1e-3, 1e6))
def test_spikes_are_found_in_any_unit(seed, unit):
    losses = _noise(seed) * unit
    verdict = Spike()(_history([*losses, 9.0 * unit]))
    assert verdict.step == verdict.onset_step == 129
    assert "129" in verdict.reason
    assert "sigmas" in verdict.reason
    assert "\n" not in verdict.reason


@given(
    st.lists(_finite(-1e300, 1e300), min_size=1, max_size=300).map(lambda v: sorted(v)[::-1]),
)
def test_losses_that_never_rise_never_alarm(losses):
    history = History()
    detectors = default_detectors()
    for step, loss in enumerate(losses, start=1):
        history.append(Reading(step, loss, abs(loss)))
        assert not any(detector(history) for detector in detectors)


@pytest.mark.parametrize("level", [0.0, 1.0, -3.0, 1e-30, 1e300])
def test_constant_losses_and_dust_on_them_do_not_alarm(level):
    dust = level * (1 + 1e-6) + 1e-9
    assert Spike()(_history([level] * 200, [abs(level)] * 200)) is None
    assert Spike()(_history([*[level] * 200, dust], [*[abs(level)] * 200, abs(dust)])) is None


def test_a_real_jump_from_constant_losses_alarms():
    assert "inf sigmas" in Spike()(_history([*[1.0] * 100, 2.0])).reason


@pytest.mark.parametrize("part", [0.25, 0.45, 0.5, 0.55])
def test_losses_with_many_zeros_are_no_spikes(part):
    rng = np.random.default_rng(1)
    losses = np.where(rng.random(3000) < part, rng.random(3000) * 0.5, 0.0)
    history = History()
    for step, loss in enumerate(losses, start=1):
        history.append(Reading(step, float(loss)))
        assert Spike()(history) is None


@pytest.mark.parametrize("count", [0, 1, 63])
def test_short_histories_are_not_judged(count):
    assert Spike()(_history([*_noise()[:count], 1e9])) is None


def test_warm_up_may_be_longer_than_the_window():
    spike = Spike(window=16, warm_up=100)
    losses = list(_noise(count=100))
    assert spike(_history([*losses[:99], 9.0])) is None
    assert spike(_history([*losses, 9.0]))


def test_gradient_norms_alarm_by_their_factor():
    losses, norms = list(_noise()), list(np.exp(_noise(2, scale=0.2)))
    verdict = Spike()(_history([*losses, 2.5], [*norms, 400.0]))
    assert "gradient norm 400" in verdict.reason
    assert Spike()(_history([*losses, 2.5], [*norms, 25.0])) is None
    assert Spike()(_history([*losses, 2.5], [*norms, 0.0])) is None


def test_zero_gradient_norms_are_harmless():
    assert Spike()(_history([None] * 200, [0.0] * 199 + [1.0])) is None


def test_missing_and_broken_readings_are_passed_over():
    losses = [x for value in _noise() for x in (value, None, math.nan, math.inf)]
    assert Spike()(_history([*losses, 2.5])) is None
    assert Spike()(_history([*losses, None])) is None
    assert Spike()(_history([*losses, 9.0]))


def _started_high():
    """Return losses that began at 5 and are calm now, at 2.5."""
    return [*np.linspace(5, 2.6, 30), *_noise(count=200)]


@pytest.mark.parametrize(("loss", "is_new"), [(4.0, False), (5.1, False), (5.5, True)])
def test_where_the_run_has_been_before_is_no_spike(loss, is_new):
    losses = [*_started_high(), loss]
    assert (Spike()(_history(losses)) is not None) == is_new
    assert Spike(record=0)(_history(losses)) is not None


@pytest.mark.parametrize(("norm", "agrees"), [(1.0, False), (3.0, True), (None, True)])
def test_gradient_norms_have_to_agree(norm, agrees):
    losses = _started_high()
    history = _history([*losses, 6.0], [*np.linspace(2.0, 1.0, len(losses)), norm])
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


@pytest.mark.parametrize("part", [0.003, 0.02, 0.05])
@pytest.mark.parametrize("seed", range(2))
def test_rare_events_are_no_spikes_but_a_series_of_them_is(seed, part):
    losses = _rare(seed, part)
    history = History()
    for step, loss in enumerate(losses, start=1):
        history.append(Reading(step, loss))
        assert Spike()(history) is None
    found = []
    for step in range(len(losses) + 1, len(losses) + 9):
        history.append(Reading(step, 1000.0))
        found.append(Spike()(history) is not None)
    assert found.index(True) == 3


def test_an_alarm_says_how_to_have_fewer():
    found = [
        Spike()(_history([*_noise(), 9.0])),
        NotFinite()(_history([1.0], [math.inf])),
        Trend(64, 4, 8, min_delta=0.1)(_history([1.0] * 32 + [3.0] * 16)),
    ]
    for verdict, name in zip(
        found, ("Spike(record=2)", "overflows=16", "Trend(beyond=3)"), strict=True
    ):
        assert name in verdict.advice


def test_alarms_are_in_no_statistics():
    history = _history(_noise())
    for step in range(129, 400):
        history.append(Reading(step, 9.0))
        verdict = Spike()(history)
        assert verdict.onset_step == 129, "the plateau must not become the rule"
        history.mark_alarm()


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("before", [0, 1, 300])
def test_not_finite_alarms_at_once(bad, before):
    for readings in ((bad, None), (1.0, bad), (None, bad)):
        history = _history([*[1.0] * before, readings[0]], [*[1.0] * before, readings[1]])
        verdict = NotFinite()(history)
        assert (verdict.cause, verdict.step) == ("not finite", before + 1)
        assert str(bad) in verdict.reason
    assert NotFinite()(_history([1.0])) is None
    assert NotFinite()(_history([None])) is None
    assert NotFinite()(History()) is None


def test_overflows_of_a_scaler_are_its_own_business():
    detector = NotFinite(overflows=2)
    norms = [math.inf, math.nan, 1.0, math.inf, math.inf, math.inf]
    found = [detector(_history([1.0] * n, norms[:n])) is not None for n in range(1, 7)]
    assert found == [False, False, False, False, False, True]
    assert detector(_history([math.nan], [1.0]))


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (None, None),
        (False, None),
        (np.False_, None),
        (True, "mine raised an alarm"),
        (np.True_, "mine raised an alarm"),
        ("too\nhot", "too hot"),
        (Verdict("heat", "hot", 1, 2), "hot"),
    ],
)
def test_functions_of_the_user(answer, reason):
    def mine(history):
        return answer

    verdict = as_detector(mine)(_history([1.0, 2.0]))
    assert (None if verdict is None else verdict.reason) == reason
    if verdict is not None:
        assert verdict.step == 2
        assert verdict.cause in {"mine", "heat"}


@pytest.mark.parametrize("answer", ["", 1, 0, 0.5, [], (True,), np.array([True, False])])
def test_other_answers_are_errors_that_name_the_detector(answer):
    def picky(history):
        return answer

    with pytest.raises(UsageError, match="'picky' returned"):
        as_detector(picky)(_history([1.0]))


def test_a_failing_detector_is_named():
    def broken(history):
        return history.losses[99]

    with pytest.raises(UsageError, match="'broken' failed: IndexError") as caught:
        as_detector(broken)(_history([1.0]))
    assert isinstance(caught.value.__cause__, IndexError)


def test_what_is_a_detector():
    class Hot:
        def __call__(self, history):
            return True

    assert as_detector(Hot()).name == "Hot"
    assert as_detector(lambda h: None, name="mine", cooldown=7).cooldown == 7
    spike = Spike()
    assert as_detector(spike) is spike
    assert as_detector(spike, cooldown=3).name == "spike"
    assert all(isinstance(detector, Detector) for detector in default_detectors())
    assert default_detectors(has_scaler=True)[0].overflows > 0
    for bad in (Spike, "spike", None, 3):
        with pytest.raises(UsageError, match="a detector is"):
            as_detector(bad)
    with pytest.raises(UsageError):
        as_detector(lambda h: None, cooldown=-1)


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
