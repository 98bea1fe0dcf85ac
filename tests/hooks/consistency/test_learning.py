"""What is a rank's own, and what must be the same."""

from __future__ import annotations

from mvc_lab.consistency.inquiry import Learned


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
