"""Models wherever they are: the same tensors from revisions, the worktree, files and folders."""

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from mvc import CorruptionError, FormatError, NotFoundError, UsageError
from mvc.workspace.models import open_model

VALUES = np.arange(3000, dtype="f4").reshape(30, 100)


@pytest.fixture
def stored(repo, context):
    """A checkpoint of two tensors, committed, and cut every 4,096 bytes."""
    repo.set_config("mvc.chunkbytes", "4096")
    context.forget_settings()
    save_file({"b": VALUES * 2, "a": VALUES}, repo.worktree / "m.safetensors")
    (repo.worktree / "notes.txt").write_text("x")
    repo.add(["m.safetensors", "notes.txt"])
    repo.commit("m")
    return repo


def _values(tensor):
    data = tensor.open()(0, tensor.size_bytes)
    return data.view("f4").reshape(tensor.view.shape)


@pytest.mark.parametrize("operand", ["HEAD", "main:m.safetensors", None])
def test_sides_of_a_repository_read_the_same_and_know_ids(stored, context, operand):
    with open_model(context, operand) as model:
        tensors = {tensor.name: tensor for tensor in model.tensors}
        assert sorted(tensors) == ["a", "b"]
        assert np.array_equal(_values(tensors["a"]), VALUES)
        assert tensors["a"].elements == 3000
        assert tensors["a"].id is not None
        assert tensors["a"].id != tensors["b"].id


def test_a_part_of_a_tensor_across_chunks(stored, context):
    with open_model(context, "HEAD") as model:
        tensor = next(one for one in model.tensors if one.name == "a")
        part = tensor.open()(4000, 7996).view("f4")
        assert np.array_equal(part, VALUES.reshape(-1)[1000:2999])


def test_a_changed_file_of_the_worktree_has_no_ids(stored, context):
    save_file({"a": VALUES + 1}, stored.worktree / "m.safetensors")
    with open_model(context, None) as model:
        (tensor,) = model.tensors
        assert tensor.id is None
        assert np.array_equal(_values(tensor), VALUES + 1)


def test_files_and_folders_need_no_repository(tmp_path):
    save_file({"a": VALUES}, tmp_path / "m-00001-of-00002.safetensors")
    np.savez(tmp_path / "m-00002-of-00002.npz", b=VALUES.T)
    (tmp_path / "link.safetensors").symlink_to("m-00001-of-00002.safetensors")
    with open_model(None, str(tmp_path / "link.safetensors")) as model:
        assert [tensor.name for tensor in model.tensors] == ["a"]
    (tmp_path / "link.safetensors").unlink()
    with open_model(None, tmp_path) as model:
        assert [tensor.name for tensor in model.tensors] == ["a", "b"]
        assert np.array_equal(_values(model.tensors[1]), VALUES.T)


def test_what_is_no_model(stored, context, tmp_path, monkeypatch):
    monkeypatch.chdir(stored.worktree)
    with (
        pytest.raises(NotFoundError, match="neither a revision nor a file"),
        open_model(context, "no"),
    ):
        pass
    with pytest.raises(NotFoundError, match="has no file 'no'"), open_model(context, "HEAD:no"):
        pass
    with pytest.raises(NotFoundError, match="does not exist"), open_model(None, "no"):
        pass
    with (
        pytest.raises(FormatError, match="no tensor can be found"),
        open_model(context, "notes.txt"),
    ):
        pass
    Path("main").touch()
    with pytest.raises(UsageError, match="both a revision and a path"), open_model(context, "main"):
        pass


def test_a_damaged_chunk_is_never_handed_out(stored, context):
    for pack in (stored.worktree / ".mvc" / "chunks").rglob("*.pack"):
        pack.chmod(0o644)
        data = bytearray(pack.read_bytes())
        data[len(data) // 2] ^= 1
        pack.write_bytes(bytes(data))
    with open_model(context, "HEAD") as model, pytest.raises(CorruptionError):
        for tensor in model.tensors:
            tensor.open()(0, tensor.size_bytes)
