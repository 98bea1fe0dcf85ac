"""ls: what it tells of files and tensors."""

import numpy as np
import pytest
from safetensors.numpy import save_file

from mvc import NotFoundError, Repo


def values(shape=(16, 256), seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def test_files_and_tensors(chunked, root):
    save_file({"w": values(), "u": values((3,), 1)}, root / "m.safetensors")
    (root / "notes").write_text("plain")
    (root / "link").symlink_to("notes")
    (root / "blob").write_bytes(bytes(2**20 + 1))
    chunked.commit("m", paths=".")
    by_path = {info.path: info for info in chunked.ls()}
    assert {path: (info.format, info.size_bytes) for path, info in by_path.items()} == {
        "blob": ("opaque", 2**20 + 1),
        "link": (None, 5),
        "m.safetensors": ("safetensors", (root / "m.safetensors").stat().st_size),
        "notes": (None, 5),
    }
    assert by_path["link"].mode == 0o120000
    assert {
        tensor.name: (tensor.dtype, tensor.shape, tensor.size_bytes, tensor.chunks)
        for tensor in by_path["m.safetensors"].tensors
    } == {"u": ("F32", (3,), 12, 1), "w": ("F32", (16, 256), 16384, 4)}
    assert by_path["notes"].tensors == ()
    contents = {path: chunked.read_file("HEAD", path) for path in by_path if path != "blob"}
    assert contents == {"link": b"notes", "m.safetensors": None, "notes": b"plain"}
    with pytest.raises(NotFoundError, match="has no file 'nope'"):
        chunked.read_file("HEAD", "nope")


def test_equal_tensors_have_equal_ids(chunked, root):
    save_file({"w": values()}, root / "a.safetensors")
    np.savez(root / "b.npz", other=values())
    chunked.commit("m", paths=".")
    assert len({info.tensors[0].id for info in chunked.ls()}) == 1


def test_choices(chunked, root):
    (root / "d").mkdir()
    save_file({"w": values(), "u.x": values()}, root / "d/m.safetensors")
    (root / "notes").write_text("plain")
    chunked.commit("m", paths=".")
    assert [info.path for info in chunked.ls(paths="d")] == ["d/m.safetensors"]
    (info,) = chunked.ls(tensors="u.*")
    assert [tensor.name for tensor in info.tensors] == ["u.x"]
    with pytest.raises(NotFoundError):
        chunked.ls(paths="nope")
    with pytest.raises(NotFoundError):
        chunked.ls("nope")


def test_no_chunk_is_read(chunked, root, reads):
    save_file({"w": values()}, root / "m.safetensors")
    chunked.commit("m", paths=".")
    Repo.open(root).ls()
    assert reads == []
