"""A machine that was not the one to commit goes on from where the store's branch is, and loses nothing of its own."""

import pytest

from mvc import ConflictError, Repo
from mvc.training import RunStore
from support.nodes import commit_nodes, make_nodes, state_of


@pytest.fixture
def nodes(tmp_path):
    return make_nodes(tmp_path, f"file://{tmp_path / 'store'}", 2)


def check_at(repo, seed, commit, branch="main"):
    assert repo.resolve(f"refs/heads/{branch}") == commit
    loaded = repo.load_state(branch, framework="numpy")
    assert (loaded["model"]["w1"] == state_of(seed)["model"]["w1"]).all()
    assert repo.status(untracked=False).is_clean, "the index went along"


def test_it_goes_on_from_there(nodes):
    first = commit_nodes(nodes, 1)[0].commit
    assert RunStore(nodes[1]).catch_up("main") == first
    check_at(nodes[1], 1, first)
    assert RunStore(nodes[1]).catch_up("main") is None, "it is there"
    second = commit_nodes(nodes, 2)[0].commit
    assert RunStore(nodes[1]).catch_up("main") == second
    check_at(nodes[1], 2, second)
    assert not (nodes[1].worktree / "model.safetensors").exists(), "only asked-for content comes"
    third = commit_nodes(nodes[::-1], 3)[0]
    assert (third.unsent, RunStore(nodes[0]).catch_up("main")) == (None, third.commit)


def test_a_branch_that_is_not_the_current_one(nodes):
    commit = commit_nodes(nodes, 1, branch="side")[0].commit
    assert RunStore(nodes[1]).catch_up("side") == commit
    check_at(nodes[1], 1, commit, "side")
    assert nodes[1].head.commit is None


def test_without_a_store_or_a_branch_there_is_nothing_to_catch_up_with(nodes, tmp_path):
    assert RunStore(Repo.init(tmp_path / "alone")).catch_up("main") is None
    assert RunStore(nodes[1]).catch_up("main") is None


def test_what_is_not_sent_yet_stays(nodes):
    commit_nodes(nodes, 1)
    RunStore(nodes[1]).catch_up("main")
    nodes[1].set_config("mvc.store", None)
    mine = nodes[1].commit_state(state_of(5), message="here only").commit
    nodes[1].set_config("mvc.store", "origin")
    assert RunStore(nodes[1]).catch_up("main") is None
    assert nodes[1].resolve("main") == mine
    commit_nodes(nodes, 2)
    with pytest.raises(
        ConflictError, match=f"is at {mine[:10]} here, which the store 'origin' does not"
    ):
        RunStore(nodes[1]).catch_up("main")
    assert nodes[1].resolve("main") == mine


def test_a_rollback_elsewhere_is_followed(nodes):
    first = commit_nodes(nodes, 1)[0].commit
    commit_nodes(nodes, 2)
    RunStore(nodes[1]).catch_up("main")
    nodes[0].runs.rollback(nodes[0].runs.plan_rollback(first), reason="loss")
    third = commit_nodes(nodes, 3)[0]
    assert third.unsent is None
    assert RunStore(nodes[1]).catch_up("main") == third.commit
    check_at(nodes[1], 3, third.commit)


def test_files_of_the_worktree_go_along_or_are_in_the_way(nodes):
    paths = [repo.worktree / "notes.txt" for repo in nodes]
    paths[0].write_text("one")
    nodes[0].add("notes.txt")
    nodes[0].commit("notes")
    nodes[0].push()
    assert RunStore(nodes[1]).catch_up("main")
    assert paths[1].read_text() == "one"
    paths[0].write_text("two")
    nodes[0].add("notes.txt")
    nodes[0].commit("notes again")
    nodes[0].push()
    paths[1].write_text("mine")
    before = nodes[1].resolve("main")
    with pytest.raises(ConflictError, match=r"local changes would be overwritten: 'notes.txt'"):
        RunStore(nodes[1]).catch_up("main")
    assert (paths[1].read_text(), nodes[1].resolve("main")) == ("mine", before)


def test_health_marks_go_along(nodes):
    """Both machines have marked something meanwhile; each ends with all marks."""
    commits = [commit_nodes(nodes, seed)[0].commit for seed in (1, 2)]
    nodes[0].runs.mark_healthy(commits[0])
    commits.append(commit_nodes(nodes, 3)[0].commit)
    RunStore(nodes[1]).catch_up("main")
    assert nodes[1].runs.healthy("main") == (commits[0],)
    nodes[0].runs.mark_healthy(commits[1])
    nodes[1].runs.mark_healthy(commits[2])
    fourth = commit_nodes(nodes[::-1], 4)[0]
    assert fourth.unsent is None
    RunStore(nodes[0]).catch_up("main")
    assert nodes[0].runs.healthy("main") == (commits[2], commits[1], commits[0])
    assert commit_nodes(nodes, 5)[0].unsent is None
    RunStore(nodes[1]).catch_up("main")
    assert nodes[1].runs.healthy("main") == (commits[2], commits[1], commits[0])
    assert nodes[0].upkeep.fsck(remote="origin", data=True).problems == ()
    nodes[0].remotes.gc("origin", grace_s=0)
    RunStore(nodes[1]).catch_up("main")


def test_results_of_gates_go_along(nodes):
    """Both machines have judged the same commit meanwhile; each ends with both results."""
    measured = dict.fromkeys(("recovery_s", "loss"), 1.0)
    first = commit_nodes(nodes, 1)[0].commit
    RunStore(nodes[1]).catch_up("main")
    for repo, ranks in zip(nodes, (1, 2), strict=True):
        repo.runs.plan_scale(ranks, 4)
        repo.runs.record_scale(measured, first, ranks=ranks)
    commit_nodes(nodes, 2)
    RunStore(nodes[1]).catch_up("main")
    commit_nodes(nodes[::-1], 3)
    RunStore(nodes[0]).catch_up("main")
    for repo in nodes:
        repo.runs.plan_scale(1, 4)
        assert {one: result.ok for one, result in repo.runs.scale_status().results.items()} == {
            1: True,
            2: False,
        }
