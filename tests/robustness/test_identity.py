"""What goes in comes back: add, commit, remove, check out is the identity on any file.

And what is there already is not stored again, however it comes: counted, not measured. Chunks are
cut at 1 KiB here, so that small tensors are made of many.
"""

from __future__ import annotations

import importlib.util
import io
import os
import shutil

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save as save_safetensors

from mvc import Repo, fs
from support.bounds import on_disk, rest_slow
from support.models import contents
from support.walks import fresh_folder

CHUNK_BYTES = 1024
NUMPY_DTYPES = [
    "bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64",
    "float16", "float32", "float64", "complex64", "complex128",
]  # fmt: skip
SAFE_DTYPES = [
    *(np.dtype(name) for name in NUMPY_DTYPES if not name.startswith("complex128")),
    *(np.dtype(getattr(ml_dtypes, name)) for name in ("bfloat16", "float8_e4m3fn", "float8_e5m2")),
]
TORCH_DTYPES = [
    "bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32",
    "float64", "complex64", "complex128", "float8_e4m3fn", "float8_e5m2",
]  # fmt: skip
needs_torch = pytest.mark.skipif(not importlib.util.find_spec("torch"), reason="needs torch")
needs_gguf = pytest.mark.skipif(not importlib.util.find_spec("gguf"), reason="needs gguf")


def _open(root):
    repo = Repo.init(root)
    repo.set_config("mvc.chunkbytes", str(CHUNK_BYTES))
    return Repo.open(root)


def _clear(root):
    for path in root.iterdir():
        if path.name != ".mvc":
            path.unlink() if path.is_symlink() or path.is_file() else shutil.rmtree(path)


def check_identity(root, *, warns=False):
    """Commit all there is, remove it, and get it back three ways."""
    before, repo = contents(root), _open(root)
    result = repo.add(".")
    assert len(result.added) == len(before)
    assert warns or not result.warnings
    repo.commit("all")
    for bring_back in (
        lambda: Repo.open(root).restore("."),
        lambda: Repo.open(root).checkout("HEAD", paths="."),
        lambda: Repo.open(root).checkout("HEAD", force=True),
    ):
        _clear(root)
        bring_back()
        assert contents(root) == before
    assert not Repo.open(root).status().files
    return Repo.open(root)


def check_file(name, data, **options):
    """Check that one file comes back; return its tensors' bytes by name."""
    with fresh_folder() as root:
        (root / name).write_bytes(data)
        repo = check_identity(root, **options)
        assert repo.upkeep.fsck(data=True).ok
        (file,) = repo.ls()
        return {
            info.name: (info.shape, repo.tensor("HEAD", name, info.name).tobytes())
            for info in file.tensors
        }


# Tensors with a will of their own.


def _shapes(item_bytes):
    """Any small shape, empty and 0-d ones too, and lengths around a chunk's."""
    row = CHUNK_BYTES // item_bytes
    edges = st.sampled_from([row - 1, row, row + 1, 2 * row, 3 * row + 1]).map(lambda n: (n,))
    return st.one_of(
        st.lists(st.integers(0, 9), max_size=4).map(tuple),
        edges,
        edges.map(lambda shape: (*shape, 1)),
        st.sampled_from([(), (0,), (3, 0, 2), (1, 1, 1, 1, 1)]),
    )


def _fill(dtype, shape, kind, seed):
    """Return an array of arbitrary bits: NaNs of any payload, -0.0, subnormals, infinities."""
    dtype = np.dtype(dtype)
    count = int(np.prod(shape, dtype=np.int64))
    if dtype == np.bool_:
        bits = np.random.default_rng(seed).integers(0, 2, count, np.uint8)
    elif kind == "random":
        bits = np.frombuffer(np.random.default_rng(seed).bytes(count * dtype.itemsize), np.uint8)
    else:
        word = {"zeros": 0, "ones": 2 ** (8 * dtype.itemsize) - 1, "one": 1 + seed % 3,
                "sign": 2 ** (8 * dtype.itemsize - 1)}[kind]  # fmt: skip
        bits = np.frombuffer(word.to_bytes(dtype.itemsize, "little") * count, np.uint8)
    return np.frombuffer(bits.tobytes(), dtype, count).reshape(shape)


KINDS = st.sampled_from(["random", "zeros", "ones", "one", "sign"])


@st.composite
def arrays(draw, dtypes):
    dtype = np.dtype(draw(st.sampled_from(dtypes)))
    return _fill(dtype, draw(_shapes(dtype.itemsize)), draw(KINDS), draw(st.integers(0, 9)))


TENSOR_NAMES = st.text(
    st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=12
)


def _models(dtypes, names=TENSOR_NAMES):
    return st.dictionaries(
        names.filter(lambda name: name != "__metadata__"), arrays(dtypes), max_size=5
    )


def _expected(model):
    return {name: (array.shape, array.tobytes()) for name, array in model.items()}


@on_disk
@given(_models(SAFE_DTYPES))
def test_safetensors(model):
    assert check_file("m.safetensors", save_safetensors(model)) == _expected(model)


@on_disk
@given(_models(NUMPY_DTYPES, st.text("abcdef._-é", min_size=1, max_size=8)), st.booleans())
def test_npz(model, compressed):
    buffer = io.BytesIO()
    (np.savez_compressed if compressed else np.savez)(buffer, **model)
    found = check_file("m.npz", buffer.getvalue(), warns=compressed or not model)
    if model and not compressed:
        assert found == _expected(model)


@on_disk
@given(arrays(NUMPY_DTYPES), st.sampled_from("CF"), st.sampled_from("<>"))
def test_npy(array, order, endian):
    """Also in Fortran's order and with the bytes of each number the other way round."""
    array = np.asarray(array.astype(array.dtype.newbyteorder(endian)), order=order)
    buffer = io.BytesIO()
    np.save(buffer, array)
    check_file("m.npy", buffer.getvalue(), warns=True)


def _as_torch(torch, array, dtype):
    dtype = getattr(torch, dtype)
    if not array.nbytes:
        return torch.empty(array.shape, dtype=dtype)
    return torch.frombuffer(bytearray(array.tobytes()), dtype=dtype).reshape(array.shape)


@needs_torch
@pytest.mark.torch
@on_disk
@given(st.data())
def test_torch(data):
    """Views of all kinds, ties, and tensors that share one storage."""
    import torch

    state = {}
    for number in range(data.draw(st.integers(0, 3))):
        name = data.draw(st.sampled_from(TORCH_DTYPES))
        size = getattr(torch, name).itemsize
        raw = _fill(
            "bool" if name == "bool" else f"V{size}" if size > 8 else f"u{size}",
            data.draw(_shapes(size)), data.draw(KINDS), number,
        )  # fmt: skip
        tensor = _as_torch(torch, raw, name)
        state[f"t{number}"] = tensor
        if tensor.dim() > 1:
            state[f"t{number}.view"] = tensor.transpose(0, 1)
        if tensor.dim() and tensor.shape[0] > 1:
            state[f"t{number}.part"] = tensor[1::2]
            state[f"t{number}.one"] = tensor[:1].expand(3, *tensor.shape[1:])
        state[f"t{number}.tied"] = tensor
    buffer = io.BytesIO()
    torch.save(state, buffer)
    found = check_file("m.pt", buffer.getvalue(), warns=not state)
    if state:
        assert found == {
            name: (tuple(tensor.shape), _torch_bytes(torch, tensor))
            for name, tensor in state.items()
        }


def _torch_bytes(torch, tensor):
    flat = torch.empty(tensor.numel(), dtype=tensor.dtype)  # a lone element may have any stride
    return flat.copy_(tensor.reshape(-1)).view(torch.uint8).numpy().tobytes()


def _save_gguf(model):
    import gguf

    with fresh_folder() as folder:
        writer = gguf.GGUFWriter(folder / "m.gguf", "llama")
        for name, array in model.items():
            writer.add_tensor(name, array)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return (folder / "m.gguf").read_bytes()


@needs_gguf
@on_disk
@given(_models(["float32", "float16", "int8", "int32", "float64"], st.text("abc.", min_size=1)))
def test_gguf(model):
    model = {name: array for name, array in model.items() if array.size and array.ndim}
    assert check_file("m.gguf", _save_gguf(model)) == _expected(model)


# Damaged, plain and odd files.


def _real_files():
    tensors = {
        "a": np.arange(600, dtype=np.float32),
        "b": np.ones((5, 7), np.float16),
        "c": np.array(-0.0),
    }
    yield "m.safetensors", save_safetensors(tensors)
    buffer = io.BytesIO()
    np.savez(buffer, **tensors)
    yield "m.npz", buffer.getvalue()
    buffer = io.BytesIO()
    np.save(buffer, tensors["a"])
    yield "m.npy", buffer.getvalue()
    if importlib.util.find_spec("torch"):
        import torch

        buffer = io.BytesIO()
        torch.save({name: torch.tensor(array) for name, array in tensors.items()}, buffer)
        yield "m.pt", buffer.getvalue()
    if importlib.util.find_spec("gguf"):
        yield "m.gguf", _save_gguf({"a": tensors["a"]})


REAL_FILES = dict(_real_files())


@pytest.mark.parametrize("name", REAL_FILES)
@on_disk
@given(data=st.data())
def test_a_damaged_checkpoint_is_a_file_like_any_other(name, data):
    content = bytearray(REAL_FILES[name])
    # What says where the tensors are stands at either end; damage there is the interesting one.
    position = st.one_of(
        st.integers(0, 400),
        st.integers(len(content) - 400, len(content)),
        st.integers(0, len(content)),
    )
    for _ in range(data.draw(st.integers(1, 3))):
        at = min(data.draw(position), len(content))
        kind = data.draw(st.sampled_from(["cut", "drop head", "set", "insert"]))
        if kind == "cut":
            del content[at:]
        elif kind == "drop head":
            del content[:at]
        elif kind == "set":
            content[at : at + 4] = data.draw(st.binary(min_size=1, max_size=4))
        else:
            content[at:at] = data.draw(st.binary(min_size=1, max_size=9))
    with fresh_folder() as root:
        (root / name).write_bytes(content)
        check_identity(root, warns=True)


SIZES = [0, 1, *(CHUNK_BYTES * n + d for n in (1, 2) for d in (-1, 0, 1)), 2**20, 2**20 + 1]


@pytest.mark.parametrize(
    "name", rest_slow(["plain", "m.safetensors", "data.bin", "m.npz", "m.pt"], kept=2)
)
@pytest.mark.parametrize("size_bytes", SIZES)
def test_sizes_at_every_edge(name, size_bytes, tmp_path):
    data = np.random.default_rng(size_bytes).bytes(size_bytes)
    (tmp_path / name).write_bytes(data)
    repo = check_identity(tmp_path, warns=True)
    (file,) = repo.ls()
    is_plain = not size_bytes or (name == "plain" and size_bytes <= 2**20)
    assert (file.format is None) == is_plain
    assert file.size_bytes == size_bytes


def test_a_file_that_begins_like_a_manifest(tmp_path):
    from mvc.formats.manifest import MANIFEST_PREFIX

    for number, tail in enumerate([b"", b"\n", b'1}\n{"x":1}\n', b"\0" * 3000]):
        (tmp_path / f"trap{number}").write_bytes(MANIFEST_PREFIX + tail)
    check_identity(tmp_path)


FILE_NAMES = st.text(
    st.characters(exclude_characters="/\0\\", exclude_categories=["Cs"]), min_size=1, max_size=40
)
ODD_NAMES = [
    "-rf", "--", " ", "  both  ", "new\nline", "tab\t", "*", "?", "[a]", "a[1].bin", "#", "!x", "~",
    "$HOME", "HEAD", "@", "@{-1}", ":x", "a:b", "...", "..a", "nul", "é", "e\u0301", "\uff21", "日本語",
    "\U0001f600", "\u202eabc", "\x7f", "\x01", "x" * 255, "é" * 127, "%2e", "'", '"', ".hidden",
    "con.", "dot.", "index.lock", ".gitignore", "mvc", "MVC", "a.lock", os.fsdecode(b"\xff\xfe"),
]  # fmt: skip


def test_odd_names(tmp_path):
    """All of them as files, each as a folder, and each named by itself."""
    repo = _open(tmp_path)
    for name in ODD_NAMES:
        (tmp_path / name).write_text(f"at {name!a}")
        assert [file.path for file in repo.add(name).added] == [name]
    inner = tmp_path / "as folders"
    for name in ODD_NAMES:
        (inner / name / name[:100]).mkdir(parents=True)
        (inner / name / name[:100] / name).write_text(f"in {name!a}")
    before = contents(tmp_path)
    repo.add(".")
    repo.commit("odd")
    assert {file.path for file in repo.ls()} == set(before)
    _clear(tmp_path)
    Repo.open(tmp_path).restore(".")
    assert contents(tmp_path) == before
    for name in ODD_NAMES:
        assert repo.remove(name) == (name,)
        assert not (tmp_path / name).exists()


@on_disk
@given(st.lists(st.lists(FILE_NAMES, min_size=1, max_size=3), min_size=1, max_size=4))
def test_any_name_is_kept_or_refused(names):
    from mvc.history.names import find_path_fault

    with fresh_folder() as root:
        for parts in names:
            path = "/".join(parts)
            if find_path_fault(path) or path.endswith(fs.TEMP_SUFFIX) or max(
                len(part.encode()) for part in parts
            ) > 255:  # fmt: skip
                continue
            try:
                (root / path).parent.mkdir(parents=True, exist_ok=True)
                (root / path).write_text(path)
            except OSError:
                continue  # a file has the name of the folder, or the other way round
        if contents(root):
            check_identity(root, warns=True)  # a name may claim to be a checkpoint


def test_modes_and_links(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder/file").write_text("x")
    save = save_safetensors({"w": np.arange(999, dtype=np.float32)})
    (tmp_path / "program").write_text("#!/bin/sh\n")
    (tmp_path / "program").chmod(0o755)
    (tmp_path / "program.safetensors").write_bytes(save)
    (tmp_path / "program.safetensors").chmod(0o700)
    texts = [
        "folder", "folder/file", "../outside", "/etc/passwd", "nowhere", ".", "..", " ", "link0",
        "x" * 4000, "new\nline", "é", os.fsdecode(b"\xff"), ".mvc", "-x",
    ]  # fmt: skip
    for number, text in enumerate(texts):
        (tmp_path / f"link{number}").symlink_to(text)
        (tmp_path / f"folder/link{number}.safetensors").symlink_to(text)
    repo = check_identity(tmp_path)
    assert {file.path for file in repo.ls() if file.mode == 0o100755} == {
        "program", "program.safetensors",
    }  # fmt: skip
    assert sum(file.mode == 0o120000 for file in repo.ls()) == 2 * len(texts)


# What is there already is not stored again.


def _store_bytes(root):
    return sum(path.stat().st_size for path in (root / ".mvc/chunks").rglob("*") if path.is_file())


def _weights(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def _new_bytes(repo, root, name, data):
    """Add a file; return (new bytes of tensors, chunks handed in) and check the account."""
    (root / name).write_bytes(data)
    before = _store_bytes(root)
    counts = repo.add(name).counts
    assert _store_bytes(root) - before == counts.stored_bytes
    assert counts.new_chunks <= counts.chunks
    assert counts.new_plain_bytes <= counts.plain_bytes
    return counts


def _gap_bytes(data, model):
    return len(data) - sum(array.nbytes for array in model.values())


@pytest.fixture
def repo(tmp_path):
    return _open(tmp_path)


def test_renamed_and_reordered_tensors_cost_the_header(repo, tmp_path):
    one, two = _weights(1, 40, 30), _weights(2, 7, 9)
    _new_bytes(repo, tmp_path, "a.safetensors", save_safetensors({"one": one, "two": two}))
    model = {"a.two": two, "b.one": one, "c.again": two}
    data = save_safetensors(model)
    counts = _new_bytes(repo, tmp_path, "b.safetensors", data)
    assert 0 < counts.new_plain_bytes <= _gap_bytes(data, model)


@pytest.mark.parametrize("rows", [1, 16, 100])
def test_appended_rows_cost_themselves(repo, tmp_path, rows):
    old = {"embed": _weights(1, 64, 32)}  # 8 whole chunks
    _new_bytes(repo, tmp_path, "m.safetensors", save_safetensors(old))
    new = {"embed": np.concatenate([old["embed"], _weights(2, rows, 32)])}
    data = save_safetensors(new)
    counts = _new_bytes(repo, tmp_path, "m.safetensors", data)
    assert counts.new_plain_bytes - rows * 32 * 4 in range(1, _gap_bytes(data, new) + 1)


@needs_torch
@pytest.mark.torch
def test_the_format_does_not_matter(repo, tmp_path):
    import torch

    model = {"w": _weights(1, 50, 40), "b": _weights(2, 300), "s": np.array(2.5, np.float32)}
    first = save_safetensors(model)
    assert _new_bytes(repo, tmp_path, "m.safetensors", first).new_plain_bytes == len(first)
    npz, archive = io.BytesIO(), io.BytesIO()
    np.savez(npz, **model)
    torch.save({name: torch.tensor(array) for name, array in model.items()}, archive)
    for name, data in (("m.npz", npz.getvalue()), ("m.pt", archive.getvalue())):
        counts = _new_bytes(repo, tmp_path, name, data)
        assert counts.plain_bytes == len(data)
        assert 0 < counts.new_plain_bytes <= _gap_bytes(data, model), name
    found = [{info.name: info.id for info in file.tensors} for file in _committed(repo).ls()]
    assert found[0] == found[1] == found[2]


def _committed(repo):
    repo.commit("all")
    return repo


@needs_torch
@pytest.mark.torch
def test_tied_weights_are_stored_once(repo, tmp_path):
    import torch

    embed = torch.tensor(_weights(1, 64, 16))
    tied, untied = io.BytesIO(), io.BytesIO()
    torch.save({"embed": embed, "head": embed, "first": embed[:3]}, tied)
    torch.save({"embed": embed, "head": embed.clone()}, untied)
    counts = _new_bytes(repo, tmp_path, "tied.pt", tied.getvalue())
    assert counts.plain_bytes == len(tied.getvalue())
    assert counts.chunks - counts.new_chunks == 0
    counts = _new_bytes(repo, tmp_path, "untied.pt", untied.getvalue())
    assert counts.new_plain_bytes <= len(untied.getvalue()) - 2 * embed.nbytes


def test_a_state_of_committed_tensors_costs_its_header(repo, tmp_path):
    model = {"w": _weights(1, 128, 64), "b": _weights(2, 500)}
    _new_bytes(repo, tmp_path, "base.safetensors", save_safetensors(model))
    repo.commit("file")
    before = _store_bytes(tmp_path)
    repo.commit_state({"model": dict(model), "step": 3}, message="state")
    grown = _store_bytes(tmp_path) - before
    assert grown < CHUNK_BYTES  # a header, where the library writes another one than we do
    found = {
        info.name: info.id for file in repo.ls(tensors="*") for info in file.tensors
        if file.path == "model.safetensors"
    }  # fmt: skip
    base = repo.ls(paths="base.safetensors")[0].tensors
    assert found == {info.name: info.id for info in base}
    state = repo.load_state("HEAD", framework="numpy")
    assert {name: array.tobytes() for name, array in state["model"].items()} == {
        name: array.tobytes() for name, array in model.items()
    }
    before = _store_bytes(tmp_path)
    repo.commit_state({"model": dict(model), "step": 4}, message="again")
    assert _store_bytes(tmp_path) == before
