"""When a commit is due, by a clock that the test holds."""

import pytest

from mvc_hooks.commits.coordinator import Schedule


def _due(schedule, steps, *, seconds_per_step=1.0, start_s=0.0):
    found = []
    for index, step in enumerate(steps, 1):
        now_s = start_s + index * seconds_per_step
        if schedule.is_due(step, now_s):
            schedule.note(now_s)
            found.append(step)
    return found


@pytest.mark.parametrize(
    ("every", "every_s", "steps", "step_s", "due"),
    [
        (3, None, range(1, 10), 1.0, [3, 6, 9]),
        (1, None, range(1, 4), 1.0, [1, 2, 3]),
        (5, None, range(8, 21), 1.0, [10, 15, 20]),  # as a run that was resumed
        (None, None, range(1, 100), 1.0, []),
        (None, 10.0, range(1, 31), 1.0, [10, 20, 30]),
        (10, 8.0, range(1, 21), 1.0, [8, 10, 18, 20]),
        (10, 8.0, range(1, 21), 0.1, [10, 20]),
    ],
)
def test_by_steps_and_by_seconds_whichever_comes_first(every, every_s, steps, step_s, due):
    schedule = Schedule(every, every_s)
    schedule.note(0.0)
    assert _due(schedule, steps, seconds_per_step=step_s) == due


def test_seconds_count_from_the_first_look_or_the_last_commit_whyever_it_was_made():
    schedule = Schedule(None, 10.0)
    for step, now_s, is_due in (
        (1, 1000.0, False),
        (2, 1009.0, False),
        (3, 1010.0, True),
        (4, 1011.0, True),  # one that was left out is due at the next step
    ):
        assert schedule.is_due(step, now_s) == is_due
    schedule.note(1011.0)  # by call
    assert not schedule.is_due(5, 1020.9)
    assert schedule.is_due(6, 1021.0)


def test_after_a_rollback_the_steps_come_again():
    schedule = Schedule(5, 100.0)
    schedule.note(0.0)
    assert _due(schedule, range(1, 13)) == [5, 10]
    assert _due(schedule, range(6, 13), start_s=12.0) == [10]
