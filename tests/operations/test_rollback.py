import dataclasses

import numpy as np
import pytest

from mvc import ConflictError, NotFoundError, ReleasedError, Repo, UsageError
from mvc.history.values import Stamp
from mvc.workspace.verdicts import HEALTHY_REF
from support.rollbacks import everything, refs
from support.stockgit import git

# Finding the target.


def test_no_branch(repo):
    with pytest.raises(NotFoundError, match="'main' has no commit yet"):
        repo.runs.plan_rollback(step=1)
    commit = repo.commit("one", step=1, allow_empty=True).commit
    repo.checkout(commit)
    with pytest.raises(UsageError, match="HEAD is not on a branch") as caught:
        repo.runs.plan_rollback(step=1)
    assert "`branch`" in caught.value.hint
    assert repo.runs.plan_rollback(step=1, branch="main").is_empty


def test_what_merges_brought_in_is_counted_as_git_does(repo):
    def commit(text, *parents):
        history, who = repo._context.history, repo.identity
        tree = repo.show().info.tree
        return history.write_commit(
            tree=tree, parents=parents, message=text, author=Stamp(who, 1_700_000_000, 0)
        )  # fmt: skip

    base = repo.commit("base", allow_empty=True, time_s=1_600_000_000).commit
    one, side = commit("one", base), commit("side", base)
    side = commit("side 2", side)
    merge = commit("merge", one, side)
    tip = commit("tip", merge)
    repo._context.history.update_head(
        tip, expected=base, message="x", stamp=Stamp.now(repo.identity)
    )
    for target in (base, one, side, merge, tip):
        expected = int(git(repo.git_dir, "rev-list", "--count", f"{target}..{tip}"))
        assert repo.runs.plan_rollback(target).abandoned == expected


def test_nothing_to_do(trained):
    repo, commits = trained
    for options in ({"step": 600}, {"step": 10**6}, {"steps_back": 0}, {"revision": "HEAD"}):
        before = everything(repo)
        plan = repo.runs.plan_rollback(**options)
        assert plan.is_empty
        assert (plan.abandoned, plan.diverged_branch) == (0, None)
        result = repo.runs.rollback(plan, reason="none")
        assert (result.commit, result.left, result.diverged_branch) == (commits[600],) * 2 + (None,)
        assert everything(repo) == before


# Going there.


def test_the_branch_goes_back_and_the_tip_stays(trained):
    repo, commits = trained
    result = repo.runs.rollback(repo.runs.plan_rollback(at_step=612), reason="loss is NaN")
    assert dataclasses.astuple(result) == (
        "main", commits[400], commits[600], "diverged/main/612", 2, (), (),
    )  # fmt: skip
    assert repo.head.branch == "main"
    assert repo.head.commit == commits[400]
    assert repo.resolve("diverged/main/612") == commits[600]
    message = f"rollback: to {commits[400][:10]} (step 400): loss is NaN"
    assert [repo.reflog(ref)[0].message for ref in ("HEAD", "main", "diverged/main/612")] == [
        message
    ] * 3
    assert repo.status().files == ()
    assert [path.name for path in repo.worktree.iterdir()] == [".mvc"]
    assert repo.load_state(framework="numpy")["w"][0] == 400
    again = repo.commit_state({"w": np.zeros(50, np.float32)}, message="other", step=500)
    assert again.parents == (commits[400],)
    assert repo.upkeep.fsck(data=True).ok


def test_a_stock_git_tells_of_it(trained):
    repo, commits = trained
    repo.runs.rollback(repo.runs.plan_rollback(step=300), reason="loss is NaN")
    shown = git(repo.git_dir, "log", "--notes=diverged", "-1", "diverged/main/600")
    assert "Notes (diverged):\n    Diverged: loss is NaN\n    Branch: main\n" in shown
    assert f"Rolled-back-to: {commits[300]} (step 300)" in shown
    assert git(repo.git_dir, "fsck", "--strict") == ""


def test_a_redone_rollback_says_all_that_it_said(trained):
    repo, _ = trained

    def told():
        entry = next(entry for entry in repo.log(everything=True) if entry.diverged)
        return entry.info.id, entry.refs, dataclasses.replace(entry.diverged, time_s=None)

    repo.runs.rollback(repo.runs.plan_rollback(at_step=612), reason="loss is NaN")
    before = told()
    assert (before[2].at_step, before[1]) == (612, ("diverged/main/612",))
    for _ in range(2):
        repo.undo()
        repo.undo(redo=True)
        assert told() == before
    repo.undo()
    repo.runs.rollback(repo.runs.plan_rollback(step=300), reason="by hand")
    repo.undo()
    assert repo.undo(redo=True).diverged_branch == "diverged/main/600"
    assert told()[2].at_step is None


@pytest.fixture
def filed(repo, root):
    """main: files of steps 1 to 3; ``extra`` since step 2."""
    commits = []
    for step in (1, 2, 3):
        (root / "file").write_text(f"{step}")
        (root / "same").write_text("same")
        if step == 2:
            (root / "extra").write_text("extra")
        commits.append(repo.commit(f"step {step}", paths=".", step=step).commit)
    return repo, commits


def test_files_follow_the_branch(filed, root):
    repo, commits = filed
    (root / "untracked").write_text("mine")
    (root / "same").write_text("edited")
    result = repo.runs.rollback(repo.runs.plan_rollback(step=1))
    assert (result.written, result.removed) == (("file",), ("extra",))
    assert (root / "file").read_text() == "1"
    assert not (root / "extra").exists()
    assert (root / "untracked").read_text() == "mine"
    assert (root / "same").read_text() == "edited"  # the same in both commits: carried along
    repo.undo()
    assert (root / "file").read_text() == "3"
    assert repo.head.commit == commits[2]


@pytest.mark.parametrize("kind", ["edited", "staged", "in the way"])
def test_local_changes_are_not_lost(filed, root, kind):
    repo, _ = filed
    if kind == "in the way":
        (root / "new").write_text("tracked at step 4 only")
        repo.commit("gone", paths=".", step=4)
        repo.remove("new")
        repo.commit("without", step=5)
        (root / "new").write_text("mine")
        target = 4
    else:
        (root / "file").write_text("mine")
        target = 1
        if kind == "staged":
            repo.add("file")
    before, plan = everything(repo), repo.runs.plan_rollback(step=target)
    with pytest.raises(ConflictError):
        repo.runs.rollback(plan, reason="no")
    assert everything(repo) == before
    repo.runs.rollback(plan, force=True)
    assert repo.status().is_clean
    assert repo.head.commit == plan.target


def test_a_branch_where_head_is_not(filed, root):
    repo, commits = filed
    repo.switch("side", create=True)
    (root / "file").write_text("mine")
    before = everything(repo)
    result = repo.runs.rollback(repo.runs.plan_rollback(step=1, branch="main"), reason="NaN")
    after = everything(repo)
    assert (result.written, result.removed) == ((), ())
    assert (after[0], after[2:]) == (before[0], before[2:])
    assert repo.resolve("main") == commits[0]
    assert repo.resolve("diverged/main/3") == commits[2]
    assert repo.reflog("main")[0].message == f"rollback: to {commits[0][:10]} (step 1): NaN"
    assert repo.head.branch == "side"


def test_names_that_are_taken(trained):
    repo, commits = trained
    repo.branches.create("diverged/main/600", commits[100])
    plan = repo.runs.plan_rollback()
    assert plan.diverged_branch == "diverged/main/600-2"
    assert repo.runs.rollback(plan).diverged_branch == "diverged/main/600-2"
    assert repo.resolve("diverged/main/600") == commits[100]
    repo.reset(commits[600], mode="hard")
    again = repo.runs.rollback(
        repo.runs.plan_rollback(step=100), reason="again"
    )  # the same tip: its own name
    assert again.diverged_branch == "diverged/main/600-2"
    note = git(repo.git_dir, "notes", "--ref=diverged", "show", commits[600])
    assert note.count("Diverged:") == 2
    assert repo.show(commits[600]).diverged.reason == "again"
    repo.branches.create("diverged/main/100/deep", commits[100])
    repo.commit_state({"w": np.zeros(9)}, message="x", step=101)
    assert repo.runs.plan_rollback(step=100, at_step=100).diverged_branch == "diverged/main/100-2"


def test_a_name_that_is_taken_meanwhile(trained):
    repo, commits = trained
    plan = repo.runs.plan_rollback()
    repo.branches.create("diverged/main/600", commits[300])
    result = repo.runs.rollback(plan)
    assert (plan.diverged_branch, result.diverged_branch) == (
        "diverged/main/600", "diverged/main/600-2",
    )  # fmt: skip
    assert repo.resolve("diverged/main/600") == commits[300]


def test_a_name_that_cannot_be_leaves_everything_as_it_is(trained):
    repo, commits = trained
    repo.branches.create("diverged/main", commits[100])
    before, plan = everything(repo), repo.runs.plan_rollback()
    with pytest.raises(ConflictError, match="cannot exist together with refs/heads/diverged/main"):
        repo.runs.rollback(plan)
    assert everything(repo) == before
    assert repo.show(commits[600]).diverged is None


# Somebody else was there.


def test_a_commit_in_between(trained):
    repo, _ = trained
    plan = repo.runs.plan_rollback()
    other = Repo.open(repo.worktree, identity=repo.identity)
    new = other.commit_state({"w": np.zeros(9)}, message="late", step=700).commit
    before = everything(repo)
    with pytest.raises(ConflictError, match="moved since the rollback was planned") as caught:
        repo.runs.rollback(plan)
    assert caught.value.hint == "plan it again"
    assert everything(repo) == before
    assert repo.head.commit == new
    repo.switch("side", create=True)
    other.branches.delete("main", force=True)
    with pytest.raises(ConflictError, match="and is gone"):
        repo.runs.rollback(plan)


@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_commit_while_it_is_under_way(trained, monkeypatch, elsewhere):
    """The branch moves after everything was looked at and before the lock is taken."""
    import mvc.operations.rollback as module

    repo, commits = trained
    if elsewhere:
        repo.switch("side", create=True)
    plan = repo.runs.plan_rollback(branch="main")
    other = Repo.open(repo.worktree, identity=repo.identity)
    real, made = module.check_whole, []

    def check(context, commit):
        real(context, commit)
        new = other.commit_state({"w": np.zeros(9)}, message="late", step=700, branch="main")
        made.append(new.commit)

    monkeypatch.setattr(module, "check_whole", check)
    with pytest.raises(ConflictError):
        repo.runs.rollback(plan)
    assert repo.resolve("main") == made[0]
    assert not [name for name in refs(repo) if "diverged" in name]
    assert repo.show(commits[600]).diverged is None


def test_head_comes_onto_the_branch_while_it_is_under_way(trained, monkeypatch):
    import mvc.operations.rollback as module

    repo, commits = trained
    repo.switch("side", create=True)
    plan = repo.runs.plan_rollback(branch="main")
    other, real = Repo.open(repo.worktree, identity=repo.identity), module.check_whole

    def check(context, commit):
        real(context, commit)
        other.switch("main")

    monkeypatch.setattr(module, "check_whole", check)
    with pytest.raises(ConflictError, match="HEAD moved"):
        repo.runs.rollback(plan)
    assert repo.resolve("main") == commits[600]


def test_an_interrupted_switch_is_finished_first(filed, root, monkeypatch):
    """It is on its way to the branch that shall go back: HEAD is on it then."""
    import mvc.workspace.transition as module

    repo, commits = filed
    repo.switch("side", create=True, start=commits[1])
    with monkeypatch.context() as patch, pytest.raises(ZeroDivisionError):
        patch.setattr(module, "_apply", lambda *_: 1 // 0)
        repo.switch("main")
    assert repo.head.branch == "side"
    result = repo.runs.rollback(repo.runs.plan_rollback(step=1, branch="main"))
    assert result.removed == ("extra",)
    assert (root / "file").read_text() == "1"
    assert repo.head.branch == "main"
    assert repo.status().is_clean


# Content that was let go.


def test_content_that_is_released_after_the_plan(trained):
    repo, _ = trained
    plan = repo.runs.plan_rollback(step=300)
    repo.upkeep.prune(repo.upkeep.plan_prune(keep_last=1))
    before = everything(repo)
    with pytest.raises(ReleasedError):
        repo.runs.rollback(plan)
    assert everything(repo) == before


def test_reasons_stay_on_one_line(trained):
    repo, commits = trained
    repo.runs.rollback(
        repo.runs.plan_rollback(), reason="a\n\nReleased: \x1b[2J\udcff" + "b" * 9000
    )
    assert repo.show(commits[600]).diverged.reason.startswith("a Released: [2J bbb")
    assert len(repo.reflog()[0].message) < 600
    assert "\x1b" not in repo.reflog()[0].message
    assert repo._context.history.find_ref(HEALTHY_REF) is not None
    assert repo.upkeep.fsck().ok
