import contextlib
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mvc.errors import FormatError
from mvc.history.check import check
from mvc.history.git import GitHistory
from mvc.history.reflogs import Reason, parse_line
from mvc.history.values import Identity, Stamp
from support.stockgit import START_S, at, build_tangle, commit_on_head, git

MAIN = "refs/heads/main"


def as_git_shows(entries):
    return [
        f"{entry.new} {entry.who.name} <{entry.who.email}> {entry.message}" for entry in entries
    ]


@pytest.mark.parametrize("seed", range(3))
def test_logs_are_those_git_reads(history, seed):
    build_tangle(history, seed)
    for ref in ("HEAD", *history.list_refs("refs/heads/")):
        shown = git(history.git_dir, "log", "-g", "--format=%H %gn <%ge> %gs", ref, "--")
        assert as_git_shows(history.read_reflog(ref)) == shown.split("\n")


def test_an_entry_says_who_when_and_why(history):
    who = Identity("Änne", "a@b")
    head = commit_on_head(history, "one")
    history.update_head(
        head,
        expected=head,
        message="two\nlines\tand tab",
        stamp=Stamp(who, START_S, -5400),
    )
    entry = history.read_reflog("HEAD")[0]
    assert (entry.old, entry.new, entry.who) == (head, head, who)
    assert (entry.time_s, entry.timezone_s) == (START_S, -5400)
    assert entry.message == "two lines and tab"
    first = history.read_reflog("HEAD")[-1]
    assert first.old is None
    history.update_head(head, expected=head, message="now", stamp=at())
    assert history.read_reflog("HEAD")[0].time_s == pytest.approx(time.time(), abs=60)


@pytest.mark.parametrize(
    "torn", ["0", "{head} {head} A <a@b> 17000", "{head} {head} A <a@b> 1 +0000\tm"]
)
def test_a_torn_last_line_is_passed_over_and_never_glued_to(history, torn):
    head = commit_on_head(history, "one")
    log = history.git_dir / "logs" / MAIN
    with log.open("a") as file:
        file.write(torn.format(head=head))
    assert [entry.message for entry in history.read_reflog(MAIN)] == ["commit: one"]
    two = commit_on_head(history, "two")
    assert [entry.message for entry in history.read_reflog(MAIN)] == ["commit: two", "commit: one"]
    assert history.resolve("main@{1}") == head
    assert git(history.git_dir, "rev-parse", "main@{0}", "main@{1}").split() == [two, head]
    assert list(check(history)) == []


def test_a_damaged_line_in_the_middle_is_reported_but_stops_nobody(history):
    one = commit_on_head(history, "one")
    commit_on_head(history, "two")
    log = history.git_dir / "logs" / MAIN
    first, second = log.read_bytes().splitlines(keepends=True)
    log.write_bytes(first + b"not a line of git\n" + second)
    assert [entry.message for entry in history.read_reflog(MAIN)] == ["commit: two", "commit: one"]
    assert history.resolve("main@{1}") == one
    assert [problem.kind for problem in check(history)] == ["reflog-broken"]


def test_a_log_line_of_a_move_that_failed_is_taken_back(history, monkeypatch):
    from mvc import fs

    head = commit_on_head(history, "one")
    before = [(history.git_dir / "logs" / name).read_bytes() for name in ("HEAD", MAIN)]

    def fail(self, target, **options):
        raise OSError(28, "no space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(fs.DurableFile, "publish", fail)
        with pytest.raises(OSError, match="space"):
            history.refs.set(MAIN, head, head, Reason("never", at()))
    assert [(history.git_dir / "logs" / name).read_bytes() for name in ("HEAD", MAIN)] == before
    assert not list(history.git_dir.rglob("*.lock"))[1:]
    commit_on_head(history, "two")


def test_refs_without_a_log_have_an_empty_one(history):
    assert history.read_reflog("refs/heads/none") == []
    assert history.read_reflog("HEAD") == []


@given(st.binary(max_size=150))
def test_garbage_in_a_log_is_a_format_error_and_nothing_else(line):
    with contextlib.suppress(FormatError):
        parse_line(line.replace(b"\n", b""), "HEAD")


@given(st.binary(max_size=300))
def test_a_log_of_garbage_reads_as_what_is_sound_in_it(tmp_path_factory, junk):
    history = GitHistory.init(tmp_path_factory.mktemp("log") / ".mvc")
    (history.git_dir / "logs").mkdir(exist_ok=True)
    (history.git_dir / "logs" / "HEAD").write_bytes(junk)
    assert isinstance(history.read_reflog("HEAD"), list)
    commit_on_head(history, "one")
    assert history.read_reflog("HEAD")[0].message == "commit: one"
