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


def test_by_steps():
    assert _due(Schedule(3, None), range(1, 10)) == [3, 6, 9]
    assert _due(Schedule(1, None), range(1, 4)) == [1, 2, 3]


def test_a_resumed_run_keeps_the_same_steps():
    assert _due(Schedule(5, None), range(8, 21)) == [10, 15, 20]


def test_by_call_only():
    assert _due(Schedule(None, None), range(1, 100)) == []


def test_by_seconds():
    schedule = Schedule(None, 10.0)
    schedule.note(0.0)
    assert _due(schedule, range(1, 31)) == [10, 20, 30]


def test_seconds_count_from_the_last_commit_whyever_it_was_made():
    schedule = Schedule(None, 10.0)
    schedule.note(0.0)
    assert not schedule.is_due(1, 9.0)
    schedule.note(9.0)  # by call
    assert not schedule.is_due(2, 18.9)
    assert schedule.is_due(3, 19.0)


def test_seconds_count_from_the_first_look_where_nobody_said_so():
    schedule = Schedule(None, 10.0)
    assert not schedule.is_due(1, 1000.0)
    assert not schedule.is_due(2, 1009.0)
    assert schedule.is_due(3, 1010.0)


def test_a_commit_that_was_left_out_is_due_at_the_next_step():
    schedule = Schedule(None, 10.0)
    schedule.note(0.0)
    assert schedule.is_due(1, 10.0)
    assert schedule.is_due(2, 11.0)


@pytest.mark.parametrize(("seconds_per_step", "due"), [(1.0, [8, 10, 18, 20]), (0.1, [10, 20])])
def test_by_both_whichever_comes_first(seconds_per_step, due):
    schedule = Schedule(10, 8.0)
    schedule.note(0.0)
    assert _due(schedule, range(1, 21), seconds_per_step=seconds_per_step) == due


def test_after_a_rollback_the_steps_come_again():
    schedule = Schedule(5, 100.0)
    schedule.note(0.0)
    assert _due(schedule, range(1, 13)) == [5, 10]
    assert _due(schedule, range(6, 13), start_s=12.0) == [10]
