"""fetch, pull and clone: everything is verified before it counts; a liar leaves nothing behind."""

import json
import threading
import weakref

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from mvc import ConflictError, FormatError, NotFoundError, UsageError, clone
from mvc.remotes import content, remote_packs
from mvc.remotes import remote as remote_module
from support.bounds import rest_slow
from support.remote_repos import commit_model, make_repo


@pytest.fixture
def repo(linked):
    repo = linked
    commit_model(repo)
    repo.push()
    return repo


@pytest.fixture
def copy(repo, store, tmp_path):
    copy = clone(store, tmp_path / "b")
    copy.identity = repo.identity
    return copy


def same_files(one, other):
    return all(
        (one.worktree / path).read_bytes() == (other.worktree / path).read_bytes()
        for path in (file.path for file in one.ls())
    )


def chunk_files(repo):
    return sorted(path.name for path in (repo.git_dir / "chunks" / "packs").glob("*"))


def test_what_is_new_comes_and_the_branch_here_stays(repo, copy):
    old = copy.head.commit
    new = commit_model(repo, seed=1)
    repo.tags.create("v1")
    repo.push(tags=True, all_branches=True)
    done = copy.fetch()
    assert {(one.name, one.status) for one in done.refs} == {
        ("refs/remotes/origin/main", "updated"),
        ("refs/tags/v1", "created"),
    }
    assert copy.head.commit == old
    assert copy.resolve("origin/main") == copy.resolve("v1") == new
    assert copy.upkeep.fsck(data=True).problems == ()
    copy.checkout("origin/main", detach=True)
    assert same_files(repo, copy)


def test_a_fetch_of_nothing_new_is_one_request(repo, copy, asked):
    copy.fetch()
    assert asked[-1].calls == [("read_tagged", "root")]


def test_packs_that_build_upon_each_other_are_checked_in_their_order(repo, store, tmp_path):
    """Each is checked when all has come that it needs, whatever the names of the packs."""
    repo.set_config("mvc.chunkbytes", "65536")
    values = {"layers": 2, "width": 256}
    name = "grown.safetensors"
    commit_model(repo, seed=7, name=name, **values)
    for step in range(6):
        tensors = load_file(repo.worktree / name)
        save_file(
            {key: value * np.float32(1.0001) for key, value in tensors.items()},
            repo.worktree / name,
        )
        repo.commit(f"step {step}", paths=[name], delta=True)
    repo.push()
    copies = repo._context.store.copies()
    assert copies.depths().max() >= 2
    copy = clone(store, tmp_path / "c")
    assert same_files(repo, copy)
    assert copy.upkeep.fsck(data=True).problems == ()


def test_branches_that_are_gone_are_pruned_when_asked(repo, copy):
    repo.branches.create("side")
    repo.push(all_branches=True)
    copy.fetch()
    repo.push("origin", [":side"])
    copy.fetch()
    assert copy.resolve("origin/side")
    assert [one.status for one in copy.fetch(prune=True).refs if one.name.endswith("side")] == [
        "pruned"
    ]
    with pytest.raises(NotFoundError):
        copy.resolve("origin/side")


def test_pull_goes_forward_or_merges(repo, copy):
    new = commit_model(repo, seed=1)
    repo.push()
    assert copy.pull().merged.kind == "fast-forward"
    assert copy.head.commit == new
    assert same_files(repo, copy)
    (copy.worktree / "notes").write_text("here")
    copy.commit("here", paths=["notes"])
    (repo.worktree / "other").write_text("there")
    repo.commit("there", paths=["other"])
    repo.push()
    with pytest.raises(ConflictError, match="fast-forward"):
        copy.pull(fast_forward="only")
    assert copy.pull().merged.kind == "merged"
    assert (copy.worktree / "other").read_text() == "there"


@pytest.mark.parametrize("how", ["flip", "cut", "gone", "swap"])
@pytest.mark.parametrize("kind", ["packs/*.pack", "packs/*.idx", "history/*.pack"])
def test_a_liar_leaves_nothing_behind(repo, copy, store, how, kind):
    commit_model(repo, seed=1)
    before = set(store.glob(kind))
    repo.push()
    (new,) = set(store.glob(kind)) - before
    data = bytearray(new.read_bytes())
    new.unlink()
    if how == "flip":
        data[len(data) // 2] ^= 0x10
    elif how == "cut":
        del data[-7:]
    elif how == "swap":
        data = bytearray(next(iter(before)).read_bytes())
    if how != "gone":
        new.write_bytes(data)
    had, head = chunk_files(copy), copy.resolve("origin/main")
    with pytest.raises((FormatError, NotFoundError)):
        copy.fetch()
    assert chunk_files(copy) == had
    assert copy.resolve("origin/main") == head
    assert copy.upkeep.fsck(data=True).problems == ()


def test_a_chunk_under_a_false_name_is_refused(repo, copy, store):
    """A pack that fits its name may still hold chunks that do not fit theirs."""
    from blake3 import blake3

    from mvc.formats.pack_index import encode_pack_index, index_records, parse_pack_index

    commit_model(repo, seed=1)
    before = set(store.glob("packs/*.pack"))
    repo.push()
    (new,) = set(store.glob("packs/*.pack")) - before
    index = parse_pack_index(new.with_suffix(".idx").read_bytes())
    data = bytearray(new.read_bytes())
    record = next(index.records())
    data[record.end - 1] ^= 1
    forged = blake3(data).hexdigest()
    (store / "packs" / f"{forged}.pack").write_bytes(data)
    (store / "packs" / f"{forged}.idx").write_bytes(
        encode_pack_index(index_records(forged, len(data), list(index.records())))
    )
    root = json.loads((store / "root").read_bytes())
    root["packs"][forged] = root["packs"].pop(new.stem)
    (store / "root").write_bytes(json.dumps(root).encode())
    had = chunk_files(copy)
    with pytest.raises(FormatError, match="damaged"):
        copy.fetch()
    assert chunk_files(copy) == had


def test_a_clone_that_fails_leaves_no_folder(repo, store, tmp_path):
    with pytest.raises(NotFoundError, match="nope"):
        clone(store, tmp_path / "c", branch="nope")
    with pytest.raises(NotFoundError, match="nothing was pushed"):
        clone(tmp_path / "empty", tmp_path / "c")
    assert not (tmp_path / "c").exists()
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "x").write_text("x")
    with pytest.raises(ConflictError):
        clone(store, tmp_path / "c")
    assert (tmp_path / "c" / "x").read_text() == "x"


class Live(bytearray):
    """Bytes that can be seen to go."""


class WatchedStorage:
    """Counts the bytes that it has given out and that are still held, and uploads under way."""

    def __init__(self, storage):
        self._storage = storage
        self._lock = threading.Lock()
        self.held_bytes = self.most_bytes = self.all_bytes = self.uploads = self.most_uploads = 0

    def __getattr__(self, name):
        return getattr(self._storage, name)

    def read_ranges(self, key, ranges):
        found = [Live(one) for one in self._storage.read_ranges(key, ranges)]
        for one in found:
            self._count(len(one))
            weakref.finalize(one, self._count, -len(one))
        return found

    def _count(self, size_bytes):
        with self._lock:
            self.held_bytes += size_bytes
            self.all_bytes += max(size_bytes, 0)
            self.most_bytes = max(self.most_bytes, self.held_bytes)

    def upload(self, *args):
        with self._lock:
            self.uploads += 1
            self.most_uploads = max(self.most_uploads, self.uploads)
        self._storage.upload(*args)
        with self._lock:
            self.uploads -= 1


@pytest.mark.parametrize("joined", rest_slow([False, True]))
def test_memory_is_what_is_on_its_way(repo, store, tmp_path, monkeypatch, joined):
    """Whole packs come in parts, parts of packs in groups: never more than a few of them at once."""
    part_bytes = 8192
    monkeypatch.setattr(remote_packs, "PART_BYTES", part_bytes)
    monkeypatch.setattr(content, "_GROUP_BYTES", part_bytes)
    opened, real = [], remote_module.open_store

    def open_watched(*args):
        opened.append(WatchedStorage(real(*args)))
        return opened[-1]

    monkeypatch.setattr(remote_module, "open_store", open_watched)
    copy = make_repo(tmp_path / "d", str(store))
    for seed in range(1, 13):
        commit_model(repo, seed=seed, layers=12, width=64)
    if joined:
        commit_model(repo, seed=20, name="other", layers=30, width=64)
        repo._context.store.gather(repo._context.store.packs())
        repo.push()
        repo.branches.create("half", "HEAD~1")
        repo.push("origin", ["half"])
        copy.fetch("origin", ["half"])
    else:
        repo.push()
        copy.fetch()
    assert opened[0].most_uploads <= 4
    assert opened[-1].all_bytes > 100 * part_bytes
    assert opened[-1].most_bytes <= 16 * part_bytes
    assert copy.upkeep.fsck(data=True).problems == ()


def test_a_ref_here_that_would_lose_commits_stops_the_fetch(repo, copy):
    copy.branches.create("mine")
    commit_model(copy, seed=5)
    copy.branches.create("mine", force=True)
    copy.tags.create("v1")
    commit_model(repo, seed=6)
    repo.tags.create("v1")
    repo.push(tags=True, all_branches=True)
    before = copy._context.history.list_refs()
    for spec, match in (
        ("main:mine", "refs/heads/mine has commits that refs/heads/main"),
        ("v1:refs/tags/v1", "refs/tags/v1 exists"),
        ("+main:main", "branch 'main' is checked out"),
        ("*:x", "a \\* on one side"),
    ):
        with pytest.raises((ConflictError, UsageError), match=match):
            copy.fetch("origin", [spec])
        assert copy._context.history.list_refs() == before
    copy.fetch("origin", ["+main:mine", "+v1:refs/tags/v1"])
    assert copy.resolve("mine") == copy.resolve("v1") == repo.head.commit
    assert copy.upkeep.fsck(data=True).problems == ()


def test_what_is_fetched_by_name_moves_what_follows_it_and_brings_no_tags(repo, copy):
    new = commit_model(repo, seed=1)
    repo.tags.create("v1")
    repo.push(tags=True, all_branches=True)
    done = copy.fetch("origin", ["main"])
    assert [(one.name, one.new) for one in done.refs] == [("refs/remotes/origin/main", new)]
    assert copy.resolve("FETCH_HEAD") == new
    done = copy.fetch(tags=False)
    assert [one.name for one in done.refs] == ["refs/remotes/origin/main"]
    done = copy.fetch("origin", ["main:seen"], tags=True)
    assert {one.name for one in done.refs} == {
        "refs/heads/seen",
        "refs/remotes/origin/main",
        "refs/tags/v1",
    }


def test_fetch_head_names_first_what_a_merge_takes(repo, copy):
    repo.branches.create("early")
    new = commit_model(repo, seed=1)
    repo.push(all_branches=True)
    copy.fetch()
    lines = (copy.git_dir / "FETCH_HEAD").read_text().splitlines()
    assert lines[0] == f"{new}\t\tbranch 'main' of {copy.remotes.list()['origin'].url}"
    assert [line.split("\t")[1] for line in lines[1:]] == ["not-for-merge"]
    assert copy.resolve("FETCH_HEAD") == new
    assert copy.merge("FETCH_HEAD").commit == new


def test_a_remote_may_have_several_fetch_rules(repo, copy):
    commit_model(repo, seed=1)
    repo.branches.create("side")
    repo.branches.create("other")
    repo.push(all_branches=True)
    config = copy.git_dir / "config"
    rule = '"+refs/heads/*:refs/remotes/origin/*"'
    assert rule in config.read_text()
    rules = '+refs/heads/main:refs/remotes/origin/main\n\tfetch = "refs/heads/s*:refs/seen/s*"'
    config.write_text(config.read_text().replace(rule, rules))
    done = copy.fetch()
    assert {one.name for one in done.refs} == {"refs/remotes/origin/main", "refs/seen/side"}
