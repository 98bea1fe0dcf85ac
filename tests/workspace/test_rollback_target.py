"""Where a rollback goes: every way to say it, and which commits qualify."""

import numpy as np
import pytest

from mvc import ConflictError, NotFoundError, ReleasedError, UsageError
from support.rollbacks import everything


@pytest.mark.parametrize(
    ("options", "step", "choice"),
    [
        ({}, 400, "the newest healthy commit below the tip"),
        ({"healthy": True}, 400, "the newest healthy commit below the tip"),
        ({"step": 300}, 300, "the commit of step 300"),
        ({"step": 399}, 300, "the newest commit up to step 399"),
        ({"steps_back": 100}, 500, "the newest commit at least 100 steps before the tip's step 600"),
        ({"steps_back": np.int64(101)}, 400, "the newest commit at least 101 steps before"),
        ({"revision": "main@200"}, 200, "main@200"),
        ({"revision": "HEAD~5"}, 100, "HEAD~5"),
    ],
)  # fmt: skip
def test_each_way_to_say_where_to(trained, options, step, choice):
    repo, commits = trained
    before = everything(repo)
    plan = repo.runs.plan_rollback(**options)
    assert (plan.target, plan.target_step) == (commits[step], step)
    assert (plan.branch, plan.tip, plan.tip_step) == ("main", commits[600], 600)
    assert plan.abandoned == (600 - step) // 100
    assert plan.diverged_branch == "diverged/main/600"
    assert plan.choice.startswith(choice)
    assert not plan.is_empty
    assert everything(repo) == before


@pytest.mark.parametrize(
    "options",
    [
        {"revision": "HEAD", "step": 1}, {"step": 1, "steps_back": 1}, {"steps_back": 0, "healthy": True},
        {"revision": "HEAD", "healthy": True}, {"step": -1}, {"steps_back": -5}, {"step": 1.5},
        {"step": "100"}, {"at_step": -1, "step": 100},
    ],
)  # fmt: skip
def test_wrong_ways_to_say_it(trained, options):
    with pytest.raises(UsageError):
        trained[0].runs.plan_rollback(**options)


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"step": 99}, NotFoundError, "no commit up to step 99"),
        ({"steps_back": 501}, NotFoundError, "no commit up to step 99"),
        ({"steps_back": 10**17}, NotFoundError, "no commit up to step -"),
        ({"revision": "nope"}, NotFoundError, "'nope' does not exist"),
        ({"branch": "nope"}, NotFoundError, "no branch 'nope'"),
        ({"revision": "side"}, ConflictError, "is not an ancestor of branch 'main'"),
        ({"revision": "main", "branch": "side"}, ConflictError, "not an ancestor of branch 'side'"),
    ],
)
def test_what_cannot_be_gone_back_to(trained, options, error, text):
    repo, commits = trained
    repo.branches.create("side", commits[300])
    repo.commit_state({"w": np.zeros(3)}, message="side", branch="side")
    with pytest.raises(error, match=text) as caught:
        repo.runs.plan_rollback(**options)
    assert caught.value.hint or "does not exist" in text


def test_without_a_healthy_commit_there_is_a_hint(repo):
    repo.commit("one", allow_empty=True)
    repo.commit("two", allow_empty=True)
    repo.runs.mark_healthy("HEAD")  # the tip itself is not below the tip
    with pytest.raises(NotFoundError, match="no commit below the tip") as caught:
        repo.runs.plan_rollback()
    assert "`steps_back`" in caught.value.hint


def test_commits_without_steps(repo):
    first = repo.commit("one", allow_empty=True).commit
    tip = repo.commit("two", allow_empty=True).commit
    with pytest.raises(NotFoundError, match="no step to count back from"):
        repo.runs.plan_rollback(steps_back=1)
    plan = repo.runs.plan_rollback("HEAD~1")
    assert (plan.tip_step, plan.target_step, plan.abandoned) == (None, None, 1)
    result = repo.runs.rollback(plan)
    assert result.diverged_branch == f"diverged/main/{tip[:10]}"
    assert repo.head.commit == first
    assert repo.reflog()[0].message == f"rollback: to {first[:10]}"


def test_a_branch_that_counts_anew_has_a_step_twice(repo):
    ids = [
        repo.commit(f"{n}", step=s, allow_empty=True).commit for n, s in enumerate((5, 7, 9, 4, 8))
    ]
    assert repo.runs.plan_rollback(step=7).target == ids[1]
    assert repo.runs.plan_rollback(step=6).target == ids[3]
    assert repo.runs.plan_rollback(step=5).target == ids[0]
    assert repo.runs.plan_rollback(steps_back=1).target == ids[3]


@pytest.fixture
def released(trained):
    """Of steps 200 and 300 the content is gone."""
    repo, commits = trained
    for step in (100, 400, 500):
        repo.tags.create(f"keep-{step}", commits[step])
    repo.runs.mark_healthy(commits[100])
    repo.upkeep.prune(repo.upkeep.plan_prune(keep_tagged=True))
    return repo, commits


def test_released_commits_are_passed_over(released):
    repo, commits = released
    plan = repo.runs.plan_rollback(step=300)
    assert (plan.target, plan.choice) == (
        commits[100],
        "the newest commit up to step 300, 2 skipped whose content was released",
    )
    assert repo.runs.plan_rollback(steps_back=300).target == commits[100]
    repo.runs.rollback(repo.runs.plan_rollback())
    plan = repo.runs.plan_rollback()
    assert (plan.target, plan.abandoned) == (commits[100], 3)
    assert "1 skipped" in plan.choice
    repo.runs.rollback(plan)
    assert repo.load_state(framework="numpy")["w"][0] == 100


def test_a_released_revision_is_refused(released):
    repo, commits = released
    with pytest.raises(ReleasedError, match="was released") as caught:
        repo.runs.plan_rollback("main@200")
    assert caught.value.commit == commits[200]
    assert '"mvc rollback ' in caught.value.hint


def test_only_released_commits_are_left(trained):
    repo, _ = trained
    repo.upkeep.prune(repo.upkeep.plan_prune(keep_last=1))
    with pytest.raises(NotFoundError, match="2 skipped whose content was released"):
        repo.runs.plan_rollback()
    with pytest.raises(NotFoundError, match="5 skipped whose content was released"):
        repo.runs.plan_rollback(step=500)


def test_content_that_came_back_counts(released):
    repo, commits = released
    repo.commit_state({"w": np.full(50, 300, np.float32)}, message="again", step=300, branch="x")
    assert repo.runs.plan_rollback(step=300).target == commits[300]
    assert repo.runs.plan_rollback(commits[300]).target == commits[300]
