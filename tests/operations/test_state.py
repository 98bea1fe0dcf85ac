"""A training state through a commit and back."""

from __future__ import annotations

import json
from collections import OrderedDict

import numpy as np
import pytest
from safetensors.numpy import load_file

from mvc import (
    ConflictError,
    Repo,
)
from support.states import assert_same


def array(value, count=300):
    return np.full(count, value, np.float32)


def on_disk(root):
    return sorted(path.name for path in root.iterdir() if path.name != ".mvc")


def paths_of(repo, revision="HEAD"):
    return [info.path for info in repo.ls(revision)]


class TestRoundTrip:
    def test_nested_numpy(self, repo):
        state = {
            "model": OrderedDict({"w": array(1), "deep": {"er": [array(2), (array(3), None)]}}),
            "optimizer": {"state": {0: {"step": 7, "m": array(4)}}, "groups": [{"lr": 1e-3}]},
            "rng": (3, tuple(range(10)), None),
            "scalars": {
                "nan": float("nan"),
                "big": 2**100,
                "text": "ü",
                "raw": b"\0\xff",
                "no": None,
            },
            "np": {"f16": np.float16(1.5), "u8": np.arange(5, dtype=np.uint8), "zero": array(0, 0)},
        }
        result = repo.commit_state(state, message="all of it", step=3, metrics={"loss": 1})
        assert_same(state, repo.load_state(framework="numpy"))
        assert (result.branch, result.subject) == ("main", "all of it")
        assert repo.show().annotations.step == 3
        assert paths_of(repo) == [
            "model.safetensors", "np.safetensors", "optimizer.safetensors", "state.json",
        ]  # fmt: skip

    def test_torch_with_ties(self, repo):
        torch = pytest.importorskip("torch")
        tied = torch.nn.Parameter(torch.randn(4, 4))
        model = OrderedDict({"wte.weight": tied, "bias": torch.ones(4, dtype=torch.bfloat16)})
        model["lm_head.weight"] = tied
        moments = {0: {"step": torch.tensor(7.0), "exp_avg": torch.randn(4, 4)}}
        state = {"model": model, "optimizer": {"state": moments, "param_groups": [{"lr": 0.1}]}}
        repo.commit_state(state, message="tied")
        loaded = repo.load_state()
        assert_same(state, loaded)
        tied = [loaded["model"][name] for name in ("wte.weight", "lm_head.weight")]
        assert tied[0].data_ptr() == tied[1].data_ptr()

    def test_a_scalar_state_has_no_tensor_file(self, repo):
        repo.commit_state({"step": 3}, message="only numbers")
        assert paths_of(repo) == ["state.json"]
        assert repo.load_state(framework="numpy") == {"step": 3}

    def test_many_small_tensors_and_long_ones(self, repo):
        repo.set_config("mvc.chunkbytes", "4096")
        state = {"m": {f"w{number}": array(number, number * 37 % 4000) for number in range(200)}}
        repo.commit_state(state, message="many")
        assert_same(state, repo.load_state(framework="numpy"))

    def test_into_live_arrays(self, repo):
        repo.commit_state({"model": {"w": array(1), "b": array(2)}, "step": 1}, message="one")
        live = {"w": array(0), "b": array(0)}
        loaded = repo.load_state(framework="numpy", into={"model": live})
        assert loaded["model"]["w"] is live["w"]
        assert np.array_equal(live["b"], array(2))
        assert loaded["step"] == 1

    def test_into_what_does_not_fit_changes_nothing(self, repo):
        repo.commit_state({"model": {"w": array(1)}}, message="one")
        live = {"w": array(0, 5)}
        with pytest.raises(ConflictError):
            repo.load_state(framework="numpy", into={"model": live})
        assert np.array_equal(live["w"], array(0, 5))
        with pytest.raises(ConflictError):
            repo.load_state(framework="numpy", into={"model": {"other": array(0)}})

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

    def test_an_older_step(self, repo):
        for step in (1000, 2000, 3000):
            repo.commit_state({"model": {"w": array(step)}}, message="s", step=step)
        for step in (1000, 3000):
            loaded = repo.load_state(f"main@{step}", framework="numpy")
            assert loaded["model"]["w"][0] == step

    def test_repeating_a_state_writes_no_chunk(self, repo):
        state = {"model": {"w": np.random.default_rng(0).standard_normal(5000)}}
        first = repo.commit_state(state, message="one", step=1)
        second = repo.commit_state(state, message="two", step=2)
        assert first.written_bytes > 0
        assert (second.written_bytes, second.tensors_new, second.files_changed) == (0, 0, 0)
