from __future__ import annotations

import pytest

from mvc.upkeep.retention import is_model_path, state_paths


class TestModelFiles:
    @pytest.mark.parametrize(
        "path",
        ["model.safetensors", "ema.pt", "ema_model.pt", "weights.npz", "model_optim_rng.pt",
         "pytorch_model-00001-of-00002.bin", "adapter.bin", "model_state.pt",
         "mp_rank_00_model_states.pt", "optimizer/model.pt"],
    )  # fmt: skip
    def test_model(self, path):
        assert is_model_path(path) is True

    @pytest.mark.parametrize(
        "path",
        ["optimizer.pt", "optim_states.pt", "scheduler.pt", "rng_state_0.pth", "scaler.pt",
         "trainer_state.json", "training_state.pt", "model/optimizer.pt", "optimizer/0.distcp",
         "optimizer_state_dict.pt"],
    )  # fmt: skip
    def test_state(self, path):
        assert is_model_path(path) is False

    @pytest.mark.parametrize("path", ["a.gguf", "state_dict.pt", "data/tokens.npy"])
    def test_neither(self, path):
        assert is_model_path(path) is None

    def test_of_a_state(self):
        names = ["model.safetensors", "opt.safetensors", "extra.safetensors", "other.npz"]
        assert state_paths(names, set(names[:3])) == ("opt.safetensors", "extra.safetensors")
        assert state_paths(["net.safetensors", "rng.safetensors"], {"net.safetensors"}) == (
            "rng.safetensors",
        )
