from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mvc.history.notes import write_notes
from mvc.history.values import Stamp
from mvc.ids import GitId
from mvc.workspace.notebook import MAX_LINE_CHARS, one_line
from mvc.workspace.verdicts import (
    DIVERGED_REF,
    DIVERGENCES,
    Divergence,
    add_divergence,
    encode_divergence,
    parse_divergences,
)

EXAMPLE = Divergence("loss is NaN", "main", GitId("9b" * 20), 12000, 12345, 1_795_190_400)


def test_the_text_is_for_people():
    assert encode_divergence(EXAMPLE) == (
        "Diverged: loss is NaN\n"
        "Branch: main\n"
        "At-step: 12345\n"
        f"Rolled-back-to: {'9b' * 20} (step 12000)\n"
        "Time: 2026-11-20T16:00:00Z"
    )
    assert encode_divergence(Divergence("")) == "Diverged:"


steps = st.none() | st.integers(0, 10**18 - 1)


@given(
    st.builds(
        Divergence,
        st.text(max_size=600),
        st.text("abc/-.", max_size=9),
        st.none() | st.just(GitId("a0" * 20)),
        st.none(),
        steps,
        st.none() | st.integers(0, 253_402_300_799),
    ),
    steps,
)
def test_what_is_written_is_read(divergence, target_step):
    if divergence.target is not None:
        divergence = dataclasses.replace(divergence, target_step=target_step)
    expected = dataclasses.replace(divergence, reason=one_line(divergence.reason))
    text = encode_divergence(divergence)
    assert parse_divergences(None, text + "\n") == (expected,)
    assert parse_divergences(None, f"by hand\n\n{text}\n\n{encode_divergence(EXAMPLE)}\n") == (
        expected,
        EXAMPLE,
    )


@given(st.text())
def test_any_text_is_read_and_bounded(text):
    for found in (*parse_divergences(None, text), *parse_divergences(None, "Diverged:" + text)):
        assert len(found.reason) <= MAX_LINE_CHARS
        assert "\n" not in found.reason
        encode_divergence(found)


@pytest.mark.parametrize(
    "line",
    [
        "Rolled-back-to: 12", f"Rolled-back-to: {'9b' * 20} (step -3)", "At-step: 1e9",
        f"At-step: {'9' * 5000}", "Time: yesterday", "Time: 2026-13-40T99:00:00Z", "Branch:", ":",
    ],
)  # fmt: skip
def test_lines_without_sense_are_left_out(line):
    assert parse_divergences(None, f"Diverged: x\n{line}") == (Divergence("x"),)


def test_notes_add_up_and_keep_what_others_wrote(repo):
    context, who = repo._context, repo.identity
    commit = repo.commit("one", allow_empty=True).commit
    write_notes(
        context.history,
        DIVERGED_REF,
        {commit: b"by \xff hand\n"},
        message="x",
        stamp=Stamp.now(who),
    )
    for reason in ("first", "second"):
        add_divergence(context, commit, Divergence(reason), stamp=Stamp.now(who))
    notebook = context.notebook(DIVERGENCES)
    note = notebook.find_note(commit)
    text = b"by \xff hand\n\nDiverged: first\n\nDiverged: second\n"
    assert context.history.read_blob(note) == text
    assert notebook.find(commit)[-1].reason == "second"


def test_a_note_that_nobody_can_read_keeps_nobody_from_going_back(repo):
    context, who = repo._context, repo.identity
    commit = repo.commit("one", allow_empty=True).commit
    huge = b"Diverged: x\n" * (DIVERGENCES.max_bytes // 12 + 1)
    write_notes(context.history, DIVERGED_REF, {commit: huge}, message="x", stamp=Stamp.now(who))
    assert repo.show().diverged is None
    add_divergence(context, commit, Divergence("new"), stamp=Stamp.now(who))
    assert repo.show().diverged.reason == "new"
