"""What notes say of commits: verdicts of training, as text for people that is read back."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mvc import FormatError, NotFoundError, Repo
from mvc.history.notes import write_notes
from mvc.history.values import Stamp
from mvc.ids import GitId
from mvc.workspace.notebook import (
    MAX_LINE_CHARS,
    NoteKind,
    find_time,
    one_line,
    split_paragraphs,
    time_text,
)
from mvc.workspace.verdicts import (
    DIVERGED_REF,
    DIVERGENCES,
    HEALTHY_REF,
    Divergence,
    add_divergence,
    encode_divergence,
    parse_divergences,
)
from support.stockgit import git, run_git

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


def test_lines_without_sense_are_left_out():
    for line in [
        "Rolled-back-to: 12", f"Rolled-back-to: {'9b' * 20} (step -3)", "At-step: 1e9",
        f"At-step: {'9' * 5000}", "Time: yesterday", "Time: 2026-13-40T99:00:00Z", "Branch:", ":",
    ]:  # fmt: skip
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


@pytest.fixture
def line(repo):
    """main: steps 1 to 4, without files."""
    return [
        repo.commit(f"step {step}", step=step, allow_empty=True, time_s=1_700_000_000 + step).commit
        for step in range(1, 5)
    ]


def test_marks_come_back_newest_first(repo, line):
    assert repo.runs.healthy() == ()
    before = git(repo.git_dir, "for-each-ref", "refs/heads"), repo.head, repo.reflog()
    repo.runs.mark_healthy("main@3")
    repo.runs.mark_healthy(line[0])
    assert (git(repo.git_dir, "for-each-ref", "refs/heads"), repo.head, repo.reflog()) == before
    assert repo.runs.healthy() == (line[2], line[0])
    assert Repo.open(repo.worktree).runs.healthy("main") == (line[2], line[0])
    assert [entry.is_healthy for entry in repo.log()] == [False, True, False, True]
    assert (repo.show(line[0]).is_healthy, repo.show(line[0]).refs) == (True, ())


def test_marking_again_changes_nothing(repo, line):
    repo.runs.mark_healthy("HEAD", note="200 steps without alarm")
    tip = repo._context.history.find_ref(HEALTHY_REF)
    repo.runs.mark_healthy("main", note="something else")
    Repo.open(repo.worktree).runs.mark_healthy(line[-1])
    assert repo._context.history.find_ref(HEALTHY_REF) == tip
    shown = git(repo.git_dir, "notes", "--ref=healthy", "show", line[-1]).splitlines()
    assert shown[0].startswith("Healthy: 20")
    assert shown[1:] == ["Note: 200 steps without alarm"]


def test_a_remark_stays_on_one_line(repo, line):
    repo.runs.mark_healthy("HEAD", note="one\n\nDiverged: \x1b[31m two\udcff " + "x" * 2000)
    lines = git(repo.git_dir, "notes", "--ref=healthy", "show", line[-1]).splitlines()
    assert len(lines) == 2
    assert lines[1].startswith("Note: one Diverged: [31m two xxx")
    assert lines[1].endswith("x…")
    assert len(lines[1]) < 600


def test_a_mark_that_a_stock_git_made(repo, line):
    git(repo.git_dir, "notes", "--ref=healthy", "add", "-m", "looks good", line[1])
    assert repo.runs.healthy() == (line[1],)
    repo.runs.mark_healthy(line[1])
    assert git(repo.git_dir, "notes", "--ref=healthy", "show", line[1]) == "looks good"


def test_only_the_first_parents_of_one_branch_count(repo, line):
    history, who = repo._context.history, repo.identity
    tree = repo.show().info.tree
    side, merge = (
        history.write_commit(
            tree=tree, parents=parents, message=text, author=Stamp(who, 1_700_000_100, 0)
        )
        for text, parents in (("side", [line[1]]), ("merge", [line[3]]))
    )  # fmt: skip
    merge = history.write_commit(
        tree=tree, parents=[line[3], side], message="merge", author=Stamp(who, 1_700_000_200, 0)
    )  # fmt: skip
    history.update_ref("refs/heads/side", side, expected=None, message="x", stamp=Stamp.now(who))
    history.update_head(merge, expected=line[3], message="merge", stamp=Stamp.now(who))
    for commit in (line[1], line[3], side, merge):
        repo.runs.mark_healthy(commit)
    assert repo.runs.healthy() == (merge, line[3], line[1])
    assert repo.runs.healthy("side") == (side, line[1])
    repo.checkout(line[2])
    assert repo.runs.healthy() == (line[1],)


def test_what_does_not_exist(repo):
    with pytest.raises(NotFoundError):
        repo.runs.mark_healthy("HEAD")
    assert repo.runs.healthy() == ()
    with pytest.raises(NotFoundError, match="no branch 'nope'"):
        repo.runs.healthy("nope")


def test_many_marks_are_read_like_few(repo):
    """Stock Git cuts the names of many notes into folders; so does mvc."""
    commits = [
        repo.commit(f"{number}", allow_empty=True, time_s=1_700_000_000 + number).commit
        for number in range(3)
    ]
    history, who = repo._context.history, repo.identity
    others = {f"{number:040x}": b"x" for number in range(300)}
    write_notes(history, HEALTHY_REF, others, message="many", stamp=Stamp.now(who))
    repo.runs.mark_healthy(commits[1])
    assert repo.runs.healthy() == (commits[1],)
    assert [entry.is_healthy for entry in repo.log()] == [False, True, False]


def test_damaged_marks_are_told_but_not_by_the_log(repo, line):
    repo.runs.mark_healthy(line[1])
    tree = repo._context.history.read_commit(repo.resolve("refs/notes/healthy")).tree
    (repo.git_dir / "objects" / tree[:2] / tree[2:]).unlink()
    reopened = Repo.open(repo.worktree)
    assert [entry.is_healthy for entry in reopened.log()] == [False] * 4
    with pytest.raises(FormatError):
        reopened.runs.healthy()


def test_marks_survive_what_clears_up(repo, root):
    for step in (1, 2, 3):
        (root / "a.npy").write_bytes(b"\x93NUMPY" + bytes([step]) * 5000)
        repo.commit(f"step {step}", paths=".", step=step)
        repo.runs.mark_healthy("HEAD")
    repo.upkeep.prune(repo.upkeep.plan_prune(keep_last=1))
    repo.upkeep.gc(grace_s=0)
    assert len(repo.runs.healthy()) == 3
    assert run_git(repo.git_dir, "fsck", "--strict").returncode == 0
    assert repo.upkeep.fsck(data=True).ok


KIND = NoteKind("refs/notes/remarks", "remark", lambda _commit, text: tuple(text.split()))


def test_times():
    assert find_time(time_text(0)) == 0
    assert find_time("٢٠٢٦-01-01T00:00:00Z") is None
    assert find_time("0000-01-01T00:00:00Z") is None


def test_lines_and_paragraphs():
    assert one_line(" a\x1b\n b ") == "a b"
    assert len(one_line("x" * 2 * MAX_LINE_CHARS)) == MAX_LINE_CHARS
    assert split_paragraphs("a\nb\n \n\n\nc\n") == ["a\nb", "c"]


def test_a_note_is_written_read_and_taken_away(repo):
    context = repo._context
    commit = repo.commit("one", allow_empty=True).commit
    notes = context.notebook(KIND)
    assert context.notebook(KIND) is notes
    assert (notes.open(), notes.find(commit), dict(notes.read())) == (None, (), {})
    notes.write({commit: ["a", "b c"]}, message="x", stamp=context.stamp())
    assert notes.find_paragraphs(commit) == ["a", "b c"]
    assert notes.find(commit) == ("a", "b", "c")
    first = notes.read()
    assert dict(first) == {commit: ("a", "b", "c")}
    assert notes.read() is first, "it is kept until the ref moves"
    notes.write({commit: []}, message="x", stamp=context.stamp())
    assert (notes.find_note(commit), notes.find_paragraphs(commit), dict(notes.read())) == (
        None,
        [],
        {},
    )
