"""What is a rank's own, and what must be the same."""

from __future__ import annotations

from mvc_hooks.consistency.learning import Learned


def look(learned, name, digests):
    learned.note_first(name, dict(enumerate(digests)), digests[0])


def test_what_differs_while_learning_is_a_ranks_own():
    learned = Learned()
    look(learned, "mean", [b"a", b"b"])
    assert learned.own == {"mean"}


def test_what_was_the_same_and_changed_is_shared():
    learned = Learned()
    look(learned, "moment", [b"a", b"a"])
    assert learned.shared == set()
    look(learned, "moment", [b"b", b"b"])
    assert learned.shared == {"moment"}


def test_a_frozen_buffer_is_a_ranks_own_once_all_ranks_change_it():
    learned = Learned()
    for _ in range(3):
        look(learned, "mean", [b"a", b"a"])
    assert learned.has_changed("mean", b"b")
    assert not learned.is_own("mean", [True, False])
    assert not learned.own
    assert learned.is_own("mean", [True, True])
    assert learned.own == {"mean"}


def test_after_a_restore_nothing_has_changed():
    learned = Learned()
    look(learned, "mean", [b"a", b"a"])
    learned.forget()
    assert not learned.has_changed("mean", b"b")
