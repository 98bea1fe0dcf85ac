"""open_state: values and boxes of a commit, and nothing else, are read."""

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from mvc import NotFoundError, UsageError
from mvc.chunkstore.store import ChunkStore

SETTING = "mvc.chunkbytes"


def box_of(state, path, offsets, sizes, dtype=torch.float32):
    target = torch.empty(sizes, dtype=dtype)
    view = memoryview(target.reshape(-1).view(torch.uint8).numpy())
    state.read_boxes([(path, offsets, sizes, view)])
    return target


@pytest.fixture
def watched(monkeypatch):
    """Sizes of the chunks that are read."""
    sizes = []
    original = ChunkStore.read_many

    def watch(self, requests, take):
        requests = list(requests)
        sizes.extend(one.plain_size_bytes for one in requests)
        return original(self, requests, take)

    monkeypatch.setattr(ChunkStore, "read_many", watch)
    return sizes


@pytest.fixture
def state():
    torch.manual_seed(0)
    weight = torch.randn(64, 48)
    return {
        "model": {"w": weight, "tied": weight, "row": weight[3], "half": torch.randn(7).bfloat16()},
        "optimizer": {"state": {0: {"m": torch.randn(5, 5), "step": torch.tensor(3.0)}}},
        "list": [(torch.ones(3), b"x" * 2000), {"lr": 0.1}],
        "array": np.arange(12, dtype=np.int16).reshape(3, 4),
    }


class TestValues:
    def test_one_by_one(self, repo, state):
        repo.commit_state(state, message="x")
        stored = repo.open_state()
        assert stored.outline["list"][1] == {"lr": 0.1}
        assert stored.outline["model"]["w"].shape == (64, 48)
        assert stored.load(("list", 1, "lr")) == 0.1
        tensor, blob = stored.load(("list", 0))
        assert torch.equal(tensor, torch.ones(3))
        assert blob == b"x" * 2000
        assert torch.equal(stored.load(("model",))["tied"], state["model"]["w"])
        assert np.array_equal(stored.load(("array",)), state["array"])
        assert stored.load(("optimizer", "state", 0, "step")) == 3

    def test_what_is_not_there(self, repo, state):
        repo.commit_state(state, message="x")
        stored = repo.open_state()
        for path in (("nope",), ("model", "w", 3), ("list", 7), ("optimizer", "state", "0")):
            with pytest.raises(NotFoundError, match="has no"):
                stored.load(path)
        with pytest.raises(NotFoundError, match="is no tensor"):
            box_of(stored, ("list",), (0,), (1,))
        with pytest.raises(UsageError, match="has no box"):
            box_of(stored, ("model", "w"), (60, 0), (5, 48))
        with pytest.raises(UsageError, match="bytes"):
            stored.read_boxes([(("model", "w"), (0, 0), (1, 1), memoryview(bytearray(5)))])


class TestBoxes:
    @pytest.mark.parametrize(("offsets", "sizes"), [((0, 0), (64, 48)), ((5, 7), (9, 3)), ((63, 47), (1, 1)), ((9, 9), (0, 2))])  # fmt: skip
    @pytest.mark.parametrize("name", ["w", "tied"])
    def test_any_box(self, repo, state, name, offsets, sizes):
        repo.set_config(SETTING, "4096")
        repo.commit_state(state, message="x")
        found = box_of(repo.open_state(), ("model", name), offsets, sizes)
        (top, left), (rows, columns) = offsets, sizes
        assert torch.equal(found, state["model"]["w"][top : top + rows, left : left + columns])

    def test_views_scalars_and_narrow_types(self, repo, state):
        repo.commit_state(state, message="x")
        stored = repo.open_state()
        row = box_of(stored, ("model", "row"), (5,), (6,))
        assert torch.equal(row, state["model"]["w"][3, 5:11])
        half = box_of(stored, ("model", "half"), (1,), (4,), torch.bfloat16)
        assert torch.equal(half, state["model"]["half"][1:5])
        assert box_of(stored, ("optimizer", "state", 0, "step"), (), ()) == 3
        array = box_of(stored, ("array",), (1, 1), (2, 2), torch.int16)
        assert array.tolist() == [[5, 6], [9, 10]]

    def test_only_the_chunks_of_a_box_are_read(self, repo, watched):
        repo.set_config(SETTING, "4096")
        repo.commit_state({"model": {"w": torch.randn(64, 64)}}, message="x")
        stored = repo.open_state()
        box_of(stored, ("model", "w"), (16, 0), (16, 64))
        assert watched == [4096]
        box_of(stored, ("model", "w"), (40, 5), (1, 3))
        assert watched == [4096, 4096]


class TestFiles:
    def test_a_checkpoint_is_its_tensors(self, repo, root):
        weights = {"a.w": torch.randn(6, 4), "b": torch.randn(3).half()}
        save_file(weights, root / "model.safetensors")
        repo.commit("x", paths="model.safetensors")
        stored = repo.open_state()
        assert stored.outline["b"].dtype == "float16"
        assert torch.equal(stored.load(("a.w",)), weights["a.w"])
        found = box_of(stored, ("a.w",), (1, 1), (3, 2))
        assert torch.equal(found, weights["a.w"][1:4, 1:3])
        with pytest.raises(NotFoundError, match="no tensor"):
            box_of(stored, ("c",), (), ())

    def test_strided_tensors_of_a_torch_file(self, repo, root):
        weight = torch.randn(4, 6)
        torch.save({"t": weight.t()}, root / "model.pt")
        repo.commit("x", paths="model.pt")
        found = box_of(repo.open_state(), ("t",), (1, 1), (3, 2))
        assert torch.equal(found, weight.t()[1:4, 1:3])
