from __future__ import annotations

import pytest

from mvc import FormatError, NotFoundError, Repo
from mvc.history.notes import write_notes
from mvc.history.values import Stamp
from mvc.workspace.verdicts import HEALTHY_REF
from support.stockgit import git, run_git


@pytest.fixture
def line(repo):
    """main: steps 1 to 4, without files."""
    return [
        repo.commit(f"step {step}", step=step, allow_empty=True, time_s=1_700_000_000 + step).commit
        for step in range(1, 5)
    ]


def test_marks_come_back_newest_first(repo, line):
    assert repo.healthy() == ()
    for place in (2, 0):
        repo.mark_healthy(line[place])
    assert repo.healthy() == (line[2], line[0])
    assert Repo.open(repo.worktree).healthy("main") == (line[2], line[0])


def test_a_mark_changes_no_commit_and_no_ref(repo, line):
    before = git(repo.git_dir, "for-each-ref", "refs/heads"), repo.head, repo.reflog()
    repo.mark_healthy("main@2")
    assert (git(repo.git_dir, "for-each-ref", "refs/heads"), repo.head, repo.reflog()) == before
    assert repo.resolve("main@2") == line[1]


def test_marking_again_changes_nothing(repo, line):
    repo.mark_healthy("HEAD", note="200 steps without alarm")
    tip = repo._context.history.find_ref(HEALTHY_REF)
    repo.mark_healthy("main", note="something else")
    Repo.open(repo.worktree).mark_healthy(line[-1])
    assert repo._context.history.find_ref(HEALTHY_REF) == tip
    shown = git(repo.git_dir, "notes", "--ref=healthy", "show", line[-1]).splitlines()
    assert shown[0].startswith("Healthy: 20")
    assert shown[1:] == ["Note: 200 steps without alarm"]


def test_a_remark_stays_on_one_line(repo, line):
    repo.mark_healthy("HEAD", note="one\n\nDiverged: \x1b[31m two\udcff " + "x" * 2000)
    lines = git(repo.git_dir, "notes", "--ref=healthy", "show", line[-1]).splitlines()
    assert len(lines) == 2
    assert lines[1].startswith("Note: one Diverged: [31m two xxx")
    assert lines[1].endswith("x…")
    assert len(lines[1]) < 600


def test_a_mark_that_a_stock_git_made(repo, line):
    git(repo.git_dir, "notes", "--ref=healthy", "add", "-m", "looks good", line[1])
    assert repo.healthy() == (line[1],)
    repo.mark_healthy(line[1])
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
        repo.mark_healthy(commit)
    assert repo.healthy() == (merge, line[3], line[1])
    assert repo.healthy("side") == (side, line[1])
    repo.checkout(line[2])
    assert repo.healthy() == (line[1],)


def test_what_does_not_exist(repo):
    with pytest.raises(NotFoundError):
        repo.mark_healthy("HEAD")
    assert repo.healthy() == ()
    with pytest.raises(NotFoundError, match="no branch 'nope'"):
        repo.healthy("nope")


def test_the_log_knows_it(repo, line):
    repo.mark_healthy(line[1])
    assert [entry.is_healthy for entry in repo.log()] == [False, False, True, False]
    assert repo.show(line[1]).is_healthy
    assert repo.show(line[1]).refs == ()


def test_many_marks_are_read_like_few(repo):
    """Stock Git cuts the names of many notes into folders; so does mvc."""
    commits = [
        repo.commit(f"{number}", allow_empty=True, time_s=1_700_000_000 + number).commit
        for number in range(3)
    ]
    history, who = repo._context.history, repo.identity
    others = {f"{number:040x}": b"x" for number in range(300)}
    write_notes(history, HEALTHY_REF, others, message="many", stamp=Stamp.now(who))
    repo.mark_healthy(commits[1])
    assert repo.healthy() == (commits[1],)
    assert [entry.is_healthy for entry in repo.log()] == [False, True, False]


def test_damaged_marks_are_told_but_not_by_the_log(repo, line):
    repo.mark_healthy(line[1])
    tree = repo._context.history.read_commit(repo.resolve("refs/notes/healthy")).tree
    (repo.git_dir / "objects" / tree[:2] / tree[2:]).unlink()
    reopened = Repo.open(repo.worktree)
    assert [entry.is_healthy for entry in reopened.log()] == [False] * 4
    with pytest.raises(FormatError):
        reopened.healthy()


def test_marks_survive_what_clears_up(repo, root):
    for step in (1, 2, 3):
        (root / "a.npy").write_bytes(b"\x93NUMPY" + bytes([step]) * 5000)
        repo.commit(f"step {step}", paths=".", step=step)
        repo.mark_healthy("HEAD")
    repo.prune(repo.plan_prune(keep_last=1))
    repo.gc(grace_s=0)
    assert len(repo.healthy()) == 3
    assert run_git(repo.git_dir, "fsck", "--strict").returncode == 0
    assert repo.fsck(data=True).ok
