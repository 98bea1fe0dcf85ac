"""Content that was released: said so, with the way to what is near, and never taken for damage."""

import shutil

import pytest

from mvc import ReleasedError, Repo
from mvc.errors import CorruptionError
from support.models import digest, write_model
from support.pruned import NOW_S, commit, prune


class TestGoingBack:
    def test_says_when_by_what_and_what_is_near(self, repo, root, five_steps):
        prune(repo, keep_last=2)
        repo.checkout("main")
        before = {path.name: digest(path) for path in root.iterdir() if path.is_file()}
        for going in (
            lambda: repo.checkout(five_steps[3000]),
            lambda: repo.checkout(five_steps[3000], force=True),
            lambda: repo.switch("new", create=True, start=five_steps[3000]),
            lambda: repo.reset(five_steps[3000], mode="hard"),
            lambda: repo.restore("model.safetensors", source=five_steps[3000]),
            lambda: repo.load_state(five_steps[3000]),
            lambda: repo.tensor(five_steps[3000], "model.safetensors", "w"),
            lambda: repo.export(
                five_steps[3000], root / "out.safetensors", path="model.safetensors"
            ),
        ):
            with pytest.raises(ReleasedError) as caught:
                going()
            error = caught.value
            assert (error.commit, error.policy, error.time_s, error.nearest) == (
                five_steps[3000], "--keep-last 2", NOW_S, five_steps[4000],
            )  # fmt: skip
            assert "'step 3000' (step 3,000) was released on 2027-01-15" in error.message
            assert "--keep-last 2" in error.message
            assert five_steps[4000][:10] in error.hint
        assert {path.name: digest(path) for path in root.iterdir() if path.is_file()} == before
        assert [branch.name for branch in repo.branches.list()] == ["main"]
        assert repo.head.commit == five_steps[5000]

    def test_nearest_is_by_step_and_on_the_same_line(self, repo, five_steps):
        repo.branches.create("side", five_steps[1000])
        commit(repo, 2900, branch="side")
        prune(repo, keep_every=5000)
        with pytest.raises(ReleasedError) as caught:
            repo.load_state(five_steps[3000])
        assert caught.value.nearest == five_steps[5000]
        assert "newer" not in caught.value.message
        repo.tags.create("v1", "side")
        with pytest.raises(ReleasedError) as caught:
            repo.load_state(five_steps[1000])
        assert caught.value.nearest == repo.resolve("side")

    def test_nearest_without_steps(self, repo, root):
        made = []
        for seed in range(6):
            write_model(root / "model.safetensors", seed=seed)
            repo.add(".")
            made.append(repo.commit(f"model {seed}", time_s=NOW_S + seed).commit)
        repo.tags.create("old", made[1])
        prune(repo, keep_last=1)
        for gone, near in ((0, 1), (2, 1), (4, 5)):
            with pytest.raises(ReleasedError) as caught:
                repo.checkout(made[gone])
            assert caught.value.nearest == made[near]

    def test_nobody_has_it(self, repo, root, five_steps):
        write_model(root / "once.safetensors")
        repo.add("once.safetensors")
        repo.commit("once")
        repo.remove("once.safetensors")
        repo.commit("gone")
        prune(repo, keep_last=1)
        with pytest.raises(ReleasedError) as caught:
            repo.restore("once.safetensors", source="HEAD~1")
        assert caught.value.nearest is None
        assert "no commit" in caught.value.hint

    def test_damage_is_not_called_released(self, repo, root, five_steps):
        prune(repo, keep_last=2)
        shutil.rmtree(repo.git_dir / "chunks")
        fresh = Repo.open(root)
        with pytest.raises(CorruptionError):
            fresh.load_state("main")
        problems = fresh.upkeep.fsck().problems
        missing = {one.commit for one in problems if one.kind == "missing-chunk"}
        assert missing == {five_steps[4000], five_steps[5000]}

    def test_a_commit_from_an_index_whose_content_is_gone(self, repo, root):
        for seed in range(3):
            write_model(root / "model.safetensors", seed=seed)
            repo.add(".")
            repo.commit(f"model {seed}")
        prune(repo, keep_last=1)
        repo.reset("HEAD~2")
        with pytest.raises(ReleasedError):
            repo.commit("old content again", allow_empty=True)
        repo.commit("what lies there", everything=True)
        assert repo.upkeep.fsck(data=True).ok
