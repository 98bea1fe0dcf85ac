"""Merging files that cannot be made anew: torch.save, npz and GGUF keep the file of one side around tensors of all."""

import io
import zipfile

import numpy as np
import pytest

from mvc import NotFoundError
from support.torch_files import torch

pytestmark = pytest.mark.torch
LAYERS = ("emb", "mid", "head")


def weights(**changes):
    found = {f"{name}.weight": torch.full((40, 30), float(n)) for n, name in enumerate(LAYERS)}
    found |= {f"{name}.weight": found[f"{name}.weight"] + value for name, value in changes.items()}
    found["tied.weight"] = found["emb.weight"]
    return found


def packed(saved):
    """A file as torch.save writes it under the name that the tests use."""
    file = io.BytesIO()
    torch.save(saved, file)
    return file.getvalue()


@pytest.fixture
def saved(parted, root):
    """Part two branches that have these objects in ``m.pt``."""

    def make(*versions, name="m.pt"):
        def put(one):
            return lambda: (root / name).write_bytes(one if isinstance(one, bytes) else packed(one))

        return parted(*map(put, versions))

    return make


def load(root, name="m.pt"):
    assert zipfile.ZipFile(root / name).testzip() is None
    return torch.load(root / name, weights_only=True)


class TestTorch:
    def test_it_is_what_torch_would_have_saved(self, saved, root, reads):
        def state(epoch, **changes):
            return {"model": weights(**changes), "epoch": epoch}

        repo = saved(state(1), state(1, mid=5), state(300, emb=7))
        reads.clear()
        result = repo.merge("side", commit=False)
        assert (result.kind, result.conflicts) == ("staged", ())
        assert (result.tensors, result.bytes_computed) == ({"ours": 1, "theirs": 1, "kept": 1}, 0)
        assert (root / "m.pt").read_bytes() == packed(state(300, emb=7, mid=5))
        assert load(root)["epoch"] == 300
        repo.conclude()
        assert repo.upkeep.fsck(data=True).ok

    def test_methods_blend_and_tied_tensors_stay_tied(self, saved, root, repo):
        repo.set_config("mvc.chunkbytes", "1024")  # the checksum of a tensor is made of several
        repo = saved(weights(), weights(emb=2, mid=1), weights(emb=4))
        assert [one.tensor for one in repo.merge("side").conflicts] == ["emb.weight"]
        repo.abort()
        repo.merge("side", strategy="linear")
        assert (root / "m.pt").read_bytes() == packed(weights(emb=3, mid=1))
        found = load(root)
        assert found["emb.weight"].data_ptr() == found["tied.weight"].data_ptr()
        assert repo.replay_merge("HEAD").is_same

    def test_a_tensor_that_one_side_added_and_one_that_it_removed(self, saved, root):
        changed = weights(mid=1)
        changed["new"], changed["k"] = torch.ones(3), changed.pop("head.weight")[:7]
        repo = saved(weights(), weights(emb=9), changed)
        assert repo.merge("side").conflicts == ()
        wanted = weights(emb=9, mid=1)
        wanted["new"], wanted["k"] = torch.ones(3), wanted.pop("head.weight")[:7]
        assert (root / "m.pt").read_bytes() == packed(wanted)

    def test_what_both_added_to_is_one_conflict_that_says_why(self, saved, root):
        ours = weights() | {"x": torch.ones(2)}
        repo = saved(weights(), ours, weights() | {"y": torch.ones(3)})
        (conflict,) = repo.merge("side").conflicts
        assert (conflict.path, conflict.tensor) == ("m.pt", None)
        assert "'y' does not fit into the file of one side as it is (torch)" in conflict.reason
        assert (root / "m.pt").read_bytes() == packed(ours)

    @pytest.mark.parametrize(("how", "epoch"), [("ours", 2), ("theirs", 3), ("base", 1)])
    def test_what_both_changed_beside_the_tensors_is_decided_by_itself(
        self, saved, how, epoch, root
    ):
        def state(epoch, **changes):
            return {"model": weights(**changes), "epoch": epoch}

        repo = saved(state(1), state(2, emb=5), state(3, mid=5))
        (conflict,) = repo.merge("side").conflicts
        assert (conflict.tensor, conflict.reason) == (
            "__metadata__", "changed on both sides (archive/data.pkl)",
        )  # fmt: skip
        with pytest.raises(NotFoundError):
            repo.conclude(rules=[("__meta__", how)])
        repo.conclude(rules=[("m.pt:__metadata__", how)])
        assert (root / "m.pt").read_bytes() == packed(state(epoch, emb=5, mid=5))


class TestNumpy:
    @staticmethod
    def npz(save=np.savez, **changes):
        arrays = {
            "a": np.zeros((3, 5)),
            "b": np.ones(4, np.int32),
            "t": np.asfortranarray(np.eye(3)),
        }
        file = io.BytesIO()
        save(file, **(arrays | changes))
        return file.getvalue()

    def test_arrays_of_both_sides(self, saved, root):
        ours, theirs = (
            self.npz(a=np.full((3, 5), 7.0)),
            self.npz(t=np.asfortranarray(np.ones((3, 3)))),
        )
        repo = saved(self.npz(), ours, theirs, name="m.npz")
        assert repo.merge("side").conflicts == ()
        both = self.npz(a=np.full((3, 5), 7.0), t=np.asfortranarray(np.ones((3, 3))))
        assert (root / "m.npz").read_bytes() == both

    def test_compressed_arrays_are_taken_from_one_side(self, saved):
        def save(value):
            return self.npz(np.savez_compressed, a=np.full(3, value))

        repo = saved(save(0), save(1), save(2), name="m.npz")
        (conflict,) = repo.merge("side").conflicts
        assert conflict.tensor is None


def test_gguf_keeps_the_metadata_that_one_side_changed(saved, root, tmp_path):
    gguf = pytest.importorskip("gguf")

    def pack(title, **changes):
        writer = gguf.GGUFWriter(tmp_path / "x.gguf", "llama")
        writer.add_name(title)
        for name in ("a", "b"):
            writer.add_tensor(name, np.full((8, 32), changes.get(name, 0), np.float32))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return (tmp_path / "x.gguf").read_bytes()

    longer = "a name that moves the tensors to another place"
    repo = saved(pack("x"), pack("x", a=1), pack(longer, b=2), name="m.gguf")
    assert repo.merge("side").conflicts == ()
    assert (root / "m.gguf").read_bytes() == pack(longer, a=1, b=2)
