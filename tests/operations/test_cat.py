import numpy as np
import pytest
from safetensors.numpy import save_file

from mvc import CorruptionError, NotFoundError, Repo, StorageError, UsageError
from mvc.dtypes import DTYPES
from mvc.formats.layout import Segment, TensorView
from mvc.formats.manifest import Manifest, StoredSegment
from mvc.formats.manifest_lines import encode_manifest
from mvc.history.values import Stamp
from mvc.ids import ChunkId
from support.damage import flip


def values(shape=(16, 256), seed=0, dtype=np.float32):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


class TestReading:
    def test_only_its_own_chunks_are_read(self, chunked, root, reads):
        save_file({"w": values(), "u": values(seed=1)}, root / "m.safetensors")
        chunked.commit("m", paths=".")
        read = chunked.tensor("HEAD", "m.safetensors", "u")
        assert np.array_equal(read, values(seed=1))
        assert len(reads) == 4
        read[0, 0] = 7  # the caller's own
        assert chunked.tensor("HEAD", "m.safetensors", "u")[0, 0] != 7

    @pytest.mark.parametrize("name", sorted(DTYPES))
    def test_every_dtype(self, chunked, root, name):
        dtype = DTYPES[name]
        raw = np.random.default_rng(0).integers(0, 256, 4 * dtype.block_bytes, np.uint8).tobytes()
        if name == "BOOL":
            raw = bytes([0, 1, 1, 0])
        shape = (2, 2 * dtype.block_elements)
        (root / "raw").write_bytes(raw)
        with chunked._context.store.writer() as writer:
            from mvc.chunkstore.values import ChunkSpan
            from mvc.sources import MemorySource

            (chunk,) = writer.add(MemorySource(raw), [ChunkSpan(0, len(raw), dtype)])
        commit_manifest(chunked, name, shape, len(raw), (chunk,))
        read = chunked.tensor("HEAD", "m", "w")
        assert read.tobytes() == raw
        if dtype.numpy_name:
            assert read.dtype.name == dtype.numpy_name
            assert read.shape == shape
        else:
            assert (read.dtype, read.shape) == (np.uint8, (len(raw),))

    @pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1,), (1, 1, 1)])
    def test_scalars_and_empty_ones(self, chunked, root, shape):
        given = np.full(shape, 3, np.float32)
        save_file({"w": given, "behind": values()}, root / "m.safetensors")
        chunked.commit("m", paths=".")
        read = chunked.tensor("HEAD", "m.safetensors", "w")
        assert (read.shape, read.dtype, read.tobytes()) == (shape, np.float32, given.tobytes())

    def test_of_torch(self, chunked, root):
        torch = pytest.importorskip("torch")
        base = torch.arange(24, dtype=torch.bfloat16).reshape(4, 6)
        state = {"w": base, "t": base.t(), "part": base[1:3, ::2], "n": {"x": torch.ones(3)}}
        torch.save(state, root / "m.pt")
        chunked.commit("m", paths=".")
        for name, given in (("w", base), ("t", base.t()), ("part", base[1:3, ::2])):
            read = chunked.tensor("HEAD", "m.pt", name, framework="torch")
            assert (read.dtype, read.shape) == (given.dtype, given.shape)
            assert torch.equal(read, given)
            array = chunked.tensor("HEAD", "m.pt", name)
            assert array.flags.c_contiguous
            assert np.array_equal(array.astype(np.float32), given.float().numpy())
        names = [tensor.name for tensor in chunked.ls()[0].tensors]
        assert len(names) == 4

    def test_damage_names_the_tensor(self, chunked, root):
        save_file({"w": values(), "u": values(seed=1)}, root / "m.safetensors")
        chunked.commit("m", paths=".")
        (pack,) = (root / ".mvc/chunks/packs").glob("*.pack")
        flip(pack, pack.stat().st_size // 4)
        opened = Repo.open(root)
        with pytest.raises(CorruptionError, match=r"tensor '[uw]' of m\.safetensors"):
            for name in ("w", "u"):
                opened.tensor("HEAD", "m.safetensors", name)


def commit_manifest(repo, dtype, shape, size_bytes, chunks, view=None):
    """Commit a file that only its manifest describes."""
    from mvc.history.values import TreeEntry
    from mvc.workspace.commits import record

    view = view or TensorView("w", dtype, shape)
    segment = Segment(0, size_bytes, dtype, (view,))
    manifest = Manifest("opaque", size_bytes, 4096, (), (StoredSegment(segment, chunks),))
    history = repo._context.history
    tree = {"m": TreeEntry(0o100644, history.write_blob(encode_manifest(manifest)))}
    commit = record(repo._context, tree, [], "made", committer=Stamp.now(repo.identity))
    history.update_head(
        commit, expected=repo.head.commit, message="x", stamp=Stamp.now(repo.identity)
    )


class TestRefusals:
    @pytest.fixture
    def model(self, chunked, root):
        save_file({"w": values()}, root / "m.safetensors")
        (root / "notes").write_text("plain")
        chunked.commit("m", paths=".")
        return chunked

    def test_nothing_of_that_name(self, model):
        for arguments in (
            ("nope", "m.safetensors", "w"),
            ("HEAD", "nope", "w"),
            ("HEAD", "m.safetensors", "nope"),
            ("HEAD", "notes", "w"),
            ("HEAD", ".", "w"),
        ):
            with pytest.raises(NotFoundError):
                model.tensor(*arguments)

    def test_another_framework(self, model):
        with pytest.raises(UsageError, match="jax"):
            model.tensor("HEAD", "m.safetensors", "w", framework="jax")

    def test_a_tensor_larger_than_the_memory(self, chunked):
        """One chunk, repeated by a stride of 0 into more elements than any machine holds."""
        view = TensorView("w", "U8", (2**30, 2**30), 0, (0, 0))
        commit_manifest(chunked, "U8", (), 16, (ChunkId(bytes(32)),), view)
        with pytest.raises(StorageError, match="more than the memory"):
            chunked.tensor("HEAD", "m", "w")
