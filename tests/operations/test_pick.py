"""cherry-pick and revert: single commits and sequences, conflicts, and ways to go on."""

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from mvc import ConflictError, Identity, UsageError
from support.models import digests
from support.opened_repo import message, write
from support.stockgit import git

NAMES = ("a", "b", "c")


def put(repo, root, text, **changes):
    found = {name: np.full((4, 3), place, np.float32) for place, name in enumerate(NAMES)}
    found |= {name: np.full((4, 3), value, np.float32) for name, value in changes.items()}
    save_file(found, root / "m.safetensors")
    repo.add(".")
    return repo.commit(text).commit


def read(root):
    return {name: float(value.flat[0]) for name, value in load_file(root / "m.safetensors").items()}


@pytest.fixture
def apart(repo, root):
    """Return a repository on main, and three commits of side."""
    put(repo, root, "base")
    repo.switch("side", create=True)
    repo.identity = Identity("Bea", "bea@example.org")
    picks = [
        put(repo, root, "one", a=10),
        put(repo, root, "two", a=10, b=20),
        put(repo, root, "three", a=10, b=20, c=30),
    ]
    repo.identity = Identity("Ann", "ann@example.org")
    repo.switch("main")
    return repo, picks


class TestPick:
    def test_the_origin_stays_beside_what_the_pick_was_told(self, apart, root):
        repo, picks = apart
        put(repo, root, "own", a=5)
        repo.cherry_pick(picks[0], strategy="theirs", record_origin=True)
        found = message(repo)
        assert f"(cherry picked from commit {picks[0]})\nMerge-Strategy: theirs\n" in found

    def test_what_another_pick_was_told_decides_nothing(self, apart, root):
        repo, picks = apart
        put(repo, root, "own", a=5)
        told = repo.cherry_pick(picks[0], strategy="theirs").commit
        repo.switch("again", create=True, start=picks[1])
        put(repo, root, "other", a=7, b=8)
        assert repo.cherry_pick(told).conflicts
        with pytest.raises(ConflictError, match="still undecided"):
            repo.conclude("cherry-pick", rules=[("b", "ours")])
        repo.abort("cherry-pick")
        repo.cherry_pick(told, rules=[("a", "ours")])
        assert "Merge-Strategy" not in message(repo)

    def test_a_range(self, apart, root):
        repo, _ = apart
        repo.cherry_pick("main..side")
        assert read(root) == {"a": 10, "b": 20, "c": 30}
        assert [entry.info.subject for entry in repo.log()] == ["three", "two", "one", "base"]
        assert repo.status().pending is None

    def test_what_is_there_already_is_left_out(self, apart, root):
        repo, picks = apart
        repo.cherry_pick(picks[0], record_origin=True)
        head = repo.head
        assert repo.cherry_pick(picks[0]).kind == "up-to-date"
        assert repo.cherry_pick(picks[2], commit=False).kind == "staged"
        assert (repo.head, read(root)) == (head, {"a": 10, "b": 1, "c": 30})
        repo.reset(mode="hard")
        repo.cherry_pick("main~1..side")
        assert [entry.info.subject for entry in repo.log()] == ["three", "two", "one", "base"]
        info = repo.show("HEAD~2").info
        assert (info.author.name, info.committer.name, len(info.parents)) == ("Bea", "Ann", 1)
        assert f"(cherry picked from commit {picks[0]})" in message(repo, "HEAD~2")
        assert repo.reflog()[0].message == "cherry-pick: three"

    def test_a_conflict_in_a_sequence(self, apart, root):
        repo, picks = apart
        put(repo, root, "mine", b=99)
        start = repo.head
        result = repo.cherry_pick("side~3..side")
        assert [one.tensor for one in result.conflicts] == ["b"]
        assert read(root) == {"a": 10, "b": 99, "c": 2}
        status = repo.status()
        assert (status.pending.kind, status.pending.heads) == ("cherry-pick", (picks[1],))
        assert status.pending.rest == (picks[2],)
        told = git(repo.git_dir, "--work-tree", str(root), "status")
        assert "cherry-pick" in told
        repo.conclude("cherry-pick", rules=[("b", "theirs")])
        assert read(root) == {"a": 10, "b": 20, "c": 30}
        subjects = [entry.info.subject for entry in repo.log()]
        assert subjects == ["three", "two", "one", "mine", "base"]
        assert repo.show("HEAD~1").info.author.name == "Bea"
        assert repo.status().pending is None
        assert start.commit == repo.resolve("HEAD~3")

    def test_skip_and_abort(self, apart, root):
        repo, _ = apart
        put(repo, root, "mine", b=99)
        before = (repo.head, digests(root))
        repo.cherry_pick("side~3..side")
        repo.skip("cherry-pick")
        assert read(root) == {"a": 10, "b": 99, "c": 30}
        repo.reset(before[0].commit, mode="hard")
        repo.cherry_pick("side~3..side")
        repo.abort("cherry-pick")
        assert (repo.head, digests(root)) == before
        assert repo.status().is_clean
        with pytest.raises(ConflictError, match="no cherry-pick is under way"):
            repo.skip("cherry-pick")

    def test_a_merge_needs_a_parent(self, apart, root):
        repo, picks = apart
        put(repo, root, "mine", c=5)
        repo.merge(picks[0])
        merged = repo.head.commit
        repo.reset("HEAD~1", mode="hard")
        with pytest.raises(UsageError, match="is a merge"):
            repo.cherry_pick(merged)
        with pytest.raises(UsageError, match="no parent 3"):
            repo.cherry_pick(merged, mainline=3)
        repo.cherry_pick(merged, mainline=1)
        assert read(root) == {"a": 10, "b": 1, "c": 5}

    def test_mistakes(self, apart, root):
        repo, picks = apart
        for bad in (["main..main"], ["main...side"], []):
            with pytest.raises(UsageError):
                repo.cherry_pick(*bad)
        write(root, "staged")
        repo.add("staged")
        with pytest.raises(ConflictError, match="staged changes"):
            repo.cherry_pick(picks[0])


class TestRevert:
    def test_the_parents_tensors_come_back_to_the_bit(self, repo, root):
        put(repo, root, "base")
        one = put(repo, root, "one", a=0.1, b=5)
        put(repo, root, "two", a=0.1, b=5, c=7)
        repo.revert(one)
        assert read(root) == {"a": 0, "b": 1, "c": 7}
        text = message(repo)
        assert text.startswith(f'Revert "one"\n\nThis reverts commit {one}.\n')
        repo.revert("HEAD")
        assert read(root)["b"] == 5

    @pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
    def test_arithmetic_subtracts_the_task_vector(self, repo, root, dtype):
        rng = np.random.default_rng(0)
        versions = [rng.standard_normal((64, 5)).astype(dtype) for _ in range(3)]
        commits = []
        for number, version in enumerate(versions):
            save_file({"w": version, "n": np.full(2, number, np.int32)}, root / "m.safetensors")
            repo.add(".")
            commits.append(repo.commit(f"{number}").commit)
        result = repo.revert(commits[1], arithmetic=True, rules=[("n", "ours")])
        assert result.tensors["merged"] == 1
        parent, commit, now = (version.astype(np.float64) for version in versions)
        wanted = (now - (commit - parent)).astype(dtype).astype(np.float64)
        found = load_file(root / "m.safetensors")
        spacing = np.spacing(np.abs(wanted).astype(dtype)).astype(np.float64)
        # What adds up in another order differs by roundings of the float64 that it is computed in.
        allowed = spacing + 2.0**-50 * (np.abs(parent) + np.abs(commit) + np.abs(now))
        assert (np.abs(found["w"].astype(np.float64) - wanted) <= allowed).all()
        assert found["n"][0] == 2

    def test_the_first_commit(self, one, root):
        first = one.head.commit
        write(root, "b")
        one.add(".")
        one.commit("second")
        one.revert(first)
        assert sorted(digests(root)) == ["b"]
