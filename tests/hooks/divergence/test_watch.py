"""One event is one alarm; what is calm is known; a rollback and a resume change neither."""

import math

import numpy as np
import pytest

from mvc import FormatError, Repo, UsageError
from mvc_hooks.divergence.history import Reading, Verdict
from mvc_hooks.divergence.spike import Spike
from mvc_hooks.divergence.watch import Detector, Watch, as_detector, default_detectors
from support.bounds import rest_nightly
from support.cases import for_each
from support.readings import history_of


def _losses(count=400, seed=0):
    return np.random.default_rng(seed).normal(2.5, 0.05, count)


def _feed(watch, losses, first=1):
    pairs = ((step, watch.take(Reading(step, float(x)))) for step, x in enumerate(losses, first))
    return [step for step, verdict in pairs if verdict is not None]


def _hot():
    return as_detector(lambda h: h.losses[-1] > 8, name="hot")


@for_each(
    "make, bad, alarms, last",
    [
        (lambda: Watch([Spike(cooldown=50)]), {range(200, 280): 9.0}, [201, 252], 280),
        (Watch, {100: math.nan, 101: math.nan}, [101, 102], 102),  # never cooled down
        (Watch, {0: math.nan}, [1], 1),
        (lambda: Watch([Spike(), _hot()]), {range(200, 203): 9.0}, [201, 202, 203], 203),
        # An alarm that is not told is in the history.
        (lambda: Watch([Spike(cooldown=1000)]), {200: 9.0, 300: 9.0}, [201], 301),
        (lambda: Watch(Spike()), {100: 9.0, 101: math.nan}, [101], 101),
        (lambda: Watch(_hot()), {1: 9.0}, [2], 2),
    ],
)
def test_one_event_is_one_alarm_per_cooldown_of_its_detector(make, bad, alarms, last):
    losses, watch = _losses(), make()
    for at, value in bad.items():
        losses[at] = value
    assert _feed(watch, losses) == alarms
    assert watch.history.last_alarm_step == last


def test_after_a_rollback_the_same_spike_alarms_again():
    losses = _losses()
    losses[300] = 9.0
    watch, fresh = Watch(), Watch()
    assert _feed(watch, losses[:301]) == [301]
    watch.forget_after(250)
    _feed(fresh, losses[:250])
    assert watch.history.last_alarm_step is None
    assert _same(watch, fresh)
    assert _feed(watch, losses[250:301], first=251) == [301]


def test_after_a_rollback_the_cooldown_of_earlier_alarms_goes_on():
    losses = _losses()
    losses[200] = losses[240] = 9.0
    watch = Watch()
    _feed(watch, losses[:230])
    watch.forget_after(210)
    assert _feed(watch, losses[210:245], first=211) == []


def _same(left, right):
    a, b = left.state_dict(), right.state_dict()
    columns = all(
        np.asarray(x).tobytes() == np.asarray(b["history"][name]).tobytes()
        for name, x in a["history"].items()
    )
    return columns and a["reported"] == b["reported"]


def test_resumed_watch_says_the_same(tmp_path):
    losses = _losses(600)
    losses[250:270] = losses[500] = 9.0
    whole, first, second = Watch(), Watch(), Watch()
    expected = _feed(whole, losses)
    before = _feed(first, losses[:260])
    repo = Repo.init(tmp_path)
    repo.commit_state({"watch": first.state_dict()}, message="x", step=260)
    second.load_state_dict(repo.load_state("HEAD")["watch"])
    assert before + _feed(second, losses[260:], first=261) == expected == [251, 501]
    assert _same(second, whole)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda state: None,
        lambda state: state | {"more": 1},
        lambda state: {"history": state["history"]},
        lambda state: state | {"history": {}},
        lambda state: state | {"reported": [1]},
        lambda state: state | {"reported": {"spike": -1}},
        lambda state: state | {"reported": {"spike": 1.0}},
        lambda state: state | {"reported": {"spike": True}},
        lambda state: state | {"reported": {3: 3}},
        lambda state: state | {"reported": dict.fromkeys(map(str, range(2000)), 1)},
    ],
)
def test_garbage_is_a_format_error_and_changes_nothing(spoil):
    watch, other = Watch(), Watch()
    _feed(watch, [*_losses(100), 9.0])
    _feed(other, [*_losses(100), 9.0])
    with pytest.raises(FormatError):
        watch.load_state_dict(spoil(watch.state_dict()))
    assert _same(watch, other)


def test_bad_detectors_are_refused_at_once():
    for bad in ([Spike], Spike):
        with pytest.raises(UsageError, match="a detector is"):
            Watch(bad)
    watch = Watch([])
    watch.take(Reading(2))
    with pytest.raises(UsageError, match="came after"):
        watch.take(Reading(2))


def _llm_like(seed, count=10_000):
    """Return losses and norms of a falling curve with noise that is correlated, and broad norms."""
    rng = np.random.default_rng(seed)
    steps, noise = np.arange(count), np.zeros(count)
    shocks = rng.normal(0, 0.03, count)
    for at in range(1, count):
        noise[at] = 0.6 * noise[at - 1] + shocks[at]
    losses = 2 + 8 * np.exp(-steps / 150) + 1.5 / np.sqrt(1 + steps / 800) + noise
    return losses, np.exp(np.log(0.5 + 3 * np.exp(-steps / 300)) + 0.25 * rng.normal(size=count))


def _fine_tuned(seed, count=10_000):
    """Return losses that end near zero, spread over decades."""
    rng = np.random.default_rng(seed)
    steps = np.arange(count)
    losses = np.exp(np.log(2.3 * np.exp(-steps / 400) + 0.002) + 0.8 * rng.normal(size=count))
    return losses, losses * np.exp(0.3 * rng.normal(size=count))


@pytest.mark.parametrize("curve", [_llm_like, _fine_tuned])
@pytest.mark.parametrize("seed", rest_nightly(range(3)))
def test_no_false_alarm_in_ten_thousand_steps(curve, seed):
    watch = Watch(default_detectors())
    losses, norms = curve(seed)
    found = [
        watch.take(Reading(step, float(loss), float(norm)))
        for step, (loss, norm) in enumerate(zip(losses, norms, strict=True), start=1)
    ]
    assert [verdict for verdict in found if verdict] == []


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

    verdict = as_detector(mine)(history_of([1.0, 2.0]))
    assert (None if verdict is None else verdict.reason) == reason
    if verdict is not None:
        assert verdict.step == 2
        assert verdict.cause in {"mine", "heat"}


@for_each("answer", ["", 1, 0, 0.5, [], (True,), np.array([True, False])])
def test_other_answers_are_errors_that_name_the_detector(answer):
    def picky(history):
        return answer

    with pytest.raises(UsageError, match="'picky' returned"):
        as_detector(picky)(history_of([1.0]))

    def broken(history):
        return history.losses[99]

    with pytest.raises(UsageError, match="'broken' failed: IndexError") as caught:
        as_detector(broken)(history_of([1.0]))
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
