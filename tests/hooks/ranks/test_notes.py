"""What travels with the readings: added up, and heard at the same step by all."""

import pytest

from mvc_hooks.ranks.notes import Note, Talk, decode_notes


@pytest.mark.parametrize("signal", [None, "SIGINT", "SIGTERM"])
@pytest.mark.parametrize("is_behind", [False, True])
@pytest.mark.parametrize("is_due", [False, True])
@pytest.mark.parametrize("has_failed", [False, True])
def test_notes_add_up_over_many_ranks(signal, is_behind, is_due, has_failed):
    others = 60_000 * Note(signal, is_behind=is_behind).encode()
    note = Note(signal, is_due, has_failed, is_behind)
    assert decode_notes(others + note.encode()) == note


def test_of_two_signals_the_more_urgent_one_counts():
    assert decode_notes(Note("SIGINT").encode() + Note("SIGTERM").encode()) == Note("SIGTERM")
    talk = Talk()
    talk.read([(1, Note("SIGTERM").encode()), (2, Note("SIGINT").encode())])
    assert talk.heard == Note("SIGTERM")


def test_for_a_commit_is_asked_once_however_long_the_answer_takes():
    talk, due = Talk(), Note(is_due=True)
    first = talk.write(due)
    assert decode_notes(first).is_due
    assert talk.write(due) == 0
    talk.read([(1, first), (2, 0.0)])
    assert talk.take_due()
    talk.read([(3, 0.0)])
    assert not talk.take_due()
    assert decode_notes(talk.write(due)).is_due
    talk.forget()
    assert decode_notes(talk.write(due)).is_due


def test_there_is_room_once_all_ranks_said_so_after_the_last_commit():
    talk = Talk()
    assert talk.has_room(None), "nothing was committed, so nothing is on its way"
    assert not talk.has_room(3), "nobody has said anything since"
    talk.read([(3, 0.0)])
    assert not talk.has_room(3)
    talk.read([(4, Note(is_behind=True).encode()), (5, 0.0)])
    assert talk.has_room(3)
    talk.read([(6, 0.0 + Note(is_behind=True).encode())])
    assert not talk.has_room(3)
    talk.read([])
    assert not talk.has_room(3), "what was heard last still counts"
    talk.read([(7, 0.0)])
    assert talk.has_room(6)
    talk.forget()
    assert not talk.has_room(6)
