import shutil

import numpy as np
import pytest

from mvc import ConflictError, NotFoundError, ReleasedError, Repo, UsageError
from mvc.history.notes import write_notes
from mvc.workspace.manifests import is_complete
from mvc.workspace.releases import (
    RELEASED_REF,
    Release,
    add_releases,
    find_release,
)
from support.models import write_model
from support.pruned import NOW_S, commit, load, prune, state
from support.releases import released_commits


class TestPlan:
    def test_changes_nothing(self, repo, context, five_steps):
        plan = repo.upkeep.plan_prune(keep_last=2, now_s=NOW_S)
        assert [one.step for one in plan.commits if one.paths] == [3000, 2000, 1000]
        assert [one.step for one in plan.commits if one.reasons] == [5000, 4000]
        assert {release.commit for release in plan.releases} == {
            five_steps[1000],
            five_steps[2000],
            five_steps[3000],
        }
        assert plan.freed_bytes >= sum(one.size_bytes for one in plan.commits) > 0
        assert all(one.size_bytes > 0 for one in plan.commits if one.paths)
        assert released_commits(context) == set()
        assert [load(repo, commit) for commit in five_steps.values()] == list(five_steps)

    def test_nonsense(self, repo, five_steps):
        with pytest.raises(UsageError, match="keeps nothing"):
            repo.upkeep.plan_prune()
        with pytest.raises(NotFoundError, match="matches 'x'"):
            repo.upkeep.plan_prune(keep_last=1, also_diverged=["x"])

    def test_an_empty_repository(self, repo):
        plan = repo.upkeep.plan_prune(keep_last=1)
        assert (plan.commits, plan.releases, repo.upkeep.prune(plan).freed_bytes) == ((), (), 0)


class TestRun:
    def test_content_goes_and_history_stays(self, repo, five_steps):
        before = [entry.info for entry in repo.log()]
        result = prune(repo, keep_last=2)
        assert result.freed_bytes > 0
        assert [entry.info for entry in repo.log()] == before
        assert [entry.released is not None for entry in repo.log()] == [False, False, *3 * [True]]
        assert [load(repo, five_steps[step]) for step in (4000, 5000)] == [4000, 5000]
        for step in (1000, 2000, 3000):
            with pytest.raises(ReleasedError):
                repo.load_state(five_steps[step])
        report = repo.upkeep.fsck(data=True)
        assert (report.problems, report.released) == ((), 6)
        assert prune(repo, keep_last=2).freed_bytes == 0

    def test_a_commit_that_a_ref_protects_meanwhile(self, repo, five_steps):
        plan = repo.upkeep.plan_prune(keep_last=1, now_s=NOW_S)
        repo.branches.create("late", "main@2000")
        with pytest.raises(ConflictError, match="protects"):
            repo.upkeep.prune(plan)
        assert load(repo, "late") == 2000

    def test_a_new_commit_is_no_hindrance(self, repo, five_steps):
        plan = repo.upkeep.plan_prune(keep_last=1, now_s=NOW_S)
        commit(repo, 6000)
        repo.upkeep.prune(plan)
        assert [load(repo, name) for name in ("main", "main@5000")] == [6000, 5000]
        assert repo.upkeep.fsck(data=True).ok

    def test_stopped_between_records_and_sweep(self, repo, context, five_steps):
        plan = repo.upkeep.plan_prune(keep_last=1, now_s=NOW_S)
        add_releases(context, plan.releases)
        assert load(repo, five_steps[1000]) == 1000  # the chunks decide
        assert repo.upkeep.fsck(data=True).ok
        again = prune(repo, keep_last=1)
        assert again.plan.releases == ()
        assert again.freed_bytes > 0
        assert prune(repo, keep_last=1).freed_bytes == 0
        with pytest.raises(ReleasedError):
            repo.load_state(five_steps[1000])
        assert load(repo, "main") == 5000

    def test_content_that_a_kept_commit_shares(self, repo, context, five_steps):
        prune(repo, keep_last=1)
        old = context.history.read_tree(five_steps[1000])["model.safetensors"].blob
        manifest = context.manifests.read(old)
        frozen = next(stored for view, stored in manifest.tensors() if view.name == "frozen")
        assert context.store.contains_all(frozen.chunks)
        assert not is_complete(context, old)

    def test_a_manifest_that_a_kept_commit_has(self, repo, context, root):
        write_model(root / "model.safetensors")
        repo.add(".")
        repo.commit("model")
        (root / "notes.txt").write_text("later")
        repo.add(".")
        repo.commit("notes")
        plan = repo.upkeep.plan_prune(keep_last=1)
        assert [one.kept_paths for one in plan.commits] == 2 * [("model.safetensors",)]
        assert plan.releases == ()

    def test_what_only_a_reflog_knows_protects_nothing(self, repo, context, five_steps):
        amended = repo.commit("step 5000, said better", amend=True).commit
        last = commit(repo, 6000)
        prune(repo, keep_last=1)
        assert find_release(context, five_steps[5000]) is not None
        for revision in (five_steps[5000], amended):
            with pytest.raises(ReleasedError):
                repo.load_state(revision)
        assert load(repo, last.commit) == 6000
        assert repo.upkeep.fsck(data=True).ok

    def test_what_is_staged_stays(self, repo, root):
        for seed in range(3):
            write_model(root / "model.safetensors", seed=seed)
            repo.add(".")
            repo.commit(f"model {seed}")
        repo.reset("HEAD~2", mode="mixed")
        repo.reset("main@{1}", mode="soft")
        prune(repo, keep_last=1)
        assert repo.upkeep.fsck(data=True).ok
        repo.restore("model.safetensors")


class TestWeightsOnly:
    def test_the_model_of_a_state_stays(self, repo, root, five_steps):
        prune(repo, keep_last=1, weights_only=True)
        for step in (1000, 4000):
            (file,) = repo.ls(five_steps[step], paths="model.safetensors")
            values = repo.tensor(five_steps[step], file.path, "w")
            np.testing.assert_array_equal(values, state(step)["model"]["w"])
            with pytest.raises(ReleasedError, match=r"optimizer\.safetensors"):
                repo.load_state(five_steps[step])
            with pytest.raises(ReleasedError):
                repo.tensor(five_steps[step], "optimizer.safetensors", "m")
        assert load(repo, "main") == 5000
        marks = [entry.released and entry.released.keeps_model for entry in repo.log()]
        assert marks == [None, True, True, True, True]
        repo.restore("model.safetensors", source=five_steps[2000])
        assert (root / "model.safetensors").exists()


class TestAgain:
    def test_a_rerun_is_recognised(self, repo, context, five_steps):
        prune(repo, keep_last=1)
        repo.branches.create("again", five_steps[1000])
        first = commit(repo, 1500, branch="again")
        assert first.identical_to is None
        second = commit(repo, 2000, branch="again")
        twin = second.identical_to
        assert (twin.commit, twin.step, twin.subject) == (five_steps[2000], 2000, "step 2000")
        assert twin.paths == ("model.safetensors", "optimizer.safetensors")
        assert find_release(context, five_steps[2000]) is None
        assert load(repo, five_steps[2000]) == 2000
        assert repo.upkeep.fsck(data=True).ok
        # The content counts as kept again, until a policy lets it go.
        plan = repo.upkeep.plan_prune(keep_last=1, now_s=NOW_S)
        assert [one.step for one in plan.commits if one.kept_paths and not one.reasons] == [2000]

    def test_a_part_of_it(self, repo, context, five_steps):
        prune(repo, keep_last=1)
        values = state(3000) | {"optimizer": {"m": np.ones(3)}}
        result = repo.commit_state(values, message="model as before", step=3000)
        assert result.identical_to.paths == ("model.safetensors",)
        assert find_release(context, five_steps[3000]).paths == ("optimizer.safetensors",)


class TestFsck:
    def test_a_manifest_that_a_kept_commit_shares_must_be_complete(self, repo, context, root):
        write_model(root / "model.safetensors")
        repo.add(".")
        first = repo.commit("model").commit
        (root / "notes.txt").write_text("later")
        repo.add(".")
        second = repo.commit("notes").commit
        add_releases(context, [Release(first, ("model.safetensors",), "--keep-last 1", NOW_S)])
        assert repo.upkeep.fsck(data=True).ok
        shutil.rmtree(repo.git_dir / "chunks")
        report = Repo.open(root).upkeep.fsck()
        missing = [one for one in report.problems if one.kind == "missing-chunk"]
        assert {one.commit for one in missing} == {second}
        assert report.released == 0

    def test_damaged_records(self, repo, context, five_steps):
        prune(repo, keep_last=4)
        notes = {five_steps[2000]: b"Released: never"}
        write_notes(context.history, RELEASED_REF, notes, message="x", stamp=context.stamp())
        report = repo.upkeep.fsck()
        assert [(one.kind, one.commit) for one in report.problems] == [
            ("bad-release-record", five_steps[2000])
        ]
        assert report.released == 2

    def test_a_lost_record_makes_what_is_gone_a_loss(self, repo, context, five_steps):
        prune(repo, keep_last=4)
        write_notes(
            context.history,
            RELEASED_REF,
            {five_steps[1000]: None},
            message="x",
            stamp=context.stamp(),
        )
        problems = Repo.open(repo.worktree).upkeep.fsck().problems
        assert {(one.kind, one.commit) for one in problems} == {("missing-chunk", five_steps[1000])}


def test_diverged_stays_unless_named(repo, five_steps):
    repo.branches.create("diverged/main/5000")
    repo.reset(five_steps[2000], mode="soft")
    repo.reset("HEAD")
    commit(repo, 2500)
    prune(repo, keep_last=1)
    assert [load(repo, five_steps[step]) for step in (3000, 4000, 5000)] == [3000, 4000, 5000]
    prune(repo, keep_last=1, also_diverged=["main/*"])
    for step in (1000, 3000, 4000, 5000):
        with pytest.raises(ReleasedError):
            repo.load_state(five_steps[step])
    assert load(repo, "main") == 2500
    assert repo.upkeep.fsck(data=True).ok
