"""Saves of torch_checkpointing are commits, and what it loads comes from them."""

from __future__ import annotations

import io
import os

import pytest
import torch

from mvc import GateError, Repo

library = pytest.importorskip("torch_checkpointing")
ours = pytest.importorskip("mvc_hooks.torch_checkpointing")

SYNC = library.SyncCheckpointSaverConfig()
pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore"),  # the library's own
]


def make_state(step):
    generator = torch.Generator().manual_seed(1)
    weight = torch.randn(64, 32, generator=generator)
    return {
        "model": {"layer": {"weight": weight, "bias": torch.full((7,), float(step))}},
        "optimizer": {"state": {0: {"step": torch.tensor(float(step))}}, "groups": [{"lr": 0.1}]},
        "step": step,
    }


def make_manager(folder, **options):
    config = library.CheckpointManager.Config(
        storage_config=ours.MvcStorageConfig(folder), **options
    )
    return library.CheckpointManager(config)


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "run"


@pytest.fixture
def saved(folder):
    manager = make_manager(folder, save=SYNC)
    for step in (100, 200):
        manager.save(str(folder / f"step_{step}"), make_state(step))
    manager.close()
    return ours.MvcStorageConfig(folder).create_storage()


def assert_loads(folder, step):
    manager = make_manager(folder, save=SYNC)
    target = make_state(0)
    target["model"]["layer"]["weight"].zero_()
    found = manager.load(str(folder / f"step_{step}"), into=target)
    wanted = make_state(step)
    assert found["step"] == step
    assert torch.equal(target["model"]["layer"]["weight"], wanted["model"]["layer"]["weight"])
    assert torch.equal(target["model"]["layer"]["bias"], wanted["model"]["layer"]["bias"])
    assert torch.equal(found["optimizer"]["state"][0]["step"], torch.tensor(float(step)))
    manager.close()


def test_each_save_is_a_commit_that_loads(folder, saved):
    repo = Repo.open(folder)
    entries = list(repo.log())
    assert [(one.annotations.step, one.info.message.splitlines()[0]) for one in entries] == [
        (200, "step_200"),
        (100, "step_100"),
    ]
    assert {one.path for one in repo.ls()} == {
        f"checkpoint/{name}_0.pt" for name in ("model", "optimizer", "step")
    }
    assert repo.status().is_clean
    assert_loads(folder, 100)
    assert_loads(folder, 200)


@pytest.mark.slow
def test_a_save_of_its_own_process(folder):
    with_async = make_manager(folder)
    staging, writing = with_async.save(str(folder / "step_7"), make_state(7)), None
    assert staging is not None or writing is None
    with_async.close()
    assert [one.annotations.step for one in Repo.open(folder).log()] == [7]
    assert_loads(folder, 7)


def test_files_of_commits_are_there_to_the_byte(folder, saved):
    assert saved.ls(folder) == ["step_100", "step_200"]
    assert saved.ls(folder / "step_100") == ["model_0.pt", "optimizer_0.pt", "step_0.pt"]
    assert saved.isdir(folder / "step_100")
    assert not saved.isdir(folder / "step_100" / "model_0.pt")
    assert not saved.exists(folder / "step_300")
    assert not saved.exists(folder / "step_100" / "model_1.pt")
    assert saved.glob(f"{folder}/step_*") == [f"{folder}/step_100", f"{folder}/step_200"]
    newest = folder / "step_200" / "model_0.pt"
    data = saved.read(newest)
    assert data == (folder / "checkpoint" / "model_0.pt").read_bytes()
    assert saved.getsize(newest) == len(data)
    with saved.stream_read(newest, ours.ReadArgs(pre_read_full_file=False)) as stream:
        stream.seek(10)
        assert stream.read(20) == data[10:30]
    older = torch.load(io.BytesIO(saved.read(folder / "step_100" / "model_0.pt")))
    assert torch.equal(older["layer"]["bias"], torch.full((7,), 100.0))


def test_what_was_committed_stays(folder, saved):
    for call in (
        lambda: saved.write(folder / "step_100" / "model_0.pt", b"x"),
        lambda: saved.mkdir(folder / "step_100"),
        lambda: saved.rmdir(folder / "step_200"),
        lambda: saved.delete(folder / "step_100" / "model_0.pt"),
    ):
        with pytest.raises(FileExistsError, match="a commit has that checkpoint"):
            call()
    saved.mkdir(folder / "tmp_x")
    with pytest.raises(FileExistsError):
        saved.rename(folder / "tmp_x", folder / "step_100", is_directory=True)
    for path in (folder / ".mvc" / "HEAD", folder / "checkpoint" / "model_0.pt"):
        with pytest.raises(PermissionError):
            saved.write(path, b"x")
    with pytest.raises(FileNotFoundError):
        saved.read(folder.parent / "elsewhere")
    with pytest.raises(FileNotFoundError):
        saved.read(folder / "step_100" / "nothing")


def test_a_rename_is_as_the_library_defines_it(folder):
    storage = ours.MvcStorageConfig(folder).create_storage()
    for name in ("a", "b", "c"):
        storage.mkdir(folder / name)
        storage.write(folder / name / "file", name.encode())
    storage.write(folder / "plain", b"1")
    storage.write(folder / "other", b"2")
    with pytest.raises(OSError, match="not empty"):
        storage.rename(folder / "a", folder / "b", is_directory=True)
    with pytest.raises(OSError, match="Not a directory"):
        storage.rename(folder / "a", folder / "plain", is_directory=True)
    with pytest.raises(OSError, match="directory"):
        storage.rename(folder / "plain", folder / "a")
    storage.rename(folder / "plain", folder / "other")
    assert storage.read(folder / "other") == b"1"
    storage.mkdir(folder / "empty")
    storage.rename(folder / "a", folder / "empty", is_directory=True)
    assert storage.read(folder / "empty" / "file") == b"a"
    assert not os.path.lexists(folder / "a")
    storage.rename(folder / "b", folder / "step_3", is_directory=True)
    assert storage.read(folder / "empty" / "file") == b"a"
    assert storage.read(folder / "step_3" / "file") == b"b"


def test_files_that_no_commit_has_are_not_replaced(folder):
    Repo.init(folder)
    (folder / "checkpoint").mkdir()
    (folder / "checkpoint" / "mine.pt").write_bytes(b"mine")
    storage = ours.MvcStorageConfig(folder).create_storage()
    storage.mkdir(folder / "tmp")
    with pytest.raises(FileExistsError, match="that no commit has"):
        storage.rename(folder / "tmp", folder / "step_1", is_directory=True)
    assert (folder / "checkpoint" / "mine.pt").read_bytes() == b"mine"


def test_a_save_that_is_refused_can_be_made_again(folder, saved):
    Repo.open(folder).set_config("gate.nan", "0")
    source = folder / "tmp_step_300"
    saved.mkdir(source)
    torch.save({"w": torch.full((3,), torch.nan)}, source / "model_0.pt")
    with pytest.raises(GateError):
        saved.rename(source, folder / "step_300", is_directory=True)
    assert saved.ls(folder) == ["step_100", "step_200", "tmp_step_300"]
    torch.save({"w": torch.ones(3)}, source / "model_0.pt")
    saved.rename(source, folder / "step_300", is_directory=True)
    assert saved.ls(folder) == ["step_100", "step_200", "step_300"]
    assert saved.ls(folder / "step_300") == ["model_0.pt"]
