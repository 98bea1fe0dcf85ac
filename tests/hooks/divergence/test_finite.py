"""NaN and infinity alarm at once."""

import math

import pytest

from mvc_hooks import History, NotFinite
from support.readings import history_of


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
