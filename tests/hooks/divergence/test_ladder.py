"""Which answer comes when."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mvc import FormatError, UsageError
from mvc_hooks.divergence.history import Verdict
from mvc_hooks.divergence.ladder import Ladder, both, lr_scale, rollback, skip_step, stop
from support.cases import for_each


def _alarm(step=1000):
    return Verdict("spike", f"loss 9 at step {step}", step, step)


def _name(action):
    if action.stop:
        return "stop"
    parts = ["skip"] * action.skip + ["back"] * (action.rollback is not None)
    return "+".join([*parts, *([f"x{action.lr_factor:g}"] if action.lr_factor != 1 else [])])


def _climb(ladder, count, step=1000):
    return [_name(ladder.climb(_alarm(step))) for _ in range(count)]


@for_each(
    ("steps", "expected"),
    [
        (None, "back back+x0.5 back+x0.5 stop stop"),
        ([rollback(), stop(after=3)], "back back back stop"),
        ([skip_step(3), rollback(), stop(after=3)], "skip skip skip back back back stop"),
        ([skip_step(1), lr_scale(0.1), stop()], "skip x0.1 stop"),
        ([rollback(), lr_scale(), stop(after=3)], "back x0.5 back back stop"),
        ([rollback(limit=5), stop(after=2)], "back back stop"),
        ([rollback(limit=2)], "back back stop"),
        ([rollback(limit=2), stop(after=0)], "back back stop"),
        ([stop()], "stop stop"),
        ([skip_step(2)], "skip skip stop"),
        (
            [skip_step(3), rollback(), both(rollback(), lr_scale(0.5)), stop(after=3)],
            "skip skip skip back back+x0.5 back+x0.5 stop",
        ),
        ([both(skip_step(), lr_scale(0.5), limit=2)], "skip+x0.5 skip+x0.5 stop"),
        ([both(skip_step(), lr_scale(1.0), rollback()), stop(after=1)], "skip+back stop"),
    ],
)
def test_escalation(steps, expected):
    names = expected.split()
    assert _climb(Ladder(steps), len(names)) == names


def test_skipped_batches_grow():
    ladder = Ladder([rollback(skip_batches=(200, 500)), stop(after=4)])
    assert [ladder.climb(_alarm()).skip_batches for _ in range(4)] == [200, 300, 400, 500]
    ladder = Ladder([rollback(skip_batches=(200, 500)), stop(after=1)])
    assert [ladder.climb(_alarm()).skip_batches for _ in range(2)] == [200, 0]
    ladder = Ladder([rollback(skip_batches=64, limit=4)])
    assert {ladder.climb(_alarm()).skip_batches for _ in range(4)} == {64}
    ladder = Ladder([rollback(limit=5)])
    assert [ladder.climb(_alarm()).skip_batches for _ in range(5)] == [200, 350, 500, 500, 500]


def test_action_says_what_and_why():
    action = Ladder([rollback("v1.0", min_steps_back=7, skip_batches=0), stop()]).climb(_alarm(12))
    assert action.rollback.to == "v1.0"
    assert action.rollback.min_steps_back == 7
    assert (action.skip, action.lr_factor, action.stop) == (False, 1.0, False)
    assert action.reason == "spike: loss 9 at step 12 (ladder step 1 of 2)"


def test_calm_steps_beyond_the_alarm_are_needed_to_forget():
    ladder = Ladder([skip_step(1), rollback()], forget_after_steps=500)
    assert _climb(ladder, 1, 1000) == ["skip"]
    assert _climb(ladder, 1, 1499) == ["back"]
    assert _climb(ladder, 1, 1999) == ["skip"]


def test_a_rollback_far_back_does_not_make_the_same_alarm_new():
    ladder = Ladder(forget_after_steps=500)
    names = [_name(ladder.climb(_alarm(step))) for step in (9000, 9000, 4000, 8999)]
    assert names == ["back", "back+x0.5", "back+x0.5", "stop"]


def test_forgetting_keeps_the_learning_rate():
    ladder = Ladder([lr_scale(0.5, limit=2)], forget_after_steps=10)
    _climb(ladder, 2)
    ladder.forget()
    _climb(ladder, 1)
    assert ladder.lr_factor == 0.125
    assert ladder.state_dict()["rollbacks"] == 0


@given(st.lists(st.integers(0, 5000), max_size=12), st.integers(0, 12))
def test_resumed_ladder_goes_on(steps, cut):
    ladder = [skip_step(2), rollback(), both(rollback(), lr_scale(0.5)), stop(after=4)]
    whole, first, second = (Ladder(ladder, forget_after_steps=1500) for _ in range(3))
    expected = [whole.climb(_alarm(step)) for step in steps]
    before = [first.climb(_alarm(step)) for step in steps[:cut]]
    second.load_state_dict(first.state_dict())
    assert before + [second.climb(_alarm(step)) for step in steps[cut:]] == expected
    assert second.state_dict() == whole.state_dict()


def test_a_ladder_with_fewer_steps_goes_on_with_its_last():
    long, short = Ladder([skip_step(1), skip_step(1), rollback()]), Ladder([rollback()])
    _climb(long, 3)
    short.load_state_dict(long.state_dict())
    assert _climb(short, 1) == ["stop"]


@pytest.mark.parametrize(
    "spoil",
    [
        lambda s: None,
        lambda s: {},
        lambda s: s | {"extra": 1},
        lambda s: s | {"rung": -1},
        lambda s: s | {"uses": 1.0},
        lambda s: s | {"rollbacks": True},
        lambda s: s | {"last_alarm_step": "x"},
        lambda s: s | {"lr_factor": 0.0},
        lambda s: s | {"lr_factor": math.nan},
        lambda s: s | {"lr_factor": math.inf},
    ],
)
def test_garbage_is_a_format_error_and_changes_nothing(spoil):
    ladder = Ladder()
    _climb(ladder, 2)
    before = ladder.state_dict()
    with pytest.raises(FormatError):
        ladder.load_state_dict(spoil(before))
    assert ladder.state_dict() == before


@for_each(
    "bad",
    [
        lambda: Ladder([]),
        lambda: Ladder(["rollback"]),
        lambda: Ladder([rollback]),
        lambda: Ladder([stop(), rollback()]),
        lambda: Ladder(forget_after_steps=0),
        lambda: skip_step(0),
        lambda: skip_step(True),
        lambda: rollback(""),
        lambda: rollback(7),
        lambda: rollback(min_steps_back=-1),
        lambda: rollback(skip_batches=(5, 2)),
        lambda: rollback(skip_batches=(1, 2, 3)),
        lambda: rollback(skip_batches=-1),
        lambda: rollback(skip_batches=True),
        lambda: rollback(skip_batches="200"),
        lambda: lr_scale(0),
        lambda: lr_scale(math.nan),
        lambda: lr_scale("half"),
        lambda: both(rollback()),
        lambda: both(rollback(), rollback()),
        lambda: both(rollback(), stop()),
        lambda: both(rollback(), both(skip_step(), lr_scale())),
        lambda: both(rollback(), "skip"),
        lambda: stop(-1),
    ],
)
def test_bad_steps_are_refused(bad):
    with pytest.raises(UsageError):
        bad()
