"""verify_models: two models from anywhere, to the bit or within a tolerance; what it reads."""

import math
import os

import ml_dtypes
import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

import mvc
from mvc import ConflictError, NotFoundError, Repo, UsageError
from mvc.operations import verify_models as module
from mvc.operations.verify_models import verify_models
from mvc.sources import FileSource
from mvc.workspace.tensors import StoredSource
from support.models import write_model


@pytest.fixture
def model(repo, root):
    """Two commits of a model of several chunks a tensor: one element of one tensor differs."""
    repo.set_config("mvc.chunkbytes", "1024")
    path = write_model(root / "model.safetensors")
    repo.commit("base", paths=".")
    values = {name: value.copy() for name, value in load_file(path).items()}
    values["embed"][60, 3] += 0.25
    save_file(values, path)
    repo.commit("tuned", paths=".")
    return path


@pytest.fixture
def reads(monkeypatch):
    """Bytes read from files and from the store."""
    counts = {"file": 0, "store": 0}
    for kind, name in ((FileSource, "file"), (StoredSource, "store")):
        original = kind.read_into

        def read(self, offset, buffer, original=original, name=name):
            counts[name] += len(buffer)
            original(self, offset, buffer)

        monkeypatch.setattr(kind, "read_into", read)
    return counts


def test_equal_ids_are_not_read_and_of_others_only_chunks_that_differ(repo, model, reads):
    assert repo.verify_models("HEAD", "HEAD").passed
    assert reads == {"file": 0, "store": 0}
    check = repo.verify_models("HEAD~1", "HEAD")
    assert not check.passed
    assert reads == {"file": 0, "store": 2 * 1024}
    (tensor,) = check.tensors
    assert (tensor.name, tensor.first.index, tensor.deviation.beyond) == ("embed", 60 * 32 + 3, 1)
    assert tensor.largest_difference == pytest.approx(0.25)
    assert tensor.first.new - tensor.first.old == pytest.approx(0.25)


def test_a_file_is_hashed_whatever_the_index_says(repo, model, reads):
    repo.status()
    stat, data = model.stat(), bytearray(model.read_bytes())
    assert repo.verify_models("HEAD", model).passed
    assert repo.verify_models("HEAD", None).passed
    assert reads["store"] == 0
    data[-5] ^= 1
    model.write_bytes(data)
    os.utime(model, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert not repo.verify_models("HEAD").passed
    assert not repo.verify_models(model, "HEAD:model.safetensors").passed
    assert reads["store"] == 2 * 128  # norm is one short chunk


def test_outside_a_repository_in_other_formats(tmp_path):
    values = {"a": np.arange(3000, dtype="f4").reshape(30, 100), "b": np.ones((), "f2")}
    save_file(values, tmp_path / "m.safetensors")
    torch.save({"a": torch.from_numpy(values["a"].T.copy()).t(), "b": torch.ones((), dtype=torch.half)},
               tmp_path / "m.pt")  # fmt: skip
    assert mvc.verify_models(tmp_path / "m.safetensors", tmp_path / "m.pt").passed
    with pytest.raises(NotFoundError, match=r"b\.safetensors"):
        mvc.verify_models(tmp_path / "m.pt", tmp_path / "b.safetensors")
    values["a"][3, 4] = math.nan
    np.savez(tmp_path / "m.npz", **values)
    (tensor,) = verify_models(None, tmp_path / "m.pt", tmp_path / "m.npz").failed
    assert tensor.first.index == 304
    assert math.isnan(tensor.largest_difference)


def test_what_is_no_matter_of_elements(repo, root, model):
    values = {name: value.copy() for name, value in load_file(model).items()}
    values["more"] = np.ones(3, "f4")
    values["other"] = values.pop("norm")
    values["layers.0.q"] = values["layers.0.q"].astype("f2")
    values["embed"] = values["embed"].reshape(32, 64)
    save_file(values, root / "other.safetensors")
    check = repo.verify_models("HEAD", root / "other.safetensors")
    assert {one.name: (one.status, one.old_name, one.old_dtype, one.old_shape) for one in check.failed} == {
        "embed": ("modified", None, None, (64, 32)),
        "layers.0.q": ("modified", None, "F32", None),
        "more": ("extra", None, None, None),
        "other": ("renamed", "norm", None, None),
    }  # fmt: skip
    del values["more"]
    save_file(values, root / "other.safetensors")
    check = repo.verify_models(root / "other.safetensors", "HEAD")
    assert ("layers.0.q", "F16") in {(one.name, one.old_dtype) for one in check.failed}


def test_within_a_tolerance(root, tmp_path):
    old = np.random.default_rng(0).normal(size=(70, 90)).astype("f4")
    new = old.astype(ml_dtypes.bfloat16)
    save_file({"w": old}, tmp_path / "old.safetensors")
    save_file({"w": new}, tmp_path / "new.safetensors")
    sides = (tmp_path / "old.safetensors", tmp_path / "new.safetensors")
    apart = np.abs(new.astype("f8") - old.astype("f8"))
    assert not verify_models(None, *sides).passed
    assert verify_models(None, *sides, atol=float(apart.max())).passed
    check = verify_models(None, *sides, atol=float(np.median(apart)))
    assert check.failed[0].deviation.beyond == int((apart > np.median(apart)).sum())
    assert verify_models(None, *sides, rtol=2**-8).passed
    assert not verify_models(None, *sides, rtol=2**-10).passed
    (tensor,) = verify_models(None, *sides, rtol=2**-8).tensors
    assert tensor.largest_difference == apart.max()
    assert tensor.deviation.relative == pytest.approx((apart / np.abs(old.astype("f8"))).max())


def test_a_live_model(repo, model):
    live = {name: torch.from_numpy(value.copy()) for name, value in load_file(model).items()}
    live["more"] = live["embed"].clone()
    (tensor,) = repo.verify_models("HEAD", live).failed
    assert (tensor.name, tensor.status) == ("more", "extra")
    del live["more"]
    live["embed"][0, 0] += 1
    (tensor,) = repo.verify_models("HEAD", live).failed
    assert (tensor.name, tensor.largest_difference) == ("embed", pytest.approx(1))
    state = {"model": {"q": live["layers.0.q"]}, "step": 3}
    assert repo.verify_models(state, {"q": live["layers.0.q"].t().contiguous().t()}).passed


def test_what_cannot_be_compared(repo, model, root, monkeypatch):
    for atol in (-1.0, math.nan, math.inf):
        with pytest.raises(UsageError, match="not a tolerance"):
            repo.verify_models("HEAD", atol=atol)
    with pytest.raises(NotFoundError, match="neither a revision nor a file"):
        repo.verify_models("HEAD", "nope")
    with pytest.raises(UsageError, match="holds no tensor"):
        repo.verify_models("HEAD", {"step": 1})
    original = module.check_pairs

    def and_write(*arguments, **options):
        found = original(*arguments, **options)
        with model.open("ab") as file:
            file.write(b"x")
        return found

    monkeypatch.setattr(module, "check_pairs", and_write)
    with pytest.raises(ConflictError, match="changed while it was read"):
        repo.verify_models("HEAD", model)


def test_chunks_of_another_size(repo, root, model):
    other = Repo.init(root / "other")
    other.set_config("mvc.chunkbytes", "2048")
    (root / "other" / "m.safetensors").write_bytes(model.read_bytes())
    other.commit("x", paths=".")
    from mvc.workspace.context import open_at
    from mvc.workspace.models import open_model

    with open_model(open_at(root / "other"), "HEAD") as twin:
        from mvc.comparison.checks import check_pairs
        from mvc.comparison.pairs import pair_models

        for revision, count in (("HEAD", 0), ("HEAD~1", 1)):
            with open_model(open_at(root), revision) as one:
                assert len(check_pairs(pair_models(one, twin), threads=2)) == count
