"""What a user of Python would guess about ``mvc.Repo``."""

from __future__ import annotations

import contextlib
import os
import sys

import numpy as np
import pytest
from safetensors.numpy import save_file

import mvc

_WATCHING = []  # an audit hook stays until its process ends, so there is one


@contextlib.contextmanager
def _watch_opens():
    if not _WATCHING:
        _WATCHING.append(None)
        sys.addaudithook(
            lambda event, args: event == "open" and _WATCHING[0] and _WATCHING[0].append(args[0])
        )
    _WATCHING[0] = found = ["begun"]
    yield found
    _WATCHING[0] = None


@pytest.fixture
def repo(tmp_path):
    repo = mvc.Repo.init(tmp_path)
    save_file({"w": np.arange(6, dtype=np.float32)}, tmp_path / "a.safetensors")
    save_file({"v": np.ones(3, np.int8), "u": np.zeros((2, 2))}, tmp_path / "b.safetensors")
    repo.commit("first", paths=".", step=7, metrics={"loss": 0.5})
    return repo


def test_it_opens_by_its_name(repo, monkeypatch):
    (repo.worktree / "sub").mkdir()
    monkeypatch.chdir(repo.worktree / "sub")
    found = mvc.Repo("..", identity=mvc.Identity("A", "a@b.c"), threads=1)
    assert found.worktree == mvc.Repo().worktree == mvc.Repo.open(".").worktree == repo.worktree
    assert found.identity == mvc.Identity("A", "a@b.c")
    assert repr(found) == f"mvc.Repo({str(repo.worktree)!r})"
    with pytest.raises(mvc.RepositoryNotFoundError):
        mvc.Repo(repo.worktree.parent)


def test_a_folder_that_cannot_be_made_is_one_clear_line(tmp_path, monkeypatch):
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(mvc.UsageError, match="cannot make folder run: its parent folder"):
        mvc.Repo.init("run")


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_as_a_context_manager_it_leaves_no_file_open(repo):
    def opened():
        links = (f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd"))
        return [path for path in map(os.path.realpath, links) if str(repo.worktree) in path]

    repo.close()
    with mvc.Repo(repo.worktree) as found:
        found.tensor("HEAD", "a.safetensors", "w")
        assert opened()
    assert not opened()
    assert found.tensor("HEAD", "a.safetensors", "w").shape == (6,)  # it opens again


def test_an_entry_knows_its_commit(repo):
    (entry,) = repo.log()
    assert entry.id == repo.show().id == repo.head.commit == entry.info.id
    assert (entry.subject, entry.step, entry.metrics) == ("first", 7, {"loss": 0.5})
    result = repo.commit("second", allow_empty=True)
    assert result.id == repo.head.commit
    assert repo.show().metrics == {}


def test_frameworks_have_the_names_of_safetensors(repo):
    torch = pytest.importorskip("torch")
    read = repo.tensor("HEAD", "a.safetensors", "w", framework="pt")
    assert torch.equal(read, torch.arange(6.0))
    assert type(repo.tensor("HEAD", "a.safetensors", "w", framework="np")) is np.ndarray
    repo.commit_state({"model": {"w": read}}, message="state")
    assert type(repo.load_state(framework="np")["model"]["w"]) is np.ndarray
    assert torch.equal(repo.load_state(framework="pt")["model"]["w"], read)
    for call in (repo.load_state, repo.tensors):
        with pytest.raises(mvc.UsageError, match="unknown framework 'tf'"):
            call(framework="tf")


class TestTensors:
    def test_they_are_a_state_dict(self, repo):
        torch = pytest.importorskip("torch")
        assert [name for name, _ in repo.tensors()] == ["w", "u", "v"]
        state = dict(repo.tensors("HEAD", framework="pt"))
        assert torch.equal(state["v"], torch.ones(3, dtype=torch.int8))
        assert state["u"].shape == (2, 2)
        assert dict(repo.tensors(paths="b*", tensors="v"))["v"].tolist() == [1, 1, 1]

    def test_each_is_read_when_it_is_due(self, repo, monkeypatch):
        from mvc.chunkstore.store import ChunkStore

        read, original = [], ChunkStore.read_into
        monkeypatch.setattr(
            ChunkStore, "read_into", lambda *args, **kw: (read.append(1), original(*args, **kw))
        )
        tensors = repo.tensors()
        assert not read
        next(tensors)
        assert len(read) == 1

    def test_names_that_are_there_twice(self, repo):
        save_file({"w": np.zeros(2)}, repo.worktree / "c.safetensors")
        repo.commit("twice", paths=".")
        with pytest.raises(mvc.ConflictError, match=r"a\.safetensors and c\.safetensors"):
            repo.tensors()
        assert [name for name, _ in repo.tensors(paths=["c.safetensors"])] == ["w"]

    def test_what_is_missing_is_named(self, repo):
        with pytest.raises(mvc.NotFoundError, match=r"no tensor.*'x\*'"):
            repo.tensors(tensors="x*")
        with pytest.raises(mvc.NotFoundError):
            repo.tensors("nowhere")


def test_a_warm_read_looks_up_only_the_ref(repo, monkeypatch):
    """What does not change is not read again: of 450 us for a small tensor, most was that."""
    for _ in range(2):
        repo.tensor("HEAD", "a.safetensors", "w")
    made = []
    monkeypatch.setattr("mvc.chunkstore.store.ReadSlot", lambda: made.append(1))
    with _watch_opens() as opened:
        repo.tensor("HEAD", "a.safetensors", "w")
    names = [os.fspath(path) for path in opened if str(repo.worktree) in str(path)]
    assert [os.path.relpath(name, repo.git_dir) for name in names] == ["HEAD", "refs/heads/main"]
    assert not made  # memory and decompressor of the last read are used again
    repo.commit("second", allow_empty=True)
    repo.reset("HEAD", mode="soft")
    (repo.worktree / "a.safetensors").unlink()
    repo.commit("gone", everything=True)
    with pytest.raises(mvc.NotFoundError):  # and a branch that moved is seen
        repo.tensor("HEAD", "a.safetensors", "w")


def test_a_large_tensor_is_decoded_in_its_place(tmp_path, monkeypatch):
    """Neither a copy of every chunk, nor memory that is zeroed first."""
    from mvc.chunkstore.store import ChunkStore

    repo = mvc.Repo.init(tmp_path)
    repo.set_config("mvc.chunkbytes", "4096")
    values = np.random.default_rng(0).standard_normal(4000).astype(np.float32)
    save_file({"w": values}, tmp_path / "m.safetensors")
    repo.commit("m", paths=".")
    targets, original = [], ChunkStore.read_into

    def watch(self, chunk_id, plain, **options):
        targets.append(np.frombuffer(plain, np.uint8).__array_interface__["data"][0])
        return original(self, chunk_id, plain, **options)

    monkeypatch.setattr(ChunkStore, "read_into", watch)
    read = repo.tensor("HEAD", "m.safetensors", "w")
    start = read.__array_interface__["data"][0]
    assert sorted(targets) == [start + 4096 * number for number in range(4)]
    assert np.array_equal(read, values)
