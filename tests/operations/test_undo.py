import numpy as np
import pytest

from mvc import ConflictError, NotFoundError, Repo
from support.stockgit import git


@pytest.fixture
def three(repo, root):
    """main: one, two, three; each changes ``file``, and ``two`` makes ``extra``."""
    ids = []
    for name in ("one", "two", "three"):
        (root / "file").write_text(name)
        if name == "two":
            (root / "extra").write_text("extra")
        ids.append(repo.commit(name, paths=".").commit)
    return repo, ids


def snapshot(repo):
    """Return all that an undo may change: HEAD, index, files."""
    index = repo._context.history.read_index().entries
    files = {
        path.relative_to(repo.worktree).as_posix(): path.read_bytes()
        for path in repo.worktree.rglob("*")
        if path.is_file() and ".mvc" not in path.parts
    }
    return repo.head, {path: (entry.mode, entry.blob) for path, entry in index.items()}, files


def test_a_commit_is_taken_back_and_its_work_stays_staged(three, root):
    repo, (_, two, last) = three
    _, index, files = snapshot(repo)
    result = repo.undo()
    assert (result.action, result.kind) == ("commit: three", "commit")
    assert (result.branch, result.commit, result.left_branch, result.left) == (
        "main", two, "main", last,
    )  # fmt: skip
    assert (result.written, result.removed) == ((), ())
    assert snapshot(repo)[1:] == (index, files)
    assert repo.head.commit == two
    assert [(file.path, file.staged) for file in repo.status().files] == [("file", "modified")]
    assert repo.reflog()[0].message == "undo: commit: three"
    assert repo.commit("three again").parents == (two,)


def test_again_steps_further_back_to_the_very_beginning_and_returns(three, root):
    repo, (one, two, last) = three
    end = snapshot(repo)
    assert [repo.undo().commit for _ in range(3)] == [two, one, None]
    assert repo.head.commit is None
    assert repo.head.branch == "main"
    assert git(root / ".mvc", "status", "--porcelain", "-uno") != ""
    assert repo.upkeep.fsck().problems == ()
    with pytest.raises(NotFoundError, match="nothing to undo"):
        repo.undo()
    assert [repo.undo(redo=True).commit for _ in range(3)] == [one, two, last]
    assert snapshot(repo) == end
    with pytest.raises(NotFoundError, match="nothing to redo"):
        repo.undo(redo=True)
    assert repo.undo().commit == two
    assert repo.upkeep.fsck().problems == ()


def test_an_amend(three, root):
    repo, (_, _, last) = three
    (root / "file").write_text("better")
    amended = repo.commit("three, better", amend=True, paths=".").commit
    result = repo.undo()
    assert (result.kind, result.commit, result.left) == ("commit", last, amended)
    assert (root / "file").read_text() == "better"
    assert repo.undo(redo=True).commit == amended
    assert repo.status().files == ()


def test_a_commit_from_memory(repo):
    repo.commit_state({"w": np.zeros(9)}, message="zeros")
    first = repo.head.commit
    repo.commit_state({"w": np.ones(9)}, message="ones")
    repo.undo()
    assert repo.head.commit == first
    repo.undo(redo=True)
    repo.reset("HEAD~1", mode="hard")
    repo.undo()
    assert repo.load_state(framework="numpy")["w"].sum() == 9
    assert [path.name for path in repo.worktree.iterdir()] == [".mvc"]


def test_a_switch(three, root):
    repo, (one, _, last) = three
    repo.branches.create("side", one)
    before = snapshot(repo)
    repo.switch("side")
    there = snapshot(repo)
    result = repo.undo()
    assert (result.kind, result.branch, result.left_branch) == ("switch", "main", "side")
    assert (set(result.written), result.removed) == ({"extra", "file"}, ())
    assert snapshot(repo) == before
    again = repo.undo(redo=True)
    assert (again.branch, again.removed) == ("side", ("extra",))
    assert snapshot(repo) == there
    assert repo.undo().commit == last


def test_going_to_a_commit_and_back(three):
    """A branch that was visited as a commit is visited so again; a new branch stays where it is."""
    repo, (one, two, last) = three
    repo.branches.create("side", one)
    repo.checkout("HEAD~1")
    repo.checkout("side", detach=True)
    repo.switch("new", create=True)
    assert (repo.undo().branch, repo.head.commit) == (None, one)
    assert repo.resolve("new") == one
    assert (repo.undo().branch, repo.head.commit) == (None, two)
    assert (repo.undo().branch, repo.head.commit) == ("main", last)
    assert (repo.undo(redo=True).branch, repo.head.commit) == (None, two)
    assert (repo.undo(redo=True).branch, repo.head.commit) == (None, one)


def test_commits_on_several_branches_and_the_ways_between(three, root):
    repo, (one, two, last) = three
    repo.switch("side", create=True, start=one)
    (root / "file").write_text("side")
    side = repo.commit("side", paths=".").commit
    repo.switch("main")
    places = [(repo.head.branch, repo.head.commit)]
    repo.undo(force=True)
    places.append((repo.head.branch, repo.head.commit))
    for _ in range(3):
        repo.undo(force=True)
        places.append((repo.head.branch, repo.head.commit))
    assert places == [
        ("main", last), ("side", side), ("side", one), ("main", last), ("main", two),
    ]  # fmt: skip


@pytest.mark.parametrize("mode", ["soft", "mixed", "hard"])
def test_a_reset(three, mode):
    repo, (one, _, last) = three
    before = snapshot(repo)
    repo.reset("HEAD~2", mode=mode)
    result = repo.undo()
    assert (result.action, result.kind) == ("reset: moving to HEAD~2", "reset")
    assert (result.commit, result.left) == (last, one)
    assert snapshot(repo) == before
    assert repo.status().files == ()
    assert repo.undo(redo=True).commit == one
    assert (repo.worktree / "file").read_text() == "one"


def test_a_reset_that_would_cost_local_changes_is_refused(three, root):
    repo, (_, _, last) = three
    repo.reset("HEAD~2", mode="hard")
    (root / "file").write_text("mine")
    before = snapshot(repo)
    for dry_run in (True, False):
        with pytest.raises(ConflictError, match="file"):
            repo.undo(dry_run=dry_run)
    assert snapshot(repo) == before
    assert repo.undo(force=True).commit == last
    assert (root / "file").read_text() == "three"


def test_a_dry_run_changes_nothing(three):
    repo, (_, two, last) = three
    repo.reset("HEAD~1", mode="hard")
    before, log = snapshot(repo), repo.reflog()
    planned = repo.undo(dry_run=True)
    assert (planned.commit, planned.left, planned.written) == (last, two, ("file",))
    assert snapshot(repo) == before
    assert repo.reflog() == log
    assert repo.undo() == planned


def test_a_branch_that_is_gone_meanwhile(three):
    repo, (_, _, last) = three
    repo.switch("side", create=True)
    repo.branches.delete("main")
    with pytest.raises(NotFoundError, match="'main', which is gone") as caught:
        repo.undo()
    assert str(last) in caught.value.hint
    repo.branches.create("main", last)
    repo.undo()
    repo.branches.delete("side")
    with pytest.raises(NotFoundError, match="'side' is gone"):
        repo.undo(redo=True)


def test_a_head_that_moved_without_its_log(three):
    repo, (one, _, last) = three
    git(repo.git_dir, "update-ref", "-m", "rollback: to step 3", "HEAD", one)
    result = repo.undo()  # what is not known is taken for a reset
    assert (result.action, result.kind) == ("rollback: to step 3", "reset")
    assert repo.head.commit == last
    (repo.git_dir / "refs/heads/main").write_text(f"{one}\n")
    with pytest.raises(ConflictError, match="not where its log says"):
        Repo.open(repo.worktree).undo()
    (repo.git_dir / "refs/heads/main").write_text(f"{last}\n")
    (repo.git_dir / "objects" / one[:2] / one[2:]).unlink()
    with pytest.raises(NotFoundError, match=one):
        Repo.open(repo.worktree).undo(redo=True)


def test_a_branch_that_moved_while_head_was_elsewhere(three):
    repo, _ = three
    repo.switch("side", create=True)
    repo.commit_state({"w": np.zeros(3)}, message="from elsewhere", branch="main")
    repo.undo()
    assert repo.head.branch == "main"
    with pytest.raises(ConflictError, match="'commit: three' left it at"):
        repo.undo()


@pytest.mark.parametrize("subject", ["x (detached)", "undo: y", "redo: z", "ümlaut\ttab"])
def test_subjects_that_look_like_something_else(three, root, subject):
    repo, (_, _, last) = three
    (root / "file").write_text("four")
    new = repo.commit(subject, paths=".").commit
    assert repo.undo().commit == last
    assert repo.undo(redo=True).commit == new
    assert repo.undo().commit == last


def test_expired_entries_do_not_confuse_it(three, root):
    repo, (_, two, last) = three
    repo.undo()
    path = root / ".mvc/logs/HEAD"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[2:]))
    assert repo.undo(redo=True).commit == last
    path.write_text("".join(lines[3:]))  # only the undo is left: nobody knows of what
    (root / ".mvc/refs/heads/main").write_text(f"{two}\n")
    for redo in (False, True):
        with pytest.raises(NotFoundError, match="nothing to"):
            Repo.open(root).undo(redo=redo)


def test_tags_that_were_moved_stay_and_are_named(three, monkeypatch):
    repo, _ = three

    def at(time_s):
        monkeypatch.setattr("mvc.history.values.time.time", lambda: time_s)

    at(1_900_000_000)
    for name in ("best", "fresh", "old"):
        repo.tags.create(name, "HEAD~1", force=name != "fresh")
    repo.tags.create("old", "HEAD", force=True)
    at(1_900_000_010)
    repo.commit("four", allow_empty=True)
    at(1_900_000_020)
    repo.tags.create("best", "HEAD", force=True)
    assert repo.undo(dry_run=True).tags == ("best",)
    best = repo.resolve("best")
    assert repo.undo().tags == ("best",)
    assert repo.resolve("best") == best
    assert repo.undo(redo=True).tags == ()
