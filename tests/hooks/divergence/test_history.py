"""A history keeps the newest readings, exactly, and takes nothing else back."""

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mvc import FormatError, UsageError
from mvc_hooks.divergence.history import History, Reading, Verdict
from support.cases import for_each

_VALUES = st.none() | st.floats(allow_nan=True, allow_infinity=True)


def _fill(readings, capacity=8):
    history = History(capacity)
    for step, (loss, norm) in enumerate(readings, start=1):
        history.append(Reading(step, loss, norm))
    return history


def _bits(value):
    return None if value is None else struct.pack(">d", value)


def _rows(history):
    rows = (history[at] for at in range(len(history)))
    return [(r.step, _bits(r.loss), _bits(r.grad_norm)) for r in rows]


@given(st.lists(st.tuples(_VALUES, _VALUES), max_size=60), st.integers(1, 9))
def test_it_holds_the_newest_readings(pairs, capacity):
    history = _fill(pairs, capacity)
    kept = list(enumerate(pairs, start=1))[-capacity:]
    assert [row[0] for row in _rows(history)] == [step for step, _ in kept]
    for at, (_, (loss, norm)) in enumerate(kept):
        assert np.array_equal(history[at].loss, loss, equal_nan=True) if loss else True
        assert (history[at].loss is None) == (loss is None)
        assert (history[at].grad_norm is None) == (norm is None)
    assert list(history.steps) == [step for step, _ in kept]


@given(st.lists(st.tuples(_VALUES, _VALUES), max_size=30), st.integers(0, 31), st.integers(1, 12))
def test_forgetting_equals_never_having_read(pairs, step, capacity):
    history, short = _fill(pairs, capacity), _fill(pairs[:step], capacity)
    history.forget_after(step)
    rows = _rows(history)
    assert rows == _rows(short)[len(short) - len(rows) :]
    assert all(row[0] <= step for row in rows)
    history.append(Reading(step + 1, 1.5))
    assert history.latest == Reading(step + 1, 1.5)


@given(st.lists(st.tuples(_VALUES, _VALUES), max_size=20), st.integers(1, 12))
def test_state_comes_back_bit_by_bit(pairs, capacity):
    history = _fill(pairs, capacity)
    if len(history):
        history.mark_alarm()
    again = History(capacity)
    again.load_state_dict(history.state_dict())
    assert _rows(again) == _rows(history)
    assert list(again.alarms) == list(history.alarms)
    for name, column in history.state_dict().items():
        assert np.asarray(again.state_dict()[name]).tobytes() == np.asarray(column).tobytes()


def test_what_was_not_measured_is_no_nan_in_a_state():
    history = _fill([(1.0, None), (None, 2.0)])
    history.append(Reading(3, 1.0, 2.0, 0.1, 8.0))
    state = history.state_dict()
    assert not any(np.isnan(column).any() for column in state.values())
    again = History(8)
    again.load_state_dict(state)
    assert [again[at] for at in range(3)] == [history[at] for at in range(3)]
    assert np.isnan(again.lrs[:2]).all()
    assert np.isnan(again.scales[:2]).all()


def test_smaller_history_takes_the_newest():
    history = _fill([(float(n), None) for n in range(8)])
    small = History(3)
    small.load_state_dict(history.state_dict())
    assert list(small.steps) == [6, 7, 8]


def test_arrays_handed_out_never_change():
    history = _fill([(1.0, 1.0)] * 4, capacity=4)
    seen, before = history.losses, history.losses.copy()
    history.forget_after(2)
    for step in range(3, 40):
        history.append(Reading(step, float(step)))
    assert np.array_equal(seen, before)
    with pytest.raises(ValueError, match="read-only"):
        seen[0] = 7


@pytest.mark.parametrize("step", [3, 2, 0])
def test_steps_must_rise(step):
    history = _fill([(1.0, 1.0)] * 3)
    with pytest.raises(UsageError, match="came after"):
        history.append(Reading(step, 1.0))


def test_negative_capacity_and_empty_alarm():
    for capacity in (0, -1, True, 2.5):
        with pytest.raises(UsageError):
            History(capacity)
    with pytest.raises(UsageError):
        History().mark_alarm()
    assert History().latest is None
    assert History().last_alarm_step is None


def _spoil(**changes):
    state = _fill([(1.0, 2.0), (None, 3.0)], 2).state_dict()
    state.update(changes)
    return state


_GARBAGE = [
    None,
    [],
    {},
    _spoil(extra=1),
    {k: v for k, v in _spoil().items() if k != "flags"},
    _spoil(losses=[1.0, 2.0]),
    _spoil(losses=np.zeros(2, np.float32)),
    _spoil(losses=np.zeros((2, 1))),
    _spoil(losses=np.zeros(3)),
    _spoil(steps=np.array([2, 2])),
    _spoil(steps=np.array([-5, 2])),
    _spoil(steps=np.array([5, (1 << 62) + 1])),
    _spoil(flags=np.array([0, 32], np.uint8)),
    _spoil(steps=np.array([1.0, 2.0])),
    {"count": 2} | {k: np.zeros(1 << 23, v.dtype) for k, v in _spoil().items() if k != "count"},
    *(_spoil(count=count) for count in (-1, 3, True, 1.0, None)),
]


def test_the_form_of_the_state_does_not_change_with_the_readings():
    few, many = _fill([(1.0, 1.0)]).state_dict(), _fill([(1.0, None)] * 70).state_dict()
    assert {k: v.shape for k, v in few.items() if k != "count"} == {
        k: v.shape for k, v in many.items() if k != "count"
    }


@for_each("state", _GARBAGE)
def test_garbage_is_a_format_error_and_changes_nothing(state):
    history = _fill([(9.0, 9.0)])
    with pytest.raises(FormatError):
        history.load_state_dict(state)
    assert history.latest == Reading(1, 9.0, 9.0)


@pytest.mark.parametrize(
    "bad",
    [
        lambda: Reading(-1),
        lambda: Reading(True),
        lambda: Reading(1.0),
        lambda: Reading(1, "x"),
        lambda: Reading(1, True),
        lambda: Reading(1, 10**400),
        lambda: Reading(1, None, [1.0]),
        lambda: Verdict("spike", "x", 5, 4),
        lambda: Verdict("", "x", 4, 4),
        lambda: Verdict("spike", " \n", 4, 4),
        lambda: Verdict("spike", 7, 4, 4),
    ],
)
def test_bad_values_are_refused(bad):
    with pytest.raises(UsageError):
        bad()


def test_a_reason_is_one_line():
    assert Verdict("mine", "a\n  b", 1, 1).reason == "a b"
