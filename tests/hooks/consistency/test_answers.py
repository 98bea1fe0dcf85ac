"""Which answer is given, and what is refused."""

from __future__ import annotations

import re

import pytest
import torch

from mvc import UsageError
from mvc_hooks import Checkpointer
from mvc_lab import Consistency
from mvc_lab.consistency.inquiry import Learned
from mvc_lab.consistency.reports import Answers

pytestmark = pytest.mark.torch

ALL = ("report", "resync", "rollback", "stop")


def test_the_first_possible_answer_is_given_and_stop_if_there_is_none():
    answers = Answers(("resync", "rollback"), None)
    assert answers.choose(1, ALL) == "resync"
    assert answers.choose(2, ("report", "rollback")) == "rollback"
    assert answers.choose(3, ("report",)) == "stop"


def test_after_so_many_answers_the_run_is_stopped_and_old_ones_are_forgotten():
    answers = Answers(("resync",), 2)
    assert [answers.choose(step, ALL) for step in (1, 2, 3)] == ["resync", "resync", "stop"]
    assert answers.choose(5000, ALL) == "resync"


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"every": 0}, "every of Consistency is 0, not a whole number from 1 on"),
        ({"every": "100"}, "every of Consistency is '100', not a whole number from 1 on"),
        ({"every": True}, "every of Consistency is True, not a whole number from 1 on"),
        ({"answers": "resync"}, "answers is 'resync', not a list of answers"),
        ({"answers": ()}, "answers is (), not a list of answers"),
        ({"answers": ["repair"]}, "'repair' is not an answer"),
        ({"stop_after": -1}, "stop_after is -1, not a whole number from 0 on"),
        ({"tolerance": "small"}, "tolerance of Consistency is 'small', not a number from 0"),
        ({"tolerance": float("nan")}, "tolerance of Consistency is nan, not a number from 0"),
        ({"ignore": "model.*"}, "ignore is 'model.*', not a list of patterns"),
        ({"share_bytes": 0}, "share_bytes of Consistency is 0, not a whole number from 1 on"),
    ],
)
def test_settings_that_make_no_sense(options, text):
    with pytest.raises(UsageError, match=f"^{re.escape(text)}"):
        Consistency(**options)


@pytest.mark.parametrize("value", [Consistency, 100, "yes"])
def test_a_checkpointer_takes_an_instance(tmp_path, value):
    with pytest.raises(UsageError, match=r"^consistency is .*, not a Consistency\n") as caught:
        Checkpointer(tmp_path, model=torch.nn.Linear(2, 2), consistency=value)
    assert caught.value.hint == "consistency=Consistency(every=100)"


def test_one_process_has_nothing_to_be_compared_with(caplog):
    model = torch.nn.Linear(2, 2)
    check = Consistency().watch(model=model)
    assert [one.getMessage() for one in caplog.records] == [
        "consistency: one process has nothing to be compared with"
    ]
    assert [check.step() for _ in range(3)] == [None, None, None]
    with pytest.raises(UsageError, match="already watches a run"):
        check.watch(model=model)
    check.remove()
    with pytest.raises(UsageError, match="nothing is watched"):
        check.step()
    with pytest.raises(UsageError, match="no model and no optimizer to compare"):
        check.watch(answer=3)


# What is a rank's own, and what must be the same.


def test_what_was_the_same_and_changed_is_shared():
    learned = Learned()
    learned.note_same("moment", b"a")
    assert learned.shared == set()
    learned.note_same("moment", b"b")
    assert learned.shared == {"moment"}


def test_a_frozen_buffer_is_a_ranks_own_once_all_ranks_change_it():
    learned = Learned()
    for _ in range(3):
        learned.note_same("mean", b"a")
    assert learned.has_changed("mean", b"b")
    assert not learned.is_own("mean", [True, False])
    assert not learned.own
    assert learned.is_own("mean", [True, True])
    assert learned.own == {"mean"}


def test_after_a_restore_nothing_has_changed():
    learned = Learned()
    learned.note_same("mean", b"a")
    learned.forget()
    assert not learned.has_changed("mean", b"b")
