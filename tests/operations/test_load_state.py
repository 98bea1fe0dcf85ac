"""load_state: what cannot be loaded is named, and nothing is read twice."""

import numpy as np
import pytest

from mvc import CorruptionError, FormatError, NotFoundError, Repo, UsageError
from mvc.history.git import GitHistory
from support.damage import flip
from support.opened_repo import write


def array(value, count=300):
    return np.full(count, value, np.float32)


class TestRefusals:
    def test_no_state_there(self, repo, root):
        with pytest.raises(NotFoundError):
            repo.load_state()
        write(root, "a")
        repo.commit("a", paths="a")
        with pytest.raises(NotFoundError, match="no training state"):
            repo.load_state()
        with pytest.raises(NotFoundError):
            repo.load_state("nope")

    def test_another_framework(self, repo):
        repo.commit_state({"step": 1}, message="x")
        with pytest.raises(UsageError, match="jax"):
            repo.load_state(framework="jax")

    def test_damage_names_the_tensor(self, repo, root):
        state = {"model": {"w": np.random.default_rng(0).standard_normal(5000)}}
        repo.commit_state(state, message="x")
        (pack,) = (root / ".mvc/chunks/packs").glob("*.pack")
        flip(pack)
        with pytest.raises(CorruptionError, match=r"tensor 'w' of model\.safetensors"):
            Repo.open(root).load_state(framework="numpy")

    def test_a_tensor_file_is_missing_from_the_commit(self, repo):
        repo.commit_state({"model": {"w": array(1)}}, message="x")
        repo.remove("model.safetensors")
        repo.commit("without the weights")
        with pytest.raises(FormatError):
            repo.load_state(framework="numpy")


def test_each_manifest_is_read_once(repo, root, monkeypatch):
    state = {"model": {f"w{number}": array(number, 10) for number in range(300)}}
    repo.commit_state(state, message="many")
    opened = Repo.open(root)
    reads = []
    original = GitHistory.read_blob

    def watch(self, blob):
        reads.append(blob)
        return original(self, blob)

    monkeypatch.setattr(GitHistory, "read_blob", watch)
    opened.load_state(framework="numpy")
    assert len(reads) == len(set(reads)) == 2
