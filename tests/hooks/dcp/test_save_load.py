"""One process saves and loads: what the commit holds, and what comes back, as DCP's own tests ask."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint.default_planner import (
    DefaultLoadPlanner,
    DefaultSavePlanner,
)
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import TensorWriteData, WriteItem, WriteItemType
from torch.distributed.checkpoint.state_dict_loader import _load_state_dict_from_keys

from mvc import ConflictError, FormatError, NotFoundError, Repo, UsageError
from mvc_hooks.dcp import MvcReader, MvcWriter
from support.dcp_extension import Turning, make_registry

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is")


class Odd:
    """No plain data."""

    def __eq__(self, other):
        return type(other) is Odd

    __hash__ = None


class Part:
    """The first half of a tensor, as DTensors say it of themselves."""

    def __create_write_items__(self, name, _):
        half, whole = (torch.Size([size]) for size in (2, 4))
        properties = TensorProperties(torch.float32)
        data = TensorWriteData(ChunkStorageMetadata(torch.Size([0]), half), properties, whole)
        return [WriteItem(MetadataIndex(name, [0]), WriteItemType.SHARD, tensor_data=data)]


def make_state():
    torch.manual_seed(0)
    return {
        "model": {"w": torch.randn(30, 20), "half": torch.randn(5).bfloat16(), "scale": torch.tensor(2.0)},
        "optimizer": {
            "state": {0: {"m": torch.randn(30, 20), "step": torch.tensor(4.0)}},
            "param_groups": [{"lr": 0.1, "betas": (0.9, 0.99), "params": [0]}],
        },
        "loader": {"rank_0": b"position" * 400, "index": 7, "array": np.arange(4)},
        "turned": torch.randn(6, 4).t(),
        "step": 12,
    }  # fmt: skip


def emptied(value):
    """Return a state of the same form, to be loaded into."""
    if isinstance(value, dict):
        return {key: emptied(one) for key, one in value.items()}
    if isinstance(value, list):
        return [emptied(one) for one in value]
    return torch.zeros_like(value) if isinstance(value, torch.Tensor) else None


def assert_same(one, other):
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            assert_same(one[key], other[key])
    elif isinstance(one, (list, tuple)):
        assert len(one) == len(other)
        for pair in zip(one, other, strict=True):
            assert_same(*pair)
    elif isinstance(one, torch.Tensor):
        assert one.dtype == other.dtype
        assert torch.equal(one, other)
    elif isinstance(one, np.ndarray):
        assert np.array_equal(one, other)
    else:
        assert one == other


def blobs_of(repo, revision="HEAD"):
    return {info.path: info.blob for info in repo.ls(revision) if info.path != "state.json"}


class TestTheCommit:
    def test_it_is_the_one_of_commit_state(self, tmp_path):
        state = make_state()
        dcp.save(state, storage_writer=MvcWriter(tmp_path / "run"))
        repo = Repo(tmp_path / "run")
        repo.commit_state(state, message="again")
        assert blobs_of(repo, "HEAD~1") == blobs_of(repo)
        assert "optimizer.safetensors" in blobs_of(repo)
        saved = repo.load_state("HEAD~1")
        saved["optimizer"]["state"] = {0: saved["optimizer"]["state"]["0"]}  # DCP's keys are text
        assert_same(saved, state)
        assert list(saved) == list(state)

    def test_a_model_by_itself_is_one_file(self, tmp_path):
        model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
        dcp.save(model.state_dict(), storage_writer=MvcWriter(tmp_path))
        assert [info.path for info in Repo(tmp_path).ls()] == ["model.safetensors", "state.json"]

    def test_tied_tensors_stay_tied(self, tmp_path):
        weight = torch.randn(8, 4)
        state = {"model": {"embed": weight, "head": weight}}
        dcp.save(state, storage_writer=MvcWriter(tmp_path))
        repo = Repo(tmp_path)
        loaded = repo.load_state()["model"]
        assert loaded["embed"].data_ptr() == loaded["head"].data_ptr()
        target = emptied(state)
        dcp.load(target, storage_reader=MvcReader(tmp_path))
        assert_same(target, state)

    def test_what_it_says(self, tmp_path):
        writer = MvcWriter(tmp_path, branch="dcp", metrics={"loss": 0.5}, meta={"host": "a"})
        metadata = dcp.save(
            {"a": torch.ones(2)}, storage_writer=writer, checkpoint_id="ckpt/step-40"
        )
        repo = Repo(tmp_path)
        (entry,) = repo.log("dcp")
        assert entry.info.id == writer.commit == metadata.storage_meta.save_id
        assert (entry.annotations.step, entry.annotations.metrics) == (40, {"loss": 0.5})
        assert entry.info.message.startswith("ckpt/step-40\n")
        dcp.save(
            {"a": torch.ones(2)}, storage_writer=MvcWriter(f"{tmp_path}", message="mine", step=3)
        )
        assert next(repo.log()).info.message.startswith("mine\n")

    def test_the_model_at_the_top_of_a_state(self, tmp_path):
        state = {
            "w": torch.randn(3),
            "b": torch.randn(2),
            "optimizer": {"m": torch.randn(4)},
            "n": 1,
        }
        dcp.save(state, storage_writer=MvcWriter(tmp_path, root="model"))
        assert set(blobs_of(Repo(tmp_path))) == {"model.safetensors", "optimizer.safetensors"}
        target = emptied(state)
        dcp.load(target, storage_reader=MvcReader(tmp_path, root="model"))
        assert_same(target, state)

    def test_nothing_at_all(self, tmp_path):
        dcp.save({}, storage_writer=MvcWriter(tmp_path))
        assert Repo(tmp_path).load_state() == {}
        dcp.load({}, storage_reader=MvcReader(tmp_path))

    def test_other_planners(self, tmp_path):
        class Halving(DefaultSavePlanner):
            def set_up_planner(self, state_dict, storage_meta=None, is_coordinator=False):
                halved = {f"half.{key}": value.half() for key, value in state_dict.items()}
                super().set_up_planner(halved, storage_meta, is_coordinator)

        weight = torch.randn(5)
        dcp.save({"w": weight}, storage_writer=MvcWriter(tmp_path), planner=Halving())
        target = {"half.w": torch.zeros(5)}  # of another dtype: DCP converts
        dcp.load(target, storage_reader=MvcReader(tmp_path))
        assert torch.equal(target["half.w"], weight.half().float())

    def test_nothing_is_flattened(self, tmp_path):
        """Then a nested dict is one object, tensors and all."""
        state = {"a": {"b": torch.ones(3), "n": 5}, "w": torch.ones(2)}
        planner = DefaultSavePlanner(flatten_state_dict=False)
        dcp.save(state, storage_writer=MvcWriter(tmp_path), planner=planner)
        assert_same(Repo(tmp_path).load_state(), state)
        target = emptied(state)
        dcp.load(target, storage_reader=MvcReader(tmp_path))
        assert_same(target, state)


class TestLoading:
    @pytest.fixture
    def saved(self, tmp_path):
        state = make_state()
        dcp.save(state, storage_writer=MvcWriter(tmp_path, step=1))
        return state

    def test_all_of_it(self, tmp_path, saved):
        target = emptied(saved)
        dcp.load(target, storage_reader=MvcReader(tmp_path))
        assert_same(target, saved)

    def test_some_of_it(self, tmp_path, saved):
        target = {"model": {"w": torch.zeros(30, 20), "new": torch.ones(2)}}
        with pytest.raises(dcp.api.CheckpointException, match="Missing key"):
            dcp.load(target, storage_reader=MvcReader(tmp_path))
        planner = DefaultLoadPlanner(allow_partial_load=True)
        dcp.load(target, storage_reader=MvcReader(tmp_path), planner=planner)
        assert_same(target["model"]["w"], saved["model"]["w"])
        assert_same(target["model"]["new"], torch.ones(2))

    def test_without_a_state_to_load_into(self, tmp_path, saved):
        loaded = _load_state_dict_from_keys(storage_reader=MvcReader(tmp_path))
        loaded["optimizer"]["state"] = {0: loaded["optimizer"]["state"]["0"]}
        assert_same(loaded, saved)
        loaded = _load_state_dict_from_keys({"model"}, storage_reader=MvcReader(tmp_path))
        assert_same(loaded, {"model": saved["model"]})

    def test_another_shape(self, tmp_path, saved):
        target = {"model": {"w": torch.zeros(3, 20)}}
        with pytest.raises(dcp.api.CheckpointException, match="Size mismatch"):
            dcp.load(target, storage_reader=MvcReader(tmp_path))

    def test_targets_of_any_form(self, tmp_path, saved):
        target = {
            "model": {"w": torch.zeros(20, 30).t(), "half": torch.zeros(5, dtype=torch.float64)}
        }
        dcp.load(target, storage_reader=MvcReader(tmp_path))
        assert torch.equal(target["model"]["w"], saved["model"]["w"])
        assert torch.equal(target["model"]["half"], saved["model"]["half"].double())

    def test_an_older_commit(self, tmp_path, saved):
        repo = Repo(tmp_path)
        dcp.save({"model": {"w": torch.zeros(2)}}, storage_writer=MvcWriter(tmp_path, step=200))
        readers = {
            "revision": (MvcReader(tmp_path, "HEAD~1"), None),
            "id": (MvcReader(tmp_path), repo.resolve("HEAD~1")),
            "step": (MvcReader(tmp_path), "checkpoints/step-1"),
            "repository": (MvcReader(), f"{tmp_path}@HEAD~1"),
            "opened": (MvcReader(repo), "main~1"),
        }
        for reader, name in readers.values():
            target = {"model": {"w": torch.zeros(30, 20)}}
            dcp.load(target, storage_reader=reader, checkpoint_id=name)
            assert_same(target["model"]["w"], saved["model"]["w"])

    def test_what_is_not_there(self, tmp_path, saved):
        with pytest.raises(dcp.api.CheckpointException, match="nope"):
            dcp.load({"a": torch.ones(1)}, storage_reader=MvcReader(tmp_path, "nope"))
        with pytest.raises(NotFoundError):
            MvcReader(tmp_path, "nope").read_metadata()
        with pytest.raises(UsageError, match="no repository"):
            MvcReader().read_metadata()

    def test_metadata(self, tmp_path, saved):
        metadata = MvcReader(tmp_path).read_metadata()
        weight = metadata.state_dict_metadata["model.w"]
        assert isinstance(weight, TensorStorageMetadata)
        assert (weight.size, weight.properties.dtype) == (torch.Size([30, 20]), torch.float32)
        assert metadata.planner_data["optimizer.state.0.m"] == ("optimizer", "state", "0", "m")
        assert metadata.planner_data["optimizer.param_groups.0.lr"] == (
            "optimizer",
            "param_groups",
            0,
            "lr",
        )
        assert metadata.storage_meta.save_id == Repo(tmp_path).resolve("HEAD")

    def test_commits_of_others(self, tmp_path, saved):
        repo = Repo(tmp_path)
        state = make_state()
        repo.commit_state(state, message="as one state")
        target = {key: value for key, value in emptied(state).items() if key != "loader"}
        dcp.load(target, storage_reader=MvcReader(tmp_path))
        assert_same(target["optimizer"], state["optimizer"])
        save_file(state["model"], tmp_path / "weights.safetensors")
        repo.commit("as a file", paths="weights.safetensors")
        target = emptied(state["model"])
        dcp.load(target, storage_reader=MvcReader(tmp_path, paths=["weights.safetensors"]))
        assert_same(target, state["model"])
        target = emptied(state["model"])
        dcp.load(target, storage_reader=MvcReader(tmp_path, root="model"))
        assert_same(target, state["model"])


class TestObjects:
    def test_what_is_not_plain_data_is_loaded_on_demand_only(self, tmp_path):
        state = {"model": {"w": torch.ones(2)}, "odd": {"thing": Odd(), "n": 1}}
        dcp.save(state, storage_writer=MvcWriter(tmp_path))
        target = {"model": {"w": torch.zeros(2)}, "odd": {"n": None}}
        dcp.load(target, storage_reader=MvcReader(tmp_path))
        assert target["odd"] == {"n": 1}
        target["odd"]["thing"] = None
        with pytest.raises(
            dcp.api.CheckpointException, match=r"'odd\.thing' is stored as a pickled object"
        ):
            dcp.load(target, storage_reader=MvcReader(tmp_path))
        dcp.load(target, storage_reader=MvcReader(tmp_path, allow_pickle=True))
        assert target["odd"]["thing"] == Odd()

    def test_a_forged_pickle_runs_nothing(self, tmp_path):
        ran = tmp_path / "ran"

        class Evil:
            def __reduce__(self):
                return (open, (str(ran), "w"))

        repo = Repo.init(tmp_path / "run")
        repo.commit_state({"a": {"torch.save": pickle.dumps(Evil())}}, message="forged")
        target = {"a": None}
        with pytest.raises(dcp.api.CheckpointException, match="pickled object"):
            dcp.load(target, storage_reader=MvcReader(repo))
        assert not ran.exists()

    def test_a_part_alone_is_no_state(self, tmp_path):
        with pytest.raises(dcp.api.CheckpointException, match="only a part of tensor 'a' is here"):
            dcp.save({"a": Part()}, storage_writer=MvcWriter(tmp_path))
        assert Repo(tmp_path).head.commit is None

    def test_none_text_and_nested_plain_data(self, tmp_path):
        state = {
            "a": None,
            "b": "text",
            "c": (1, (2.5, "x")),
            "d": [1, [2]],
            "e": float("nan"),
            "f": {1, 2},
        }
        dcp.save(state, storage_writer=MvcWriter(tmp_path))
        target = dict.fromkeys(state)
        dcp.load(target, storage_reader=MvcReader(tmp_path))
        assert target["e"] != target["e"]
        assert {**target, "e": 0} == {**state, "e": 0}


class TestExtensions:
    def test_streams_come_back_through_them(self, tmp_path):
        state = make_state()
        writer = MvcWriter(tmp_path, _extensions=[Turning()])
        dcp.save(state, storage_writer=writer)
        (stream,) = [
            one
            for one in Repo(tmp_path).load_state()["torch.streams"]
            if one["name"] == "model.half"
        ]
        turned = bytes(255 - byte for byte in stream["data"])
        assert turned == state["model"]["half"].view(torch.uint8).numpy().tobytes()
        target = emptied(state)
        del target["loader"]["array"]  # what torch unpickles with care is no array
        reader = MvcReader(tmp_path, _extension_registry=make_registry())
        dcp.load(target, storage_reader=reader)
        assert_same(target["model"], state["model"])
        assert_same(target["optimizer"], state["optimizer"])
        assert_same(target["loader"]["rank_0"], state["loader"]["rank_0"])
        with pytest.raises(dcp.api.CheckpointException, match="turning"):
            dcp.load(target, storage_reader=MvcReader(tmp_path))

    @pytest.mark.parametrize(
        "wrong",
        [
            {"name": 3},
            {"dtype": "save"},
            {"sizes": "x"},
            {"path": ()},
            {"more": 1},
            {"shape": (1.5,)},
        ],
    )
    def test_streams_that_are_none(self, tmp_path, wrong):
        repo = Repo.init(tmp_path)
        places = dict.fromkeys(("extensions", "shape", "offsets", "sizes"), ())
        stream = {"name": "x", "path": ["x"], "dtype": "float32", "data": b"", **places}
        repo.commit_state({"torch.streams": [{**stream, **wrong}]}, message="forged")
        with pytest.raises(FormatError, match=r"streams|of no tensor"):
            MvcReader(tmp_path).read_metadata()
        repo.commit_state({"torch.streams": [3]}, message="forged")
        with pytest.raises(FormatError, match="something else than streams"):
            MvcReader(tmp_path).read_metadata()

    def test_a_stream_of_another_length(self, tmp_path):
        writer = MvcWriter(tmp_path, _extensions=[Turning()])
        dcp.save({"a": torch.ones(4)}, storage_writer=writer)
        repo = Repo(tmp_path)
        state = repo.load_state()
        state["torch.streams"][0]["data"] += b"more"
        repo.commit_state(state, message="forged")
        reader = MvcReader(tmp_path, _extension_registry=make_registry())
        with pytest.raises(dcp.api.CheckpointException, match="not its box's"):
            dcp.load({"a": torch.zeros(4)}, storage_reader=reader)


class TestTheProtocol:
    def test_a_writer_can_be_pickled_and_used_again(self, tmp_path):
        writer = pickle.loads(pickle.dumps(MvcWriter(tmp_path, step=1)))
        reader = pickle.loads(pickle.dumps(MvcReader(tmp_path)))
        for value in (1.0, 2.0):
            dcp.save({"a": torch.full((3,), value)}, storage_writer=writer)
            target = {"a": torch.zeros(3)}
            dcp.load(target, storage_reader=reader)
            assert target["a"].tolist() == [value] * 3
        assert len(list(Repo(tmp_path).log())) == 2

    def test_plans_are_kept(self, tmp_path):
        """With cached plans DCP sends none: what storage said about the first ones stays valid."""
        for value in (1.0, 2.0, 3.0):
            planner = DefaultSavePlanner(enable_plan_caching=True)
            planner._cached_plans_key = f"{tmp_path}"
            state = {"a": torch.full((3,), value), "n": int(value)}
            dcp.save(state, storage_writer=MvcWriter(tmp_path), planner=planner)
            assert Repo(tmp_path).load_state()["n"] == value
            assert Repo(tmp_path).load_state()["a"].tolist() == [value] * 3
        planner = DefaultSavePlanner(enable_plan_caching=True)
        planner._cached_plans_key = f"{tmp_path}"
        dcp.save({"b": torch.ones(1)}, storage_writer=MvcWriter(tmp_path), planner=planner)
        assert set(Repo(tmp_path).load_state()) == {"b"}

    def test_without_collectives(self, tmp_path):
        dcp.save({"a": torch.ones(3)}, storage_writer=MvcWriter(tmp_path), use_collectives=False)
        assert Repo(tmp_path).load_state()["a"].tolist() == [1.0] * 3

    def test_in_a_thread(self, tmp_path):
        state = {"a": torch.ones(1000)}
        future = dcp.async_save(state, storage_writer=MvcWriter(tmp_path))
        state["a"].zero_()  # was copied before that
        commit = future.result().storage_meta.save_id
        assert Repo(tmp_path).load_state(commit)["a"].sum() == 1000

    def test_ids(self, tmp_path):
        Repo.init(tmp_path)
        for name in ("step-1", str(tmp_path), tmp_path, "a/b"):
            assert MvcWriter.validate_checkpoint_id(name)
            assert MvcReader.validate_checkpoint_id(name)
        for name in ("", " ", "a\nb", 7, None):
            assert not MvcWriter.validate_checkpoint_id(name)
        dcp.save(
            {"a": torch.ones(1)}, storage_writer=MvcWriter(), checkpoint_id=f"{tmp_path}@other"
        )
        dcp.save({"a": torch.ones(1)}, storage_writer=MvcWriter(), checkpoint_id=tmp_path)
        assert {branch.name for branch in Repo(tmp_path).branches.list()} == {"main", "other"}
        with pytest.raises(UsageError, match="is not a repository"):
            dcp.save({}, storage_writer=MvcWriter(), checkpoint_id=tmp_path / "nowhere")

    def test_ranks_that_read_different_commits(self, tmp_path):
        Repo.init(tmp_path).commit_state({"a": torch.ones(1)}, message="a")
        reader = MvcReader(tmp_path)
        reader.set_up_storage_reader(reader.read_metadata(), True)
        plan = reader.prepare_local_plan(dcp.LoadPlan([]))
        assert reader.prepare_global_plan([plan, plan]) == [plan, plan]
        with pytest.raises(ConflictError, match="different commits"):
            reader.prepare_global_plan([plan, dcp.LoadPlan([], storage_data="other")])
