"""Shallow clones: few commits and their content alone, deepened on demand; stock Git sees the same."""

import subprocess

import pytest

from mvc import FormatError, NotFoundError, Repo, UsageError, clone
from support.git_hosts import make_bare
from support.remote_repos import commit_model, make_repo
from support.verbs import WHO


@pytest.fixture
def repo(linked):
    """Five commits on main, a branch from the third, tags on the second and the last."""
    repo = linked
    for seed in range(5):
        commit_model(repo, seed=seed)
        if seed == 1:
            repo.tags.create("old", message="annotated")
        if seed == 2:
            repo.branches.create("side")
    repo.tags.create("new", message="annotated")
    repo.tags.create("light", "HEAD~")
    repo.push(all_branches=True, tags=True)
    return repo


def shallow(store, folder, depth=1, **options):
    copy = clone(store, folder, depth=depth, **options)
    copy.identity = WHO
    return copy


def ids(repo):
    return [one.id for one in repo.log()]


def git(repo, *words):
    command = ["git", f"--git-dir={repo.git_dir}", *words]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def used_bytes(repo):
    return sum(path.stat().st_size for path in (repo.git_dir / "chunks").rglob("*.pack"))


def check(copy):
    assert copy.upkeep.fsck(data=True).problems == ()
    assert copy.upkeep.fsck().promised == 0
    git(copy, "fsck", "--strict")
    assert git(copy, "log", "--format=%H", "HEAD").split() == ids(copy)


def test_a_shallow_clone_has_the_newest_commits_of_one_branch(repo, store, tmp_path):
    copy = shallow(store, tmp_path / "b", 2)
    assert ids(copy) == ids(repo)[:2]
    assert {one.name for one in copy.tags.list()} == {"light", "new"}
    assert used_bytes(copy) < used_bytes(repo) / 2
    model = "model.safetensors"
    assert (copy.worktree / model).read_bytes() == (repo.worktree / model).read_bytes()
    check(copy)
    assert [("grafted" in one.refs) for one in copy.log()] == [False, True]
    with pytest.raises(NotFoundError, match="history ends at"):
        copy.resolve("HEAD~2")
    with pytest.raises(NotFoundError):
        copy.resolve("origin/side")


def test_what_is_out_of_sight_is_not_here(repo, store, tmp_path):
    copy = shallow(store, tmp_path / "b", 2)
    found = git(copy, "cat-file", "--batch-all-objects", "--batch-check")
    assert found.count(" commit ") == 2
    copy.upkeep.gc(grace_s=0)
    check(copy)
    copy.fetch(unshallow=True)
    assert ids(copy) == ids(repo)
    check(copy)


def test_work_goes_on_in_a_shallow_clone(repo, store, tmp_path):
    copy = shallow(store, tmp_path / "b")
    new = commit_model(copy, seed=8)
    copy.push()
    assert repo.pull("origin", "main").merged.commit == new
    newer = commit_model(repo, seed=9)
    repo.push("origin", ["main"])
    assert copy.pull().merged.commit == newer
    assert len(ids(copy)) == 3
    check(copy)
    assert clone(store, tmp_path / "whole").upkeep.fsck(data=True).ok


def test_half_a_history_is_not_pushed_elsewhere(repo, store, tmp_path):
    copy = shallow(store, tmp_path / "b")
    commit_model(copy, seed=8)
    copy.remotes.add("other", str(tmp_path / "other"))
    with pytest.raises(NotFoundError, match="history here ends"):
        copy.push("other", ["main"])
    assert not (tmp_path / "other" / "root").exists()
    copy.fetch(unshallow=True)
    copy.push("other", ["main"])
    assert clone(tmp_path / "other", tmp_path / "whole").upkeep.fsck(data=True).ok


def test_it_gets_deeper_but_never_shorter(repo, store, tmp_path):
    copy = shallow(store, tmp_path / "b")
    commit_model(copy, seed=8)
    copy.fetch(depth=3)
    assert len(ids(copy)) == 4
    assert ids(copy)[1:] == ids(repo)[:3]
    check(copy)
    copy.fetch(depth=1)
    assert len(ids(copy)) == 4
    copy.fetch(unshallow=True)
    assert ids(copy)[1:] == ids(repo)
    assert not (copy.git_dir / "shallow").exists()
    check(copy)
    copy.fetch()
    assert {one.name for one in copy.tags.list()} == {"light", "new", "old"}
    with pytest.raises(UsageError, match="whole history"):
        copy.fetch(unshallow=True)


def test_a_branch_is_chosen_and_a_depth_is_checked(repo, store, tmp_path):
    copy = shallow(store, tmp_path / "b", 1, branch="side")
    assert ids(copy) == [repo.resolve("side")]
    check(copy)
    for depth in (0, -1):
        with pytest.raises(UsageError, match="depth"):
            clone(store, tmp_path / "c", depth=depth)
    with pytest.raises(NotFoundError, match="nowhere"):
        clone(store, tmp_path / "c", depth=1, branch="nowhere")
    assert not (tmp_path / "c").exists()
    with pytest.raises(UsageError, match="whole history"):
        repo.fetch(depth=1)


def test_a_merge_is_cut_on_both_sides(tmp_path, store):
    """Commits are as deep as the shortest way to them."""
    repo = make_repo(tmp_path / "a", str(store))
    for seed in range(2):
        commit_model(repo, seed=seed)
    repo.branches.create("side", "HEAD~")
    repo.switch("side")
    commit_model(repo, seed=5, name="other.safetensors")
    repo.switch("main")
    repo.merge("side")
    repo.push()
    copy = shallow(store, tmp_path / "b", 2)
    assert sorted(ids(copy)) == sorted(ids(repo)[:3])
    check(copy)


def test_a_list_of_something_else_is_refused(repo):
    (repo.git_dir / "shallow").write_text("../../etc/passwd\n")
    found = Repo(repo.worktree).upkeep.fsck().problems
    assert any("shallow lists" in one.detail for one in found)
    with pytest.raises(FormatError, match="shallow lists"):
        list(Repo(repo.worktree).log())


def test_a_history_on_a_git_host(tmp_path, store):
    host = make_bare(tmp_path / "host.git")
    repo = make_repo(tmp_path / "a")
    repo.remotes.add("origin", str(host), str(store))
    for seed in range(3):
        commit_model(repo, seed=seed)
    repo.tags.create("new", message="annotated")
    repo.push(tags=True, all_branches=True)
    copy = shallow(str(host), tmp_path / "b", 2, content_url=str(store))
    assert ids(copy) == ids(repo)[:2]
    assert [one.name for one in copy.tags.list()] == ["new"]
    check(copy)
    new = commit_model(copy, seed=8)
    copy.push()
    copy.fetch(unshallow=True)
    assert ids(copy) == [new, *ids(repo)]
    check(copy)
    empty = shallow(str(host), tmp_path / "c", 1, content_url=str(store), content=False)
    assert ids(empty) == [new]
    assert empty.upkeep.fsck().ok
    assert list(empty.tensors("HEAD"))
