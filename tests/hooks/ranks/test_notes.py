"""What travels with the readings: added up, and heard at the same step by all."""

import pytest

from mvc_hooks.ranks.messages import Note, StepSums, Talk


def _add(*notes):
    """Return what all ranks hear of the notes of each."""
    counts = [note.as_counts() for note in notes]
    return {name: sum(one[name] for one in counts) for name in counts[0]}


def _say(step, *notes):
    return StepSums(step, {}, _add(*(notes or (Note(),))))


@pytest.mark.parametrize("signal", [None, "SIGINT", "SIGTERM"])
@pytest.mark.parametrize("is_behind", [False, True])
@pytest.mark.parametrize("is_due", [False, True])
@pytest.mark.parametrize("has_failed", [False, True])
def test_notes_add_up_over_ranks(signal, is_behind, is_due, has_failed):
    note = Note(signal, is_due, has_failed, is_behind)
    others = [Note(signal, is_behind=is_behind)] * 3
    assert Note.from_counts(_add(*others, note)) == note


def test_of_two_signals_the_more_urgent_one_counts():
    assert Note.from_counts(_add(Note("SIGINT"), Note("SIGTERM"))) == Note("SIGTERM")
    talk = Talk()
    talk.read([_say(1, Note("SIGTERM")), _say(2, Note("SIGINT"))])
    assert talk.heard == Note("SIGTERM")


def test_for_a_commit_is_asked_once_however_long_the_answer_takes():
    talk, due = Talk(), Note(is_due=True)
    first = talk.write(due)
    assert first == due.as_counts()
    assert talk.write(due) == Note().as_counts()
    talk.read([StepSums(1, {}, first), _say(2)])
    assert talk.take_due()
    talk.read([_say(3)])
    assert not talk.take_due()
    assert talk.write(due)["due"]
    talk.forget()
    assert talk.write(due)["due"]


def test_there_is_room_once_all_ranks_said_so_after_the_last_commit():
    talk = Talk()
    assert talk.has_room(None), "nothing was committed, so nothing is on its way"
    assert not talk.has_room(3), "nobody has said anything since"
    talk.read([_say(3)])
    assert not talk.has_room(3)
    talk.read([_say(4, Note(is_behind=True)), _say(5)])
    assert talk.has_room(3)
    talk.read([_say(6, Note(), Note(is_behind=True))])
    assert not talk.has_room(3)
    talk.read([])
    assert not talk.has_room(3), "what was heard last still counts"
    talk.read([_say(7)])
    assert talk.has_room(6)
    talk.forget()
    assert not talk.has_room(6)
