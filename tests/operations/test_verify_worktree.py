"""verify_worktree: the files of the worktree against a commit, tensor by tensor, to the bit."""

import json
import os
import shutil

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from mvc import ConflictError, CorruptionError, NotFoundError, ReleasedError, Repo
from mvc.operations import verify
from mvc.progress import reporting
from support.damage import flip
from support.models import write_model


def statuses(check):
    return {file.path: file.status for file in check.files}


def only(check):
    (file,) = check.files
    return file


def tensors_of(file):
    return {tensor.name: tensor for tensor in file.tensors}


def load(path):
    return {name: value.copy() for name, value in load_file(path).items()}


def as_torch(tensors):
    return {name: torch.from_numpy(value) for name, value in tensors.items()}


@pytest.fixture
def model(repo, root):
    """A committed model of several chunks a tensor, and a plain file."""
    repo.set_config("mvc.chunkbytes", "1024")
    (root / "config.json").write_text("{}")
    path = write_model(root / "model.safetensors")
    repo.commit("base", paths=".")
    return path


class TestSame:
    def test_stat_data_is_not_believed(self, repo, model):
        repo.status()
        stat = model.stat()
        flip(model, -5)
        os.utime(model, ns=(stat.st_atime_ns, stat.st_mtime_ns))
        assert not repo.verify_worktree().is_same

    @pytest.mark.parametrize("name", ["model.safetensors", "model.pt", "other.pt"])
    def test_another_format(self, repo, model, name):
        tensors = as_torch(load(model))
        model.unlink()
        torch.save(tensors, model.parent / name)
        check = repo.verify_worktree(paths="model.safetensors")
        assert check.is_same
        assert only(check).status == "same-tensors"
        assert only(check).found_in == (() if name == model.name else (name,))

    def test_transposed_sliced_and_tied_in_a_torch_file(self, repo, model):
        tensors = as_torch(load(model))
        torch.save(
            {
                **tensors,
                "layers.0.q": tensors["layers.0.q"].t().contiguous().t(),
                "layers.0.v": torch.stack([tensors["layers.0.v"], tensors["layers.1.v"]])[0],
            },
            model,
        )
        assert only(repo.verify_worktree(paths="model.safetensors")).status == "same-tensors"
        tensors["layers.0.q"][3, 4] += 0.5
        torch.save({**tensors, "layers.0.q": tensors["layers.0.q"].t().contiguous().t()}, model)
        (tensor,) = only(repo.verify_worktree(paths="model.safetensors")).tensors
        assert (tensor.name, tensor.elements_changed) == ("layers.0.q", 1)
        assert tensor.largest_difference == pytest.approx(0.5)

    def test_shards(self, repo, model):
        tensors = load(model)
        model.unlink()
        names = sorted(tensors)
        for number, part in ((1, names[:3]), (2, names[3:])):
            path = model.parent / f"model-0000{number}-of-00002.safetensors"
            save_file({name: tensors[name] for name in part}, path)
        file = only(repo.verify_worktree(paths="model.safetensors"))
        assert file.status == "same-tensors"
        assert file.found_in == tuple(f"model-0000{n}-of-00002.safetensors" for n in (1, 2))
        path.unlink()
        assert only(repo.verify_worktree(paths="model.safetensors")).status == "missing"

    def test_progress_counts_every_tensor_byte(self, repo, model):
        write_model(model.parent / "new.safetensors", seed=1)  # which the commit lacks
        calls = []
        with reporting(calls.append):
            check = repo.verify_worktree()
        assert (check.is_same, check.commit) == (True, repo.resolve("HEAD"))
        assert statuses(check) == {"config.json": "same", "model.safetensors": "same"}
        assert check.files[1].tensors_total == 8
        assert sum(calls) == sum(value.nbytes for value in load(model).values())


class TestDifferent:
    def test_a_long_plain_file(self, repo, root):
        data = bytearray(3 * 2**20)
        (root / "data.txt").write_bytes(data)
        repo.commit("base", paths=".")
        assert repo.verify_worktree().is_same
        data[2**21] = 1
        (root / "data.txt").write_bytes(data)
        assert only(repo.verify_worktree()).reason == "its bytes differ"

    def test_a_file_that_is_no_checkpoint_any_more(self, repo, model):
        model.write_bytes(b"garbage" * 100)
        file = only(repo.verify_worktree(paths="model.safetensors"))
        assert file.status == "different"
        assert file.reason.startswith("no tensor can be found in it: ")
        model.write_bytes(b"")
        assert only(repo.verify_worktree(paths="model.safetensors")).status == "different"

    def test_links_and_folders(self, repo, root):
        (root / "link").symlink_to("one")
        (root / "file").write_text("one")
        repo.commit("base", paths=".")
        assert repo.verify_worktree().is_same
        (root / "link").unlink()
        (root / "link").symlink_to("two")
        (root / "file").unlink()
        (root / "file").symlink_to("link")
        check = repo.verify_worktree()
        assert [file.reason for file in check.files] == ["it is a link", "it points elsewhere"]
        for name in ("link", "file"):
            (root / name).unlink()
            (root / name).mkdir()
        assert not repo.verify_worktree().is_same

    def test_another_model_does_not_stand_in_for_a_missing_one(self, repo, model):
        model.unlink()
        write_model(model.parent / "other.safetensors", seed=1)
        assert only(repo.verify_worktree(paths="model.safetensors")).status == "missing"

    def test_but_one_of_its_name_does(self, repo, model):
        tensors = as_torch(load(model))
        model.unlink()
        tensors["embed"][0, 0] += 1
        torch.save(tensors, model.with_suffix(".pt"))
        file = only(repo.verify_worktree(paths="model.safetensors"))
        assert (file.status, file.found_in) == ("different", ("model.pt",))
        assert list(tensors_of(file)) == ["embed"]

    def test_damage_in_the_store_is_no_difference(self, repo, model):
        for pack in (repo.git_dir / "chunks/packs").glob("*.pack"):
            pack.unlink()
        assert repo.verify_worktree().is_same
        save_file({**load(model), "norm": np.zeros(32, np.float32)}, model)
        with pytest.raises(CorruptionError, match="tensor 'norm'"):
            Repo.open(repo.worktree).verify_worktree()


@pytest.fixture(scope="module")
def flipped(tmp_path_factory):
    repo = Repo.init(tmp_path_factory.mktemp("flips"))
    repo.set_config("mvc.chunkbytes", "1024")
    write_model(repo.worktree / "m.safetensors")
    repo.commit("base", paths=".")
    return repo


@given(st.data())
def test_every_flipped_bit_is_found(flipped, data):
    path = flipped.worktree / "m.safetensors"
    kept = path.read_bytes()
    broken = bytearray(kept)
    first = 8 + int.from_bytes(kept[:8], "little")
    is_header = data.draw(st.booleans())
    place = data.draw(st.integers(0, first - 1) if is_header else st.integers(first, len(kept) - 1))
    broken[place] ^= 1 << data.draw(st.integers(0, 7))
    path.write_bytes(broken)
    try:
        file = only(flipped.verify_worktree())
    finally:
        path.write_bytes(kept)
    if is_header:
        assert file.status in ("different", "same-tensors")
    else:
        (tensor,) = file.tensors
        assert (file.status, tensor.status) == ("different", "modified")
        assert (tensor.elements_changed, tensor.bytes_changed) == (1, 1)


class TestStates:
    state = {"model": {"w": np.arange(500.0)}, "step": 1}  # noqa: RUF012  never changed

    def test_a_state_from_memory_is_not_in_the_worktree(self, repo):
        repo.commit_state(self.state, message="x")
        check = repo.verify_worktree()
        assert set(statuses(check).values()) == {"not-in-worktree"}
        assert not check.is_same  # nothing was compared

    def test_checked_out_it_is_files_like_any(self, repo, root):
        repo.commit_state(self.state, message="x", step=1)
        repo.checkout("main")
        assert set(statuses(repo.verify_worktree()).values()) == {"same"}
        tensors = load(root / "model.safetensors")
        tensors["w"][7] += 1
        save_file(tensors, root / "model.safetensors")
        assert statuses(repo.verify_worktree())["model.safetensors"] == "different"
        (root / "model.safetensors").unlink()
        assert statuses(repo.verify_worktree())["model.safetensors"] == "missing"

    def test_the_values_of_a_state_are_named(self, repo, root):
        repo.commit_state(self.state, message="x", step=1)
        repo.commit_state({"model": self.state["model"], "step": 20, "lr": 1}, message="y")
        repo.checkout("main")
        reasons = {file.path: file.reason for file in repo.verify_worktree("main@1").files}
        assert reasons["state.json"] == 'state["step"] is 20, the commit has 1 (and 1 more)'
        path = root / "state.json"
        path.write_text(json.dumps(json.loads(path.read_text())))
        reasons = {file.path: file.reason for file in repo.verify_worktree().files}
        assert reasons["state.json"] == "its text differs, its values do not"
        path.write_text("garbage")
        reasons = {file.path: file.reason for file in repo.verify_worktree().files}
        assert reasons["state.json"] == "its bytes differ"

    def test_an_export_of_it_counts(self, repo, root):
        repo.commit_state(self.state, message="x")
        torch.save({"w": torch.arange(500.0, dtype=torch.float64)}, root / "final.pt")
        assert statuses(repo.verify_worktree()) == {
            "model.safetensors": "same-tensors", "state.json": "not-in-worktree",
        }  # fmt: skip
        torch.save({"w": torch.zeros(500, dtype=torch.float64)}, root / "model.pt")
        (root / "final.pt").unlink()
        assert statuses(repo.verify_worktree())["model.safetensors"] == "not-in-worktree"


class TestEdges:
    def test_paths(self, repo, model):
        assert statuses(repo.verify_worktree(paths=["*.json"])) == {"config.json": "same"}
        with pytest.raises(NotFoundError, match="matches no file"):
            repo.verify_worktree(paths="nope")
        with pytest.raises(NotFoundError):
            repo.verify_worktree("nope")

    def test_an_empty_commit(self, repo):
        with pytest.raises(NotFoundError):
            repo.verify_worktree()
        repo.commit("nothing", allow_empty=True)
        assert repo.verify_worktree().is_same

    def test_a_file_that_changes_meanwhile(self, repo, model, monkeypatch):
        original = verify.check_pairs

        def and_write(*arguments, **options):
            found = original(*arguments, **options)
            with model.open("ab") as file:
                file.write(b"x")
            return found

        monkeypatch.setattr(verify, "check_pairs", and_write)
        with pytest.raises(ConflictError, match="changed while it was read"):
            repo.verify_worktree()

    def test_nothing_is_written(self, repo, model):
        before = {path: path.stat().st_mtime_ns for path in repo.git_dir.rglob("*")}
        write_model(model, seed=1)
        repo.verify_worktree()
        assert {path: path.stat().st_mtime_ns for path in repo.git_dir.rglob("*")} == before

    def test_released_content(self, repo, model):
        kept = shutil.copy(model, model.parent / ".keep")
        for step in (1, 2):
            write_model(model, seed=step)
            repo.commit("x", paths=model, step=step)
        repo.upkeep.prune(repo.upkeep.plan_prune(keep_last=1))
        repo.upkeep.gc(grace_s=0)
        first = "HEAD~2"
        found = only(repo.verify_worktree(first, paths=model))
        assert len(found.tensors) == 7  # by their ids; norm is the same in all
        assert found.tensors[0].elements_changed is None
        shutil.copy(kept, model)
        assert only(repo.verify_worktree(first, paths=model)).status == "same"
        tensors = as_torch(load(model))
        torch.save({**tensors, "embed": tensors["embed"].t().contiguous().t()}, model)
        with pytest.raises(ReleasedError):
            repo.verify_worktree(first, paths=model)
