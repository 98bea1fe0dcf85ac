"""Models written in other formats, read by torch and safetensors."""

import json
import shutil
import tracemalloc
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from mvc import ConflictError, CorruptionError, FormatError, UnsupportedError, UsageError
from mvc.checkpoints.dcp.encode import encode_dcp_metadata
from mvc.checkpoints.dcp.metadata import parse_dcp_metadata
from mvc.errors import MvcError
from mvc.workspace import model_files
from support.bounds import on_disk
from support.damage import flip
from support.golden_dcp import GOLDEN, make_state
from support.torch_files import torch

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore:torch.distributed is disabled"),
]
FLAT = {f"model.{key}": value for key, value in make_state()["model"].items()} | {
    "list.0": torch.ones(2), "list.1.deep": torch.zeros(0, 3),
}  # fmt: skip


def assert_same(found, expected):
    """Compare nested values: types, keys, and every bit of tensors."""
    if torch.is_tensor(expected):
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
        assert torch.equal(found, expected)
    elif isinstance(expected, dict):
        assert set(found) == set(expected)
        for key, value in expected.items():
            assert_same(found[key], value)
    elif isinstance(expected, (list, tuple)):
        assert (type(found), len(found)) == (type(expected), len(expected))
        for one, value in zip(found, expected, strict=True):
            assert_same(one, value)
    else:
        assert found == expected


def load_dcp(folder, tmp_path, *, safe=True):
    """Return what PyTorch's own converter makes of a DCP folder."""
    from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

    path = tmp_path / "converted.pt"
    dcp_to_torch_save(folder, path)
    return torch.load(path, weights_only=safe)


def save_dcp(state, folder):
    import torch.distributed.checkpoint as dcp

    dcp.save(state, checkpoint_id=folder, no_dist=True)


@pytest.fixture
def small(repo):
    repo.set_config("mvc.chunkbytes", "4096")
    return repo


@pytest.fixture(params=["ranks-2", "ranks-4"])
def sharded(request, repo, root):
    shutil.copytree(GOLDEN / request.param, root / "ckpt")
    repo.commit("a sharded folder", paths="ckpt")
    return repo


class TestFolders:
    def test_as_safetensors(self, sharded, tmp_path):
        result = sharded.export("HEAD", tmp_path / "x.safetensors")
        assert (result.format, result.tensors, result.left_out) == ("safetensors", 6, ())
        assert_same(load_file(tmp_path / "x.safetensors"), FLAT)

    def test_as_torch(self, sharded, root, tmp_path):
        result = sharded.export("HEAD", tmp_path / "x.pt")
        assert (result.format, result.tensors, result.left_out) == ("torch", 6, ())
        found = torch.load(tmp_path / "x.pt", weights_only=True)
        assert_same(found, make_state())
        assert_same(found, load_dcp(root / "ckpt", tmp_path))

    def test_as_another_folder(self, sharded, tmp_path):
        result = sharded.export("HEAD", tmp_path / "out", path="ckpt", format="dcp")
        assert (result.format, result.tensors, result.files) == ("dcp", 6, 2)
        assert result.size_bytes == sum(one.stat().st_size for one in (tmp_path / "out").iterdir())
        assert_same(load_dcp(tmp_path / "out", tmp_path), make_state())

    def test_some_tensors(self, sharded, tmp_path):
        sharded.export("HEAD", tmp_path / "x.pt", tensors="model")
        assert_same(
            torch.load(tmp_path / "x.pt", weights_only=True), {"model": make_state()["model"]}
        )

    def test_a_single_file_holds_shards(self, sharded, tmp_path):
        sharded.export("HEAD", tmp_path / "x.safetensors", path="ckpt/__1_0.distcp")
        assert any(name.startswith("model.rows[") for name in load_file(tmp_path / "x.safetensors"))

    def test_read_as_whole_tensors(self, sharded):
        found = dict(sharded.tensors("HEAD", tensors="model.rows", framework="torch"))
        assert_same(found, {"model.rows": FLAT["model.rows"]})


def test_into_plain_and_sharded_models(sharded, tmp_path):
    """Real ``dcp.load``, the shards of each rank of a mesh in turn."""
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor
    from torch.testing._internal.distributed.fake_pg import FakeStore

    sharded.export("HEAD", tmp_path / "out", format="dcp")
    state = {"model": {"rows": torch.empty(5, 6)}, "step": 0}
    dcp.load(state, checkpoint_id=tmp_path / "out", no_dist=True)
    assert_same(state, {"model": {"rows": FLAT["model.rows"]}, "step": 7})
    for rank in range(4):
        dist.init_process_group("fake", rank=rank, world_size=4, store=FakeStore())
        try:
            mesh = init_device_mesh("cpu", (2, 2))
            live = distribute_tensor(torch.empty(5, 6), mesh, [Shard(0), Shard(1)])
            dcp.load({"model": {"rows": live}}, checkpoint_id=tmp_path / "out", no_dist=True)
            row, column = divmod(rank, 2)
            part = FLAT["model.rows"][3 * row : 3 * row + 3, 3 * column : 3 * column + 3]
            assert_same(live.to_local(), part)
        finally:
            dist.destroy_process_group()


class TestOtherSources:
    def test_files_by_name(self, repo, root, tmp_path):
        one, two = {"a.w": torch.ones(3)}, {"b": torch.arange(4).reshape(2, 2).T}
        save_file(one, root / "one.safetensors")
        torch.save(two, root / "two.pt")
        repo.commit("two files", paths=".")
        repo.export("HEAD", tmp_path / "x.bin")
        found = torch.load(tmp_path / "x.bin", weights_only=True)
        assert_same(found, one | two)
        assert found["b"].is_contiguous()
        repo.export("HEAD", tmp_path / "out", format="dcp")
        assert_same(load_dcp(tmp_path / "out", tmp_path), one | two)
        save_file(one, root / "three.safetensors")
        repo.commit("a.w again", paths=".")
        with pytest.raises(ConflictError, match=r"two files hold 'a\.w'"):
            repo.export("HEAD", tmp_path / "y.pt")
        assert not (tmp_path / "y.pt").exists()

    def test_a_training_state(self, repo, tmp_path):
        model = torch.nn.Linear(2, 3)
        optimizer = torch.optim.AdamW(model.parameters())
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        state = {
            "model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": 3,
            "rng": torch.get_rng_state(), "seen": {1, 2}, "tied": [model.weight.data[1:]],
        }  # fmt: skip
        repo.commit_state(state, message="state")
        kept = {key: value for key, value in repo.load_state("HEAD").items() if key != "seen"}
        result = repo.export("HEAD", tmp_path / "x.pt")
        assert result.left_out == ("seen",)
        assert_same(torch.load(tmp_path / "x.pt", weights_only=True), kept)
        assert repo.export("HEAD", tmp_path / "out", format="dcp").left_out == ("seen",)
        found = load_dcp(tmp_path / "out", tmp_path)
        states = found["optimizer"].pop("state")
        assert_same({int(key): one for key, one in states.items()}, kept["optimizer"].pop("state"))
        assert_same(found, kept)

    def test_objects_that_are_no_plain_data(self, repo, root, tmp_path):
        state = {"w": torch.ones(2), "deep": {"size": torch.Size([1]), "lr": 0.5}, "kind": {1, 2}}
        save_dcp(state, root / "ckpt")
        repo.commit("objects", paths="ckpt")
        result = repo.export("HEAD", tmp_path / "x.pt")
        assert set(result.left_out) == {"deep.size", "kind"}
        assert_same(
            torch.load(tmp_path / "x.pt", weights_only=True),
            {"w": torch.ones(2), "deep": {"lr": 0.5}},
        )
        assert repo.export("HEAD", tmp_path / "out", format="dcp").left_out == ()
        assert_same(load_dcp(tmp_path / "out", tmp_path, safe=False), state)

    def test_paths_that_contradict_each_other(self, repo, root, tmp_path):
        import torch.distributed.checkpoint as dcp

        planner = dcp.DefaultSavePlanner(flatten_state_dict=False)
        state = {"a": torch.ones(1), "a.b": torch.zeros(1)}
        dcp.save(state, checkpoint_id=root / "ckpt", planner=planner, no_dist=True)
        repo.commit("flat", paths="ckpt")
        repo.export("HEAD", tmp_path / "x.pt")
        assert_same(torch.load(tmp_path / "x.pt", weights_only=True), state)


class TestLargeTensors:
    @pytest.fixture
    def wide(self, small, root):
        """A tensor whose two halves of columns are shards of many chunks."""
        import torch.distributed.checkpoint as dcp
        from torch.distributed.checkpoint.metadata import ChunkStorageMetadata

        whole = torch.from_numpy(np.random.default_rng(0).standard_normal((64, 4096), np.float32))

        class Columns(torch.Tensor):
            """Tells DCP that it has two shards, as a sharded tensor does."""

            def __create_write_items__(self, fqn, _):
                from torch.distributed.checkpoint.metadata import MetadataIndex, TensorProperties
                from torch.distributed.checkpoint.planner import (
                    TensorWriteData,
                    WriteItem,
                    WriteItemType,
                )

                return [
                    WriteItem(
                        index=MetadataIndex(fqn, torch.Size([0, at]), number),
                        type=WriteItemType.SHARD,
                        tensor_data=TensorWriteData(
                            chunk=box,
                            properties=TensorProperties(self.dtype),
                            size=self.size(),
                        ),
                    )
                    for number, (at, box) in enumerate(_halves(ChunkStorageMetadata))
                ]

            def __create_chunk_list__(self):
                return [box for _, box in _halves(ChunkStorageMetadata)]

            def __get_tensor_shard__(self, index):
                at = index.offset[1]
                return whole[:, at : at + 2048].clone()

        state = {"wide": whole.as_subclass(Columns)}
        dcp.save(state, checkpoint_id=root / "ckpt", no_dist=True)
        small.commit("wide", paths="ckpt")
        return small, whole

    def test_columns_of_many_chunks(self, wide, tmp_path):
        repo, whole = wide
        assert len(repo.ls(tensors="wide*")[0].tensors) == 2
        repo.export("HEAD", tmp_path / "x.safetensors")
        assert_same(load_file(tmp_path / "x.safetensors"), {"wide": whole})

    def test_items_are_cut_by_rows(self, wide, tmp_path, monkeypatch):
        repo, whole = wide
        monkeypatch.setattr(model_files, "BOX_BYTES", 10 * 4096 * 4 + 5)
        repo.export("HEAD", tmp_path / "out", format="dcp")
        metadata = parse_dcp_metadata((tmp_path / "out" / ".metadata").read_bytes())
        assert [box.sizes[0] for box in metadata.entries["wide"].boxes] == [10] * 6 + [4]
        assert_same(load_dcp(tmp_path / "out", tmp_path), {"wide": whole})

    def test_memory_is_chunks_in_flight(self, wide, tmp_path):
        repo, whole = wide
        repo.export("HEAD", tmp_path / "warm.pt")
        for name, kind in (("x.pt", None), ("x.safetensors", None), ("out", "dcp")):
            tracemalloc.start()
            try:
                repo.export("HEAD", tmp_path / name, format=kind)
                _, peak_bytes = tracemalloc.get_traced_memory()
            finally:
                tracemalloc.stop()
            assert peak_bytes < whole.nbytes / 2


def _halves(kind):
    return [(at, kind(torch.Size([0, at]), torch.Size([64, 2048]))) for at in (0, 2048)]


class TestHub:
    @pytest.fixture
    def model(self, repo, root):
        save_file(
            {f"layers.{n}": torch.full((4,), float(n)) for n in range(5)}, root / "m.safetensors"
        )
        repo.commit("model", paths=".")
        return repo

    def test_one_file(self, model, tmp_path):
        result = model.export("HEAD", tmp_path / "hub", format="safetensors")
        assert result.files == 1
        assert [one.name for one in (tmp_path / "hub").iterdir()] == ["model.safetensors"]

    def test_shards_and_their_index(self, model, root, tmp_path, monkeypatch):
        monkeypatch.setattr("mvc.operations.export.SHARD_BYTES", 33)
        result = model.export("HEAD", tmp_path / "hub", format="safetensors")
        index = json.loads((tmp_path / "hub/model.safetensors.index.json").read_text())
        assert index["metadata"] == {"total_size": 80}
        assert sorted(set(index["weight_map"].values())) == [
            f"model-0000{n}-of-00003.safetensors" for n in (1, 2, 3)
        ]
        assert result.files == 4
        assert result.size_bytes == sum(one.stat().st_size for one in (tmp_path / "hub").iterdir())
        for name, file in index["weight_map"].items():
            assert name in load_file(tmp_path / "hub" / file)
        shutil.copytree(tmp_path / "hub", root / "hub")
        assert len(model.add("hub").added) == 4
        with pytest.raises(ConflictError, match="already exists"):
            model.export("HEAD", tmp_path / "hub", format="safetensors")
        model.export("HEAD", tmp_path / "hub", format="safetensors", force=True)


class TestFaults:
    @pytest.fixture
    def folder(self, root):
        return shutil.copytree(GOLDEN / "ranks-2", root / "ckpt")

    @pytest.mark.parametrize(
        ("old", "new", "words"),
        [
            # The first box of ``columns`` ends one column early, or late.
            (b"K\x03K\x04\x86", b"K\x03K\x03\x86", "lacks 'model.columns"),
            (b"K\x03K\x07\x86", b"K\x03K\x08\x86", "'model.columns' of ckpt leave gaps"),
        ],
    )
    def test_shards_that_do_not_cover_a_tensor(self, repo, folder, tmp_path, old, new, words):
        repo.add("ckpt")  # under the names that are right
        data = (folder / ".metadata").read_bytes()
        assert data.count(old) == 1
        (folder / ".metadata").write_bytes(data.replace(old, new))
        repo.add("ckpt/.metadata")
        repo.commit("wrong")
        for name in ("x.safetensors", "x.pt"):
            with pytest.raises(FormatError, match=words):
                repo.export("HEAD", tmp_path / name)
            assert not (tmp_path / name).exists()

    def test_shards_that_were_compressed(self, repo, folder, tmp_path):
        found = parse_dcp_metadata((folder / ".metadata").read_bytes())
        files = {
            file: tuple(replace(item, transforms=("stream.zstd/1",)) for item in items)
            for file, items in found.files.items()
        }
        (folder / ".metadata").write_bytes(encode_dcp_metadata(replace(found, files=files)))
        warnings = repo.add("ckpt").warnings
        assert (
            "its items went through stream.zstd/1: they are stored as bytes"
            in dict(warnings).values()
        )
        repo.commit("compressed")
        with pytest.raises(UnsupportedError, match="of ckpt went through stream"):
            repo.export("HEAD", tmp_path / "x.pt")

    @on_disk
    @given(st.data())
    def test_damaged_metadata(self, repo, folder, tmp_path, data):
        """Whatever it says, the export is right, or refused in one of our own words."""
        sound = (GOLDEN / "ranks-2" / ".metadata").read_bytes()
        at = data.draw(st.integers(0, len(sound) - 1))
        value = data.draw(st.binary(min_size=1, max_size=2))
        (folder / ".metadata").write_bytes(sound[:at] + value + sound[at + len(value) :])
        repo.add("ckpt")
        repo.commit("damaged", allow_empty=True)
        for name in ("x.pt", "x.safetensors"):
            with suppress(MvcError):
                repo.export("HEAD", tmp_path / name, force=True)

    def test_types_that_torch_has_not(self, repo, root, tmp_path):
        header = {"q": {"dtype": "F4", "shape": [4], "data_offsets": [0, 2]}}
        text = json.dumps(header).encode()
        (root / "m.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + b"ab")
        repo.commit("packed", paths=".")
        for name, kind in (("x.pt", None), ("out", "dcp")):
            with pytest.raises(UnsupportedError, match="is F4, for which torch has no type"):
                repo.export("HEAD", tmp_path / name, format=kind)
            assert not (tmp_path / name).exists()

    def test_damage_leaves_nothing(self, small, root, tmp_path):
        save_file({"w": torch.arange(9000.0)}, root / "m.safetensors")
        small.commit("model", paths=".")
        (pack,) = (root / ".mvc/chunks/packs").glob("*.pack")
        flip(pack)
        for name, kind in (("x.pt", None), ("out", "dcp"), ("hub", "safetensors")):
            with pytest.raises(CorruptionError):
                small.export("HEAD", tmp_path / name, format=kind)
        assert not [one for one in tmp_path.iterdir() if one.is_file()]
        assert [*(tmp_path / "out").iterdir()] == [*(tmp_path / "hub").iterdir()] == []

    def test_names_and_places(self, sharded, root, tmp_path):
        for name, kind in (("x.pt", "safetensors"), ("x.safetensors", "torch"), ("x.bin", "dcp")):
            with pytest.raises(UsageError, match="whatever its name says"):
                sharded.export("HEAD", tmp_path / name, format=kind)
        with pytest.raises(UsageError, match="unknown format 'onnx'"):
            sharded.export("HEAD", tmp_path / "x", format="onnx")
        with pytest.raises(UsageError, match="is a folder"):
            sharded.export("HEAD", tmp_path, format="torch")
        with pytest.raises(UsageError, match="the repository itself"):
            sharded.export("HEAD", root / ".mvc/x", format="dcp")
        sharded.export("HEAD", tmp_path / "out", format="dcp")
        with pytest.raises(ConflictError, match="already exists"):
            sharded.export("HEAD", tmp_path / "out", format="dcp")
        sharded.export("HEAD", tmp_path / "out", format="dcp", tensors="model.one", force=True)
        assert_same(load_dcp(tmp_path / "out", tmp_path), {"model": {"one": FLAT["model.one"]}})
