import json
import os

import numpy as np
import pytest
from safetensors.numpy import save_file

from mvc import ConflictError, NotFoundError, Repo, UnsupportedError, UsageError
from mvc.formats.manifest import MANIFEST_PREFIX
from mvc.progress import reporting
from support.models import write_model


def write(root, *paths, text="x"):
    for path in paths:
        target = root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)


def staged(repo):
    """Return path → mode and blob of the index."""
    entries = repo._context.history.read_index().entries
    return {path: (entry.mode, entry.blob) for path, entry in entries.items()}


def added(result):
    return [file.path for file in result.added]


class TestPatterns:
    def test_wildcards_reach_into_folders(self, repo, root):
        write(root, "a.bin", "d/b.bin", "d/c.txt", "dd/x", ".hidden")
        assert added(repo.add("d/")) == ["d/b.bin", "d/c.txt"]
        assert added(repo.add("*.bin")) == ["a.bin"]
        (root / "a.bin").unlink()
        assert repo.add("*.bin").removed == ("a.bin",)
        assert added(repo.add(".")) == [".hidden", "dd/x"]

    def test_a_name_with_wildcard_signs_is_a_name(self, repo, root):
        write(root, "w[1].bin", "w1.bin")
        repo.add(".")
        write(root, "w[1].bin", "w1.bin", text="changed")
        assert added(repo.add("w[1].bin")) == ["w[1].bin"]
        write(root, "w[1].bin", text="again")
        repo.remove("w[1].bin", cached=True, force=True)
        assert list(staged(repo)) == ["w1.bin"]
        assert added(repo.add("w[1].bin")) == ["w[1].bin"]  # not tracked, but there
        (root / "w[1].bin").unlink()
        repo.add("w[1].bin")
        assert added(repo.add("w[1].bin")) == ["w1.bin"]  # nobody has that name now

    def test_nothing_there(self, repo, root):
        with pytest.raises(NotFoundError, match="'nope' does not exist"):
            repo.add("nope")
        with pytest.raises(NotFoundError):
            repo.add("*.nope")
        (root / "empty").mkdir()
        with pytest.raises(UsageError, match="contains no files"):
            repo.add("empty")
        assert added(repo.add(".")) == []

    def test_one_wrong_path_stages_nothing(self, repo, root):
        write(root, "a")
        with pytest.raises(NotFoundError):
            repo.add(["a", "nope"])
        assert staged(repo) == {}

    def test_beyond_a_link(self, repo, root, tmp_path):
        write(tmp_path, "elsewhere/secret")
        (root / "link").symlink_to(tmp_path / "elsewhere")
        with pytest.raises(UsageError, match="beyond 'link'"):
            repo.add("link/secret")
        assert added(repo.add(".")) == ["link"]


class TestTracking:
    def test_unchanged_files_are_not_read_and_keep_their_entry(self, repo, root):
        write_model(root / "m.safetensors")
        write(root, "a")
        repo.add(".")
        entries = repo._context.history.read_index().entries
        calls = []
        with reporting(calls.append):
            result = Repo.open(root).add(".")
        assert (added(result), result.unchanged, calls) == ([], ("a", "m.safetensors"), [])
        assert repo._context.history.read_index().entries == entries

    def test_a_touched_file_is_read_but_is_the_same(self, repo, root):
        write(root, "a")
        repo.add(".")
        before = staged(repo)
        os.utime(root / "a", ns=(10**18, 10**18))
        assert added(repo.add(".")) == ["a"]
        assert staged(repo) == before

    def test_a_pipe_is_passed_over_unless_it_took_the_place_of_a_file(self, repo, root):
        write(root, "a")
        repo.add(".")
        os.mkfifo(root / "pipe")
        assert added(repo.add(".")) == []
        (root / "a").unlink()
        os.mkfifo(root / "a")
        with pytest.raises(ConflictError, match="neither a file nor a link"):
            repo.add("a")
        assert list(staged(repo)) == ["a"]

    def test_a_link_that_reads_like_a_manifest_is_refused(self, repo, root):
        os.symlink(MANIFEST_PREFIX + b"1}", os.fsencode(root / "link"))
        with pytest.raises(UnsupportedError, match="text of link 'link'"):
            repo.add("link")

    @pytest.mark.parametrize("name", ["back\\slash", ".git ", "git~1", ".GIT"])
    def test_a_name_that_no_commit_may_hold(self, repo, root, name):
        write(root, "a", f"d/{name}")
        with pytest.raises(UsageError, match=r"backslash|names .mvc or .git|ignored"):
            repo.add(f"d/{name}")
        write_model(root / "m.safetensors")
        if name != ".GIT":  # never looked at, like .git itself
            with pytest.raises(UsageError) as caught:
                repo.add(".")
            assert caught.value.hint == "rename it, or name it in .mvcignore"
            assert list((root / ".mvc").glob("chunks/packs/*")) == []  # nothing was read for it
        write(root, ".mvcignore", text="d/\n")
        assert added(repo.add(".")) == [".mvcignore", "a", "m.safetensors"]


class TestIgnored:
    def test_tracked_files_are_never_ignored(self, repo, root):
        write(root, "a.tmp")
        repo.add(".")
        write(root, ".mvcignore", text="*.tmp\n")
        write(root, "a.tmp", text="new")
        assert "a.tmp" in added(repo.add("."))
        write(root, "a.tmp", text="newer")
        assert added(repo.add("a.tmp")) == ["a.tmp"]

    def test_another_repository_is_left_alone(self, repo, root):
        write(root, "a", "inner/x", "inner/d/y")
        Repo.init(root / "inner")
        assert added(repo.add(".")) == ["a"]
        for path in ("inner", "inner/x", "inner/d", "inner/d/y"):
            with pytest.raises(UsageError, match="belongs to the repository in 'inner'"):
                repo.add(path)
            with pytest.raises(UsageError, match="belongs to the repository in 'inner'"):
                repo.add(path, force=True)
        assert staged(repo).keys() == {"a"}


class TestStorage:
    def test_an_empty_checkpoint(self, repo, root):
        for name in ("a.safetensors", "a.pt", "a.npy", "a.npz", "a.gguf"):
            (root / name).touch()
        result = repo.add(".")
        assert len(result.added) == 5
        repo.commit("empty")
        (root / "a.pt").unlink()
        repo.restore("a.pt")
        assert (root / "a.pt").read_bytes() == b""

    def test_warnings_name_what_is_wrong(self, repo, root):
        (root / "bad.safetensors").write_bytes(b"\xff" * 100)
        write_model(root / "good.safetensors")
        result = repo.add(".")
        ((path, text),) = result.warnings
        assert path == "bad.safetensors"
        assert text
        assert repo.commit("x", paths="good.safetensors").warnings == ()

    def test_progress_counts_the_bytes_that_are_read(self, repo, root):
        write_model(root / "m.safetensors", layers=4)
        write(root, "a", text="0123456789")
        calls = []
        plan = repo.plan_add(".")
        with reporting(calls.append):
            repo.add(".")
        assert sum(calls) == plan.size_bytes
        assert plan.size_bytes == (root / "m.safetensors").stat().st_size + 10

    def test_plan_reads_nothing_and_changes_nothing(self, repo, root):
        write(root, "a", "b")
        repo.add("a")
        (root / "a").unlink()
        plan = repo.plan_add(".")
        assert (plan.read, plan.drop, plan.unchanged, plan.size_bytes) == (("b",), ("a",), (), 1)
        assert list(staged(repo)) == ["a"]


class TestShards:
    def shards(self, folder, names):
        folder.mkdir(parents=True, exist_ok=True)
        for number, name in enumerate(names):
            save_file({f"w{number}": np.full(8, number, np.float32)}, folder / name)
        weight_map = {f"w{number}": name for number, name in enumerate(names)}
        path = folder / "model.safetensors.index.json"
        path.write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
        return path

    def test_the_index_brings_its_shards(self, repo, root):
        self.shards(root / "hub", ["model-1.safetensors", "model-2.safetensors"])
        write(root, "hub/notes.txt")
        assert added(repo.add("hub/model.safetensors.index.json")) == [
            "hub/model-1.safetensors",
            "hub/model-2.safetensors",
            "hub/model.safetensors.index.json",
        ]

    def test_a_missing_shard_is_an_error(self, repo, root):
        self.shards(root, ["one.safetensors", "two.safetensors"])
        (root / "two.safetensors").unlink()
        with pytest.raises(NotFoundError, match=r"'two.safetensors', which does not exist"):
            repo.add("model.safetensors.index.json")
        assert staged(repo) == {}

    def test_an_index_that_names_files_elsewhere_brings_none(self, repo, root, tmp_path):
        write(tmp_path, "outside")
        text = json.dumps({"weight_map": {"w": "../outside"}})
        write(root, "x.index.json", text=text)
        assert added(repo.add("x.index.json")) == ["x.index.json"]


def test_two_adds_keep_what_both_staged(repo, root):
    """The second one read the index before the first one wrote it."""
    write(root, "a", "b")
    first, second = Repo.open(root), Repo.open(root)
    plan = second.plan_add("b")
    first.add("a")
    from mvc.operations.add import store_planned

    store_planned(second._context, plan, delta=None).stage(second._context)
    assert list(staged(repo)) == ["a", "b"]


def test_many_patterns_look_at_each_file_once(repo, root, monkeypatch):
    """300 names and 300 wildcards of 300 files: one stat for each name, one walk for wildcards."""
    from mvc.operations import add as additions

    count = 300
    for number in range(count):
        write(root, f"d/{number:03}.txt")
    looks, walks = [], []
    find, scan = additions.find_file_stat, additions.scan_files
    monkeypatch.setattr(
        additions, "find_file_stat", lambda *place: looks.append(place) or find(*place)
    )
    monkeypatch.setattr(additions, "scan_files", lambda *place: walks.append(place) or scan(*place))
    names = [f"d/{number:03}.txt" for number in range(count)]
    plan = repo.plan_add([*names, *names, *(f"d/{number:03}*" for number in range(count))])
    assert len(plan.read) == count
    assert len(looks) == 2 * count
    assert len(walks) == 1


def test_many_small_files_cost_few_syncs_and_files(repo, root, monkeypatch):
    for one in range(300):
        write(root, f"d{one % 7}/f{one}", text=f"file {one}")
    synced, real = [], os.fsync
    monkeypatch.setattr(
        os, "fsync", lambda descriptor: (synced.append(descriptor), real(descriptor))
    )
    read, preadv = [], os.preadv
    monkeypatch.setattr(os, "preadv", lambda *args: (read.append(args), preadv(*args))[1])
    objects = root / ".mvc" / "objects"
    assert len(repo.add(".").added) == 300
    assert len(synced) <= 8
    assert len(read) < 310  # each file at once
    assert len([path for path in objects.rglob("*") if path.is_file()]) == 2  # pack and index
    synced.clear()
    commit = repo.commit("many").commit
    assert len(synced) < 40  # eight trees and a commit are few: files of their own
    assert repo.status().is_clean
    opened = Repo.open(root)
    opened.checkout(commit)
    assert opened.upkeep.fsck(data=True).ok
