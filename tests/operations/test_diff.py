import numpy as np
import pytest
from safetensors.numpy import save_file

from mvc import NotFoundError, UsageError
from mvc.formats.layout import single_tensor
from mvc.formats.manifest import Manifest, StoredSegment
from mvc.formats.manifest_lines import encode_manifest
from mvc.history.values import Stamp
from mvc.ids import ChunkId
from mvc.progress import reporting
from mvc.workspace.context import ManifestReader
from support.models import write_model
from support.opened_repo import write


def rows(count, *, seed=0, width=256):
    """Return an array of ``count`` rows of one KiB."""
    return np.random.default_rng(seed).standard_normal((count, width)).astype(np.float32)


def tensors_of(files):
    (file,) = files
    return {tensor.name: tensor for tensor in file.tensors}


def store_bytes(root):
    return sum(path.stat().st_size for path in (root / ".mvc/chunks").rglob("*") if path.is_file())


@pytest.fixture
def versions(chunked, root):
    """Commit a dict of tensors per call, in one file."""

    def commit(tensors, name="m.safetensors", metadata=None):
        save_file(tensors, root / name, metadata)
        return chunked.commit("version", paths=name, allow_empty=True)

    return commit


class TestTensors:
    def test_modified_counts_chunks(self, chunked, versions):
        base = rows(16)
        changed = base.copy()
        changed[5] += 1
        versions({"u": rows(3, seed=9), "w": base})
        versions({"u": rows(3, seed=9), "w": changed})
        (file,) = chunked.diff("HEAD~1", "HEAD")
        assert (file.status, file.format, file.tensors_total) == ("modified", "safetensors", 2)
        assert not file.other_changed
        (tensor,) = file.tensors
        assert (tensor.name, tensor.status) == ("w", "modified")
        assert (tensor.dtype, tensor.shape, tensor.size_bytes) == ("F32", (16, 256), 16 * 1024)
        assert (tensor.chunks_changed, tensor.chunks_total) == (1, 4)
        assert (tensor.old_dtype, tensor.old_shape, tensor.old_name) == (None, None, None)

    def test_appended_rows_keep_the_old_chunks(self, chunked, versions):
        versions({"w": rows(16)})
        versions({"w": np.concatenate([rows(16), rows(5, seed=3)])})
        tensor = tensors_of(chunked.diff("HEAD~1", "HEAD"))["w"]
        assert (tensor.old_shape, tensor.shape) == ((16, 256), (21, 256))
        assert (tensor.chunks_changed, tensor.chunks_total) == (2, 6)

    def test_the_same_bytes_read_otherwise(self, chunked, versions):
        versions({"shape": rows(4), "dtype": rows(4, seed=1)})
        versions({"shape": rows(4).reshape(2, 512), "dtype": rows(4, seed=1).view(np.int32)})
        found = tensors_of(chunked.diff("HEAD~1", "HEAD"))
        assert {name: tensor.chunks_changed for name, tensor in found.items()} == {
            "dtype": 0, "shape": 0,
        }  # fmt: skip
        assert found["shape"].old_shape == (4, 256)
        assert found["dtype"].old_dtype == "F32"

    def test_added_removed_renamed(self, chunked, versions):
        versions({"stays": rows(4), "goes": rows(4, seed=1), "old": rows(4, seed=2)})
        versions({"stays": rows(4), "new": rows(5, seed=3), "renamed": rows(4, seed=2)})
        found = tensors_of(chunked.diff("HEAD~1", "HEAD"))
        assert {name: tensor.status for name, tensor in found.items()} == {
            "new": "added", "renamed": "renamed", "goes": "removed",
        }  # fmt: skip
        assert found["renamed"].old_name == "old"
        assert (found["new"].chunks_changed, found["new"].chunks_total) == (2, 2)
        assert found["renamed"].chunks_changed == 0
        back = tensors_of(chunked.diff("HEAD", "HEAD~1"))
        assert {name: tensor.status for name, tensor in back.items()} == {
            "goes": "added", "old": "renamed", "new": "removed",
        }  # fmt: skip

    def test_equal_tensors_are_renamed_one_by_one(self, chunked, versions):
        twin = rows(4)
        versions({"a": twin, "b": twin.copy(), "c": twin.copy()})
        versions({"x": twin, "y": twin.copy()})
        found = tensors_of(chunked.diff("HEAD~1", "HEAD"))
        assert [(t.name, t.status, t.old_name) for t in found.values()] == [
            ("x", "renamed", "a"), ("y", "renamed", "b"), ("c", "removed", None),
        ]  # fmt: skip

    def test_metadata_only(self, chunked, versions):
        """Tensors that only lie elsewhere in the file are the same."""
        versions({"w": rows(4)}, metadata={"epoch": "1"})
        versions({"w": rows(4)}, metadata={"epoch": "2" * 99})
        (file,) = chunked.diff("HEAD~1", "HEAD")
        assert (file.tensors, file.other_changed) == ((), True)
        assert chunked.diff() == chunked.diff(staged=True) == []

    def test_filter(self, chunked, root, versions):
        versions({"layers.0.q": rows(4), "layers.0.v": rows(4, seed=1), "norm": rows(1)})
        write(root, "notes", "one")
        chunked.commit("notes", paths="notes")
        versions({"layers.0.q": rows(4, seed=5), "layers.0.v": rows(4, seed=6), "norm": rows(2)})
        write(root, "notes", "two")
        chunked.commit("notes", paths="notes")
        found = tensors_of(chunked.diff("HEAD~2", "HEAD", tensors="layers.*.q"))
        assert list(found) == ["layers.0.q"]
        assert chunked.diff("HEAD~2", "HEAD", tensors="nope*") == []
        versions({"layers.0.k": rows(4, seed=5), "layers.0.v": rows(4, seed=6), "norm": rows(2)})
        for pattern in ("*.q", "*.k"):  # of a renamed one both names count
            assert list(tensors_of(chunked.diff("HEAD~1", "HEAD", tensors=pattern))) == [
                "layers.0.k"
            ]

    def test_ties_and_views_of_torch(self, chunked, root):
        torch = pytest.importorskip("torch")
        shared = torch.arange(512, dtype=torch.float32).reshape(16, 32)
        torch.save({"tied.a": shared, "tied.b": shared, "t": shared.t()}, root / "m.pt")
        chunked.commit("one", paths="m.pt")
        changed = shared.clone()
        changed[0, 0] = -1
        torch.save({"tied.a": changed, "tied.b": changed, "t": changed.t()}, root / "m.pt")
        chunked.commit("two", paths="m.pt")
        found = tensors_of(chunked.diff("HEAD~1", "HEAD"))
        assert {name: tensor.status for name, tensor in found.items()} == {
            "tied.a": "modified", "tied.b": "modified", "t": "modified",
        }  # fmt: skip
        torch.save({"tied.x": changed, "tied.b": changed, "t": changed.t()}, root / "m.pt")
        chunked.commit("three", paths="m.pt")
        found = tensors_of(chunked.diff("HEAD~1", "HEAD"))
        assert [(t.name, t.status, t.old_name) for t in found.values()] == [
            ("tied.x", "renamed", "tied.a")
        ]
        torch.save({"tied.x": changed, "tied.b": changed, "t": changed}, root / "m.pt")
        chunked.commit("four", paths="m.pt")
        (tensor,) = chunked.diff("HEAD~1", "HEAD")[0].tensors
        assert (tensor.name, tensor.old_shape, tensor.shape) == ("t", (32, 16), (16, 32))


class TestFiles:
    def test_statuses(self, repo, root):
        for name in ("same", "changed", "gone", "old"):
            write(root, name, name)
        repo.commit("one", paths=".")
        (root / "gone").unlink()
        (root / "old").rename(root / "d-new")
        write(root, "changed", "changed!")
        write(root, "new", "new")
        repo.commit("two", paths=".")
        found = repo.diff("HEAD~1", "HEAD")
        assert [(file.path, file.status, file.old_path) for file in found] == [
            ("changed", "modified", None),
            ("d-new", "renamed", "old"),
            ("gone", "removed", None),
            ("new", "added", None),
        ]
        assert [file.size_bytes for file in found] == [8, 3, 4, 3]
        assert [file.other_changed for file in found] == [True, False, True, True]
        without = repo.diff("HEAD~1", "HEAD", with_tensors=False)
        assert [(file.path, file.status) for file in without] == [
            (file.path, file.status) for file in found
        ]

    def test_a_moved_checkpoint_is_renamed(self, repo, root):
        write_model(root / "m.safetensors")
        repo.commit("one", paths=".")
        repo.move("m.safetensors", "deep/n.safetensors")
        (file,) = repo.diff(staged=True)
        assert (file.status, file.old_path, file.tensors) == ("renamed", "m.safetensors", ())

    def test_paths(self, repo, root):
        for name in ("a", "d/b", "d/c"):
            write(root, name, "one")
        repo.commit("one", paths=".")
        for name in ("a", "d/b", "d/c"):
            write(root, name, "two")
        assert [file.path for file in repo.diff(paths="d")] == ["d/b", "d/c"]
        assert [file.path for file in repo.diff(paths=["a", "*/c"])] == ["a", "d/c"]
        assert repo.diff(paths="nope") == []
        repo.commit("two", everything=True)
        assert [file.path for file in repo.diff("HEAD~1", "HEAD", paths="a")] == ["a"]

    def test_mode_and_kind_only(self, repo, root):
        write_model(root / "m.safetensors")
        write(root, "run", "x")
        write(root, "text", "target")
        repo.commit("one", paths=".")
        (root / "m.safetensors").chmod(0o755)
        (root / "run").chmod(0o755)
        (root / "text").unlink()
        (root / "text").symlink_to("target")
        found = repo.diff()
        assert [(file.path, file.status, file.mode_changed) for file in found] == [
            (path, "modified", True) for path in ("m.safetensors", "run", "text")
        ]
        assert all(file.tensors == () and not file.other_changed for file in found)


MODEL = {f"layers.{number}.w": rows(2, seed=number) for number in range(6)}


class TestOtherFiles:
    """Tensors that lie in other files than before."""

    @pytest.fixture
    def saved(self, chunked, root):
        """Commit these files, each a dict of tensors, in place of all before; return the diff."""

        def commit(**files):
            for path in [path for path in root.iterdir() if path.is_file()]:
                path.unlink()
            for name, tensors in files.items():
                save_file(tensors, root / f"{name}.safetensors")
            chunked.commit("version", paths=".")
            return {file.path.partition(".")[0]: file for file in chunked.changes()}

        return commit

    def part(self, first, last):
        return {f"layers.{number}.w": MODEL[f"layers.{number}.w"] for number in range(first, last)}

    def test_shards_and_back(self, chunked, saved):
        saved(model=MODEL)
        for shards, old, new in (
            ({"m1": self.part(0, 2), "m2": self.part(2, 6)}, "model", {"m1": 2, "m2": 4}),
            ({"m3": self.part(0, 3), "m4": self.part(3, 6)}, None, {"m3": 3, "m4": 3}),
            ({"model": MODEL}, None, {"model": 6}),
        ):
            found = saved(**shards)
            assert not any(file.tensors for file in found.values())
            came = {
                name: sum(count for _, count in file.moved_from) for name, file in found.items()
            }
            assert {name: count for name, count in came.items() if count} == new
            if old:
                assert [path for path, _ in found[old].moved_to] == [
                    f"{name}.safetensors" for name in new
                ]
        assert chunked.diff("HEAD~3", "HEAD") == []
        assert chunked.diff("HEAD~1", "HEAD", tensors="*") == []

    def test_only_what_changed_is_listed(self, saved):
        saved(model=MODEL)
        found = saved(
            m1={
                **self.part(0, 2),
                "layers.1.w": MODEL["layers.1.w"] + 1,
                "new": rows(1, seed=9),
            },
            m2={**self.part(3, 5), "head": MODEL["layers.5.w"]},
        )
        shown = {
            (name, one.name): (one.status, one.old_path, one.old_name, one.chunks_changed)
            for name, file in found.items()
            for one in file.tensors
        }
        assert shown == {
            ("m1", "layers.1.w"): ("modified", "model.safetensors", None, 1),
            ("m1", "new"): ("added", None, None, 1),
            ("m2", "head"): ("renamed", "model.safetensors", "layers.5.w", 0),
            ("model", "layers.2.w"): ("removed", None, None, 1),
        }
        assert found["model"].moved_to == (("m1.safetensors", 1), ("m2.safetensors", 2))

    def test_models_of_the_same_names_are_told_apart(self, saved):
        other = {name: values + 1 for name, values in MODEL.items()}
        saved(a=MODEL, b=other)
        found = saved(x=other, y=MODEL)  # as whole files: renamed
        assert [file.status for file in found.values()] == ["renamed", "renamed"]
        found = saved(x={**other, "t": rows(1)}, y={**MODEL, "u": rows(1, seed=3)})
        found = saved(p=other, q=MODEL)
        assert found["p"].moved_from == (("x.safetensors", 6),)
        assert found["q"].moved_from == (("y.safetensors", 6),)

    @pytest.mark.torch
    def test_another_format(self, chunked, root, saved):
        torch = pytest.importorskip("torch")
        model = {name: torch.from_numpy(values) for name, values in MODEL.items()}
        torch.save(model, root / "pytorch_model.bin")
        chunked.commit("bin", paths=".")
        found = saved(model=MODEL)
        assert found["model"].moved_from == (("pytorch_model.bin", 6),)
        assert not any(file.tensors for file in found.values())


class TestSides:
    @pytest.fixture
    def three(self, repo, root):
        """``a`` holds HEAD~1, HEAD, index and worktree apart."""
        for text in ("first", "second"):
            write(root, "a", text)
            repo.commit(text, paths="a")
        write(root, "a", "in the index")
        repo.add("a")
        write(root, "a", "in the worktree!")
        return repo

    @pytest.mark.parametrize(
        ("arguments", "staged", "size_bytes"),
        [
            ((), False, 16),
            (("HEAD~1",), False, 16),
            ((), True, 12),
            (("HEAD~1",), True, 12),
            (("HEAD~1", "HEAD"), False, 6),
            (("HEAD", "HEAD~1"), False, 5),
        ],
    )
    def test_which_are_compared(self, three, arguments, staged, size_bytes):
        (file,) = three.diff(*arguments, staged=staged)
        assert file.size_bytes == size_bytes

    def test_what_cannot_be_asked(self, three):
        with pytest.raises(UsageError):
            three.diff(None, "HEAD")
        with pytest.raises(UsageError):
            three.diff("HEAD~1", "HEAD", staged=True)
        with pytest.raises(NotFoundError):
            three.diff("nope")

    def test_before_the_first_commit(self, repo, root):
        write(root, "a", "x")
        repo.add("a")
        assert [file.status for file in repo.diff(staged=True)] == ["added"]
        assert repo.diff() == []

    def test_states_that_were_never_made_do_not_differ(self, repo):
        repo.commit_state({"model": {"w": rows(2)}}, message="one")
        repo.commit_state({"model": {"w": rows(2, seed=1)}}, message="two")
        assert repo.diff() == repo.diff("HEAD") == repo.diff(staged=True) == []
        assert list(tensors_of(repo.diff("HEAD~1", paths="model.safetensors"))) == ["w"]


class TestCost:
    def test_a_changed_file_is_hashed_and_not_stored(self, chunked, versions, root):
        versions({"w": rows(64)})
        before = store_bytes(root), sorted((root / ".mvc/objects").rglob("*"))
        save_file({"w": rows(64, seed=1)}, root / "m.safetensors")
        calls = []
        with reporting(calls.append):
            (file,) = chunked.diff()
        assert (file.tensors[0].chunks_changed, file.tensors[0].chunks_total) == (16, 16)
        assert sum(calls) == (root / "m.safetensors").stat().st_size
        assert (store_bytes(root), sorted((root / ".mvc/objects").rglob("*"))) == before

    def test_names_only_reads_up_to_the_first_difference(self, chunked, versions, root):
        """It answers as a full comparison does, also for a file that is back at an older version."""
        versions({"w": rows(16), "u": rows(3)})
        versions({"w": rows(16, seed=2), "u": rows(3)})
        for tensors in ({"w": rows(16, seed=1), "u": rows(3)}, {"w": rows(16), "u": rows(3)}):
            save_file(tensors, root / "m.safetensors")
            for old in (None, "HEAD", "HEAD~1"):
                calls = []
                with reporting(calls.append):
                    files = chunked.diff(old, with_tensors=False)
                expected = [
                    (file.path, file.status, file.mode_changed) for file in chunked.diff(old)
                ]
                assert [(one.path, one.status, one.mode_changed) for one in files] == expected
                assert calls == []
        assert expected == []  # as HEAD~1 has it
        (root / "m.safetensors").chmod(0o755)
        (file,) = chunked.diff("HEAD~1", with_tensors=False)
        assert (file.status, file.mode_changed) == ("modified", True)

    @pytest.mark.slow
    def test_big_manifests(self, repo, monkeypatch):
        """40,000 tensors of 300,000 chunks: nothing but two blobs is read, by name not even they."""
        history = repo._context.history
        count = 40_000

        def manifest(version):
            segments = []
            for number in range(count):
                key = version if number % 10 == 0 else 0
                first = (key * count + number) * 8
                chunks = tuple(ChunkId((first + i).to_bytes(32, "big")) for i in range(7))
                segment = single_tensor(f"layers.{number}.w", "U8", (7, 1024), number * 7168)
                segments.append(StoredSegment(segment, chunks))
            return Manifest("safetensors", count * 7168, 1024, (), tuple(segments))

        from mvc.history.values import TreeEntry
        from mvc.workspace.commits import record

        who, parents = repo.identity, []
        for version in (1, 2):
            blob = history.write_blob(encode_manifest(manifest(version)))
            tree = {"m.safetensors": TreeEntry(0o100644, blob)}
            parents = [record(repo._context, tree, parents, "x", committer=Stamp.now(who))]
        history.update_head(parents[0], expected=None, message="x", stamp=Stamp.now(who))

        reads = []
        original = ManifestReader.read
        monkeypatch.setattr(
            ManifestReader,
            "read",
            lambda self, blob: (reads.append(blob), original(self, blob))[1],
        )
        (file,) = repo.diff("HEAD~1", "HEAD", with_tensors=False)
        assert (file.path, file.status, reads) == ("m.safetensors", "modified", [])
        (file,) = repo.diff("HEAD~1", "HEAD")
        assert len(file.tensors) == count // 10
        assert all(tensor.chunks_changed == 7 for tensor in file.tensors)
        assert len(reads) == 2
        assert "store" not in vars(repo._context)  # no chunk was looked for
