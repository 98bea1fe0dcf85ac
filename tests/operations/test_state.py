"""A training state through a commit and back."""

import json

import numpy as np
from safetensors.numpy import load_file

from mvc import Repo
from support.states import assert_same


def array(value, count=300):
    return np.full(count, value, np.float32)


def on_disk(root):
    return sorted(path.name for path in root.iterdir() if path.name != ".mvc")


class TestRoundTrip:
    def test_into_live_arrays(self, repo):
        repo.commit_state({"model": {"w": array(1), "b": array(2)}, "step": 1}, message="one")
        live = {"w": array(0), "b": array(0)}
        loaded = repo.load_state(framework="numpy", into={"model": live})
        assert loaded["model"]["w"] is live["w"]
        assert np.array_equal(live["b"], array(2))
        assert loaded["step"] == 1

    def test_checked_out_files_are_ordinary_ones(self, repo, root):
        repo.commit_state({"model": {"w": array(1)}, "step": 5}, message="one")
        repo.checkout("main")
        assert np.array_equal(load_file(root / "model.safetensors")["w"], array(1))
        assert json.loads((root / "state.json").read_text())["state"]["step"] == 5
        # And such files, added by hand, are a state again.
        other = Repo.init(root.parent / "copy")
        for name in on_disk(root):
            (other.worktree / name).write_bytes((root / name).read_bytes())
        other.commit("by hand", paths=".")
        assert_same({"model": {"w": array(1)}, "step": 5}, other.load_state(framework="numpy"))

    def test_repeating_a_state_writes_no_chunk(self, repo):
        state = {"model": {"w": np.random.default_rng(0).standard_normal(5000)}}
        first = repo.commit_state(state, message="one", step=1)
        second = repo.commit_state(state, message="two", step=2)
        assert first.written_bytes > 0
        assert (second.written_bytes, second.tensors_new, second.files_changed) == (0, 0, 0)
