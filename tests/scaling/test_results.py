import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mvc import UsageError
from mvc.scaling.limits import GATES, GateVerdict, Measured, ScaleLimits, judge_scale
from mvc.scaling.results import ScaleResult, encode_result, parse_results, plan_steps

COMMIT = "9b" * 20
figures = (
    st.none() | st.floats(0, 1e300) | st.floats(1e-4, 1e-3) | st.just(math.nan) | st.just(math.inf)
)


@given(figures, figures, st.integers(1, 10**6), st.sets(st.sampled_from(GATES)))
def test_what_is_written_is_read(first, second, ranks, waived):
    measured = Measured(ranks, 3, 0, first, second, first, second, first)
    verdicts = judge_scale(measured, ScaleLimits(), 2.5, waived)
    result = ScaleResult(COMMIT, ranks, verdicts, 1_795_190_400, 7)
    text = f"by hand\n\n{encode_result(result)}\n\nScale: passed\n"
    (found,) = parse_results(COMMIT, text)
    assert encode_result(found) == encode_result(result)
    assert found.ok == result.ok


@given(st.text())
def test_any_text_is_read(text):
    for found in (*parse_results(COMMIT, text), *parse_results(COMMIT, "Scale:" + text)):
        assert not found.ok


def test_a_note_with_too_few_gates_passes_nothing():
    verdict = GateVerdict("loss", "passed", 1.0, 2.0, "fine")
    text = encode_result(ScaleResult(COMMIT, 2, (verdict,), 1_795_190_400, 1))
    assert text.startswith("Scale: failed\n")
    (found,) = parse_results(COMMIT, text.replace("Scale: failed", "Scale: passed"))
    assert (found.ok, found.missing) == (False, tuple(gate for gate in GATES if gate != "loss"))


@pytest.mark.parametrize(
    ("first", "last", "steps"),
    [
        (256, 10_240, (256, 512, 1024, 2048, 4096, 8192, 10_240)),
        (1, 8, (1, 2, 4, 8)),
        (3, 7, (3, 6, 7)),
        (5, 5, (5,)),
    ],
)
def test_steps_at_most_double(first, last, steps):
    assert plan_steps(first, last) == steps


@pytest.mark.parametrize(
    ("first", "last", "text"),
    [
        (0, 8, "a plan is for 1 to 10,000,000 ranks, not 0"),
        (4, 2, "a plan grows: it cannot go from 4 ranks to 2"),
        (1, 10**9, "a plan is for 1 to 10,000,000 ranks, not 1,000,000,000"),
    ],
)
def test_plans_that_make_no_sense(first, last, text):
    with pytest.raises(UsageError) as caught:
        plan_steps(first, last)
    assert caught.value.message == text
