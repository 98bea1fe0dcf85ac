import json
import os

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from mvc import (
    ConflictError,
    CorruptionError,
    NotFoundError,
    ReleasedError,
    Repo,
    UnsupportedError,
    UsageError,
)
from mvc.progress import reporting
from support.damage import flip


def values(shape=(16, 256), seed=0, dtype=np.float32):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


@pytest.fixture
def model(repo, root):
    repo.set_config("mvc.chunkbytes", "4096")
    save_file(
        {"layers.0.w": values(), "layers.1.w": values(seed=1), "norm": values((3,), 2)},
        root / "m.safetensors",
        {"made": "by hand"},
    )
    (root / "notes").write_text("plain")
    repo.commit("model", paths=".")
    return repo


@pytest.fixture
def output(tmp_path):
    return tmp_path / "out.safetensors"


def test_of_one_file_and_an_older_commit(model, root, output):
    save_file({"norm": values((3,), 9)}, root / "other.safetensors")
    model.commit("other", paths=".")
    with pytest.raises(ConflictError, match="both hold a tensor 'norm'"):
        model.export("HEAD", output)
    assert not output.exists()
    assert model.export("HEAD", output, path="other.safetensors").tensors == 1
    assert model.export("HEAD~1", output, force=True).tensors == 3


def test_views_of_torch_are_made_whole(repo, root, output):
    torch = pytest.importorskip("torch")
    base = torch.arange(4096, dtype=torch.float32).reshape(64, 64)
    torch.save({"w": base, "t": base.t(), "part": base[3:9, 1::7], "again": base}, root / "m.pt")
    repo.set_config("mvc.chunkbytes", "1024")
    repo.commit("m", paths=".")
    assert repo.export("HEAD", output).tensors == 4
    loaded = load_file(output)
    for name, given in (("w", base), ("t", base.t()), ("part", base[3:9, 1::7]), ("again", base)):
        assert np.array_equal(loaded[name], given.numpy()), name


def test_names_of_any_text(repo, root, output):
    names = ["", "ü.ß", "日本", 'quo"te', "new\nline", "a" * 1000, "back\\slash"]
    save_file({name: values((2,), seed) for seed, name in enumerate(names)}, root / "m.safetensors")
    repo.commit("m", paths=".")
    repo.export("HEAD", output)
    assert sorted(load_file(output)) == sorted(names)


def test_a_name_that_safetensors_keeps_for_itself(repo, root, output):
    with open(root / "m.npz", "wb") as file:
        np.savez(file, __metadata__=values((2,)), w=values((2,)))
    repo.commit("m", paths=".")
    with pytest.raises(UnsupportedError, match="__metadata__"):
        repo.export("HEAD", output)
    assert repo.export("HEAD", output, tensors="w").tensors == 1


def test_a_dtype_that_safetensors_has_not(repo, root, output):
    with open(root / "m.npz", "wb") as file:
        np.savez(file, c=np.ones(3, np.complex128), w=values((2,)))
    repo.commit("m", paths=".")
    with pytest.raises(UnsupportedError, match=r"tensor 'c' of m\.npz is C128") as caught:
        repo.export("HEAD", output)
    assert "`tensors`" in caught.value.hint
    assert repo.export("HEAD", output, tensors="w").tensors == 1


def test_the_output_exists(model, output):
    output.write_text("precious")
    with pytest.raises(ConflictError, match="already exists"):
        model.export("HEAD", output)
    assert output.read_text() == "precious"
    model.export("HEAD", output, force=True)
    assert len(load_file(output)) == 3


def test_a_link_as_output(model, output, tmp_path):
    (tmp_path / "precious").write_text("precious")
    output.symlink_to("precious")
    with pytest.raises(ConflictError):
        model.export("HEAD", output)
    model.export("HEAD", output, force=True)
    assert (tmp_path / "precious").read_text() == "precious"


@pytest.mark.parametrize("name", ["x.npy", "x.distcp", "X.NPZ", "x.gguf"])
def test_a_name_that_promises_another_format(model, tmp_path, name):
    for options in ({}, {"tensors": "*"}):
        with pytest.raises(UsageError, match="would hold a safetensors file") as refused:
            model.export("HEAD", tmp_path / name, **options)
        assert refused.value.hint == f"name it {name[0]}.safetensors"
    assert not (tmp_path / name).exists()


def test_a_folder_as_output(model, tmp_path):
    for force in (False, True):
        with pytest.raises(UsageError, match="is a folder"):
            model.export("HEAD", tmp_path, tensors="*", force=force)
    with pytest.raises(UsageError, match="does not exist"):
        model.export("HEAD", tmp_path / "no/folder/x.safetensors")


def test_nothing_fits(model, output):
    for options in ({"tensors": "nope"}, {"path": "notes"}, {"path": "nope"}):
        with pytest.raises(NotFoundError):
            model.export("HEAD", output, **options)
    with pytest.raises(NotFoundError):
        model.export("nope", output)
    assert not output.exists()


def test_damage_leaves_no_file(model, root, output, tmp_path):
    (pack,) = (root / ".mvc/chunks/packs").glob("*.pack")
    flip(pack)
    with pytest.raises(CorruptionError, match="tensor 'layers"):
        Repo.open(root).export("HEAD", output)
    assert [path.name for path in tmp_path.iterdir()] == ["work"]


@pytest.mark.parametrize("mask", [0o022, 0o077])
def test_permissions_are_those_of_a_new_file(model, output, mask):
    before = os.umask(mask)
    try:
        model.export("HEAD", output)
        plain = output.with_name("plain")
        plain.touch()
    finally:
        os.umask(before)
    assert output.stat().st_mode == plain.stat().st_mode


class TestFolder:
    """A whole revision, anywhere."""

    @pytest.fixture
    def whole(self, model, root):
        (root / "run.sh").write_text("#!/bin/sh")
        (root / "run.sh").chmod(0o755)
        (root / "latest").symlink_to("m.safetensors")
        (root / "deep/er").mkdir(parents=True)
        (root / "deep/er/notes").write_text("below")
        model.commit("whole", paths=".")
        return model

    def test_it_holds_what_a_checkout_would(self, whole, root, tmp_path):
        calls = []
        paths = [info.path for info in whole.ls()]
        given = {path: (root / path).read_bytes() for path in paths}
        (root / "notes").write_text("changed since")
        with reporting(calls.append):
            result = whole.export("HEAD", tmp_path / "out")
        assert (result.path, result.files, result.tensors) == (tmp_path / "out", 5, 3)
        assert {path: (tmp_path / "out" / path).read_bytes() for path in paths} == given
        assert os.readlink(tmp_path / "out/latest") == "m.safetensors"
        assert os.access(tmp_path / "out/run.sh", os.X_OK)
        assert sum(calls) <= result.size_bytes == sum(info.size_bytes for info in whole.ls())
        found = {path for path in (tmp_path / "out").rglob("*") if not path.is_dir()}
        assert len(found) == 5  # and nothing temporary
        assert (root / "notes").read_text() == "changed since"
        assert [file.path for file in whole.status().files] == ["notes"]

    def test_some_files_as_they_are(self, whole, root, tmp_path):
        for path, count in (("m.safetensors", 1), ("deep", 1), (None, 5)):
            place = None if path is None else root / path
            result = whole.export("HEAD", tmp_path / "out", path=place, format="files", force=True)
            assert (result.files, result.format) == (count, None)
        for path in ("m.safetensors", "deep/er/notes", "notes"):
            assert (tmp_path / "out" / path).read_bytes() == (root / path).read_bytes()
        with pytest.raises(NotFoundError, match="matches no file"):
            whole.export("HEAD", tmp_path / "out", path=root / "nope", format="files")
        with pytest.raises(UsageError, match="files are written whole"):
            whole.export("HEAD", tmp_path / "out", tensors="*", format="files")

    @pytest.mark.parametrize("name", ["plain", "llama-3.1", "x.safetensors/"])
    def test_what_is_a_folder(self, model, tmp_path, name):
        model.export("HEAD", f"{tmp_path}/{name}")
        assert (tmp_path / name / "notes").read_text() == "plain"

    def test_nothing_is_written_through_links_or_into_the_repository(self, whole, root, tmp_path):
        (tmp_path / "out").mkdir()
        (tmp_path / "elsewhere").mkdir()
        (tmp_path / "out/deep").symlink_to(tmp_path / "elsewhere")
        with pytest.raises(ConflictError, match="deep is in the way"):
            whole.export("HEAD", tmp_path / "out", force=True)
        assert os.listdir(tmp_path / "elsewhere") == []
        with pytest.raises(UsageError, match="the repository itself"):
            whole.export("HEAD", root / ".mvc/out")
        with pytest.raises(UsageError, match="is not a folder"):
            whole.export("HEAD", root / "notes")

    def test_released_content_is_said_before_the_folder_is_made(self, model, root, tmp_path):
        save_file({"w": values(seed=9)}, root / "m.safetensors")
        model.commit("next", paths=".")
        model.upkeep.prune(model.upkeep.plan_prune(keep_last=1))
        with pytest.raises(ReleasedError):
            model.export("HEAD~1", tmp_path / "out")
        assert not (tmp_path / "out").exists()

    def test_a_state_from_memory_is_a_folder_for_other_tools(self, repo, tmp_path):
        repo.commit_state({"w": values()}, message="m", files={"config.json": "{}"})
        repo.export("HEAD", tmp_path / "hub")
        assert sorted(os.listdir(tmp_path / "hub")) == [
            "config.json",
            "model.safetensors",
            "state.json",
        ]
        assert load_file(tmp_path / "hub/model.safetensors")["w"].tobytes() == values().tobytes()

    def test_what_is_there_stays(self, model, tmp_path):
        folder = tmp_path / "x.safetensors"
        folder.mkdir()
        (folder / "notes").write_text("mine")
        (folder / "other").write_text("stays")
        with pytest.raises(ConflictError, match="notes already exists"):
            model.export("HEAD", folder)
        assert sorted(path.name for path in folder.iterdir()) == ["notes", "other"]
        model.export("HEAD", folder, force=True)
        assert sorted(os.listdir(folder)) == ["m.safetensors", "notes", "other"]
        assert (folder / "notes").read_text() == "plain"


def test_some_as_others_write_them(model, output, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    calls = []
    with reporting(calls.append):
        result = model.export("HEAD", output.name)
    assert (result.path.resolve(), result.tensors) == (output, 3)
    assert result.size_bytes == output.stat().st_size
    loaded = load_file(output)
    assert sum(calls) == sum(array.nbytes for array in loaded.values())
    assert loaded["layers.1.w"].tobytes() == values(seed=1).tobytes()
    data = output.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    assert length % 8 == 0
    assert header.pop("__metadata__") == {"format": "pt"}
    ends = [entry["data_offsets"] for entry in header.values()]
    assert [start for start, _ in ends] == [0, *(end for _, end in ends[:-1])]
    assert ends[-1][1] == len(data) - 8 - length
    assert model.export("HEAD", output, tensors="layers.*", force=True).tensors == 2
    assert sorted(load_file(output)) == ["layers.0.w", "layers.1.w"]
