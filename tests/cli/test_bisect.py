"""mvc bisect: the words, the command that tests, exit codes."""

import signal
import sys

import pytest

from mvc import Repo


@pytest.fixture
def line(empty):
    """Ten commits of one file; from the seventh on it says bad."""
    for number in range(1, 11):
        (empty.folder / "a").write_text("bad" if number >= 7 else "fine")
        (empty.folder / "n").write_text(str(number))
        empty.ok("add", ".")
        empty.ok("commit", "-m", f"c{number}", "--step", str(number), "--metric", f"loss={number}")
    empty.ids = [entry["commit"] for entry in empty.json("log", "--reverse")]
    return empty


def test_by_hand(line):
    assert line.ok("bisect", "start").lines == [
        "status: waiting for a bad commit and a good commit"
    ]
    assert line.ok("bisect", "bad").lines == ["status: waiting for a good commit"]
    assert "currently bisecting" in line.ok("status").out
    assert line.ok("bisect", "good", "main@1").lines == [
        "Bisecting: 4 revisions left to test after this (roughly 2 steps)",
        f"[{line.ids[4]}] c5 (step 5)",
    ]
    assert (line.folder / "n").read_text() == "5"
    assert "c5" in line.ok("bisect", "view").out
    assert line.ok("bisect", "terms").lines[0] == "Your current terms are good for the old state"
    for answer in ("good", "bad", "bad"):
        last = line.ok("bisect", answer)
    assert last.lines[0] == f"{line.ids[5]} is the first bad commit"
    assert "git bisect start" in line.ok("bisect", "log").lines
    assert "Switched to branch 'main'" in line.ok("bisect", "reset").lines
    assert line.ok("bisect", "reset").lines == ["No bisection is under way."]
    assert "bisecting" not in line.ok("status").out


_TEST = (
    "import os, sys; n = int(open('n').read());"
    "open(sys.argv[1], 'a').write(os.environ['MVC_REV'] + '\\n');"
    "sys.exit(125 if n == 5 else n >= 7)"
)


def test_by_a_command_with_options_of_its_own(line):
    seen = line.folder.parent / "seen"
    line.ok("bisect", "start", "HEAD", "main@1")
    answer = line.ok("bisect", "run", sys.executable, "-c", _TEST, str(seen), "--all", "-n", "3")
    assert f"{line.ids[6]} is the first bad commit" in answer.lines
    tested = seen.read_text().split()
    assert tested[0] == line.ids[4]
    assert len(tested) <= 5
    assert f"git bisect skip {line.ids[4]}" in line.ok("bisect", "log").lines
    # The parser of unusual lines leaves what follows alone, too.
    line.ok("bisect", "reset")
    line.ok("bisect", "start", "--no-checkout", "--no-progress", "HEAD", "main@1")
    fields = line.ok("bisect", "--json", "run", "true", "--json").json
    assert (fields["status"], fields["commit"]) == ("found", line.ids[-1])
    assert line.json("bisect", "next")["commit"] == line.ids[-1]


def test_a_command_that_fails_ends_the_run_and_it_goes_on(line):
    line.ok("bisect", "start", "--no-checkout", "HEAD", "main@1")
    answer = line("bisect", "run", "sh", "-c", "exit 200")
    assert answer.code == 4
    assert "ended with 200" in answer.error
    killed = line("bisect", "run", "sh", "-c", f"kill -{int(signal.SIGTERM)} $$")
    assert (killed.code, "ended with SIGTERM" in killed.error) == (4, True)
    assert line("bisect", "run", "no-such-command").code == 3
    assert line("bisect", "run").code == 2
    line.ok("bisect", "start", "--no-checkout", "HEAD", "main@8")
    answer = line("bisect", "skip")
    assert answer.code == 2
    assert answer.lines[0] == "There are only 'skip'ped commits left to test."
    assert len(answer.lines) == 4
    line.ok("bisect", "start", "--no-checkout", "HEAD", "main@1")
    answer = line.ok("bisect", "run", "sh", "-c", 'test "$(mvc_step)" = 1 || exit 1')
    assert f"{line.ids[1]} is the first bad commit" in answer.lines


@pytest.mark.parametrize("how", [[], ["--no-checkout"]])
def test_a_command_that_can_be_run_nowhere_is_not_taken_for_a_verdict(line, how):
    line.ok("bisect", "start", *how, "HEAD", "main@1")
    answer = line("bisect", "run", "sh", "-c", "no-such-command --evaluate")
    assert (answer.code, "ends with 127 at the good commit" in answer.error) == (4, True)
    assert line.json("bisect", "next")["commit"] == line.ids[4]  # nothing was said about it
    # A command that only some commits have is one: it is bad where it is missing.
    answer = line.ok("bisect", "run", "sh", "-c", f"[ $MVC_REV = {line.ids[0]} ] || exit 126")
    assert f"{line.ids[1]} is the first bad commit" in answer.lines
    assert line.json("bisect", "next")["commit"] == line.ids[1]


def test_words_that_are_no_subcommands(line):
    assert "'god' is not start, good" in line("bisect", "god").error
    line.ok("bisect", "start", "--term-new", "worse", "HEAD", "main@1")
    assert "'god' is not a term" in line("bisect", "god").error
    line.ok("bisect", "worse")


def test_a_log_from_a_file(line):
    line.ok("bisect", "start", "HEAD", "main@1")
    line.ok("bisect", "good")
    (line.folder.parent / "log").write_text(line.ok("bisect", "log").out)
    commit = line.json("bisect", "next")["commit"]
    line.ok("bisect", "reset")
    assert line.json("bisect", "replay", "../log")["commit"] == commit
    assert line("bisect", "replay", "../none").code == 3
    assert line("bisect", "replay", "n").code == 5


def test_by_a_metric_nothing_is_checked_out(line):
    answer = line.ok("bisect", "--metric", "loss", "--above", "6.5")
    assert line.ok("bisect", "start", "--metric", "loss", "--above", "6.5").out == answer.out
    assert answer.lines[0] == f"{line.ids[6]} is the first bad commit: loss 7"
    assert answer.lines[1].startswith("before it, loss was 6: ")
    fields = line.json("bisect", "--metric", "loss", "--above", "6.5", "main@9", "main@2")
    assert (fields["commit"], fields["before_value"], fields["tested"]) == (line.ids[6], 6, 7)
    assert not list((line.folder / ".mvc").glob("BISECT*"))


def test_mistakes_change_nothing(line):
    for words, code in [
        ((), 2),
        (("good",), 4),
        (("log",), 4),
        (("--metric", "loss"), 2),
        (("--metric", "loss", "--above", "nan"), 2),
        (("--metric", "loss", "--above", "1", "--below", "1"), 2),
        (("--above", "1"), 2),
        (("good", "--no-checkout"), 2),
        (("reset", "a", "b"), 2),
        (("replay",), 2),
        (("start", "nowhere"), 3),
    ]:
        assert line("bisect", *words).code == code
        assert Repo(line.folder).bisect.step() is None
