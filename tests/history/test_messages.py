import pytest
from hypothesis import given
from hypothesis import strategies as st

from mvc.errors import UsageError
from mvc.history.messages import (
    drop_trailers,
    format_message,
    message_body,
    message_subject,
    parse_trailers,
)
from support.cases import for_each
from support.stockgit import git, write_commit

MESSAGES = [
    "subject",
    "subject\n\nbody",
    "subject\nsecond line of it\n\nbody",
    "\n\n  indented subject  \n\nbody\n\n",
    "subject\n\nKey: value",
    "subject\n\nbody\n\nKey: value\nOther-Key : value two\n",
    "subject\n\nbody\n\nKey: value\n  continued\n\tand on\nLast: x",
    "subject\n\nbody\n\nKey: value\nnot a trailer",
    "subject\n\nbody\n\nSigned-off-by: A <a@b>\nnot a trailer\nnor this",
    "subject\n\nbody\n\nSigned-off-by: A <a@b>\none\ntwo\nthree\nfour",
    "subject\n\nbody\n\n(cherry picked from commit 0123456789)\nStep: 4",
    "subject\n\nbody\n\n(cherry picked from commit 0123456789)",
    "subject\n\nStep: 1\n# a comment line\nLoss: 0.5",
    "subject\n\n  Step: 1\nLoss: 0.5",
    "subject\n\nurl: http://x.org/a:b",
    "Key: value of a subject",
    "Key: value\nOther: value",
    "subject\n\nSpace Key: no\nStep: 1",
    "subject\n\nStep:1\nEmpty:\n",
    "subject\n\nStep: 1\n\n\n",
    "subject\n\nStep: 1\n\nthe body comes after",
    "subject\n \t\nStep: 1",
    "",
    "\n",
    "subject\n\n: no key\nStep: 1",
    "subject\n\nStep: a: b\nÜmlaut: no\n",
    "subject\n\n-: dash\n",
]


@pytest.mark.parametrize("message", MESSAGES)
def test_subjects_and_trailers_are_those_git_sees(history, message):
    commit = write_commit(history, [], "x", time_s=1, message=message or "\n")
    info = history.read_commit(commit)
    shown = git(history.git_dir, "log", "-1", "--format=%s%x00%(trailers:only,unfold)", commit)
    subject, _, trailers = shown.partition("\0")
    assert info.subject.strip() == subject.strip()
    expected = [line.partition(":") for line in trailers.split("\n") if line]
    assert info.trailers == tuple((key.strip(), value.strip()) for key, _, value in expected)


@pytest.mark.parametrize("message", [message for message in MESSAGES if message.strip()])
def test_added_trailers_are_read_back_by_us_and_by_git(history, message):
    trailers = [("Step", "1200"), ("Metric", "loss=0.25"), ("Meta", "note=a: b  c")]
    text = format_message(message, trailers)
    assert parse_trailers(text)[-3:] == tuple(trailers)
    assert text.startswith(message.rstrip(" \t\r\n"))
    commit = write_commit(history, [], "x", time_s=1, message=text)
    shown = git(history.git_dir, "log", "-1", "--format=%(trailers:key=Step,valueonly)", commit)
    assert shown.split("\n")[-2:-1] == ["1200"] or shown == "1200"


def test_trailers_join_a_block_that_is_there(history):
    assert format_message("s\n\nb\n\nA: 1\n\n", [("B", "2")]) == "s\n\nb\n\nA: 1\nB: 2\n"
    assert format_message("A: subject", [("B", "2")]) == "A: subject\n\nB: 2\n"
    assert format_message("s", []) == "s\n"
    assert format_message("", []) == ""


def test_line_breaks_in_values_are_folded():
    text = format_message("s", [("A", "one\n two\r\n\r\nthree\u2028four"), ("B", "")])
    assert text == "s\n\nA: one two three four\nB:\n"
    assert parse_trailers(text) == (("A", "one two three four"), ("B", ""))


@pytest.mark.parametrize("key", ["", "a b", "a:b", "ä", "a\n", "a_b"])
def test_keys_that_git_cannot_read_are_refused(key):
    with pytest.raises(UsageError):
        format_message("s", [(key, "v")])


_TEXT = st.text(alphabet="ab:# \n\tK-é", max_size=60)
_KEYS = st.text(alphabet="ABab12-", min_size=1, max_size=6)
_VALUES = st.text(alphabet=st.characters(exclude_categories=["Cs", "Cc", "Zl", "Zp"]), max_size=20)


@given(text=_TEXT, trailers=st.lists(st.tuples(_KEYS, _VALUES), min_size=1, max_size=4))
def test_the_users_text_is_never_changed_and_trailers_always_come_back(text, trailers):
    message = format_message(text, trailers)
    assert message.startswith(text.rstrip(" \t\r\n"))
    wanted = tuple((key, value.strip()) for key, value in trailers)
    assert parse_trailers(message)[-len(trailers) :] == wanted


@given(_TEXT)
def test_a_message_is_subject_body_and_trailers_and_nothing_else(text):
    message = format_message(text, [("Step", "1")])
    joined = message_subject(message) + message_body(message)
    for word in text.split():
        found = any(word.strip(":") in key + " " + value for key, value in parse_trailers(message))
        assert word in joined or found or word.startswith("#") or ":" in word


@for_each("message", [text for text in MESSAGES if text.strip()])
def test_dropped_trailers_are_gone_and_all_else_stays(message):
    text = format_message(message, [("Health", "a b\n c"), ("Step", "1"), ("Gate", "no")])
    left = drop_trailers(text, frozenset({"Health", "Gate"}))
    kept = [pair for pair in parse_trailers(text) if pair[0] not in ("Health", "Gate")]
    assert list(parse_trailers(left)) == kept
    assert (message_subject(left), message_body(left)) == (
        message_subject(text),
        message_body(text),
    )
    assert drop_trailers(left, frozenset({"Health"})) == left
