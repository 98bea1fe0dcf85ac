from __future__ import annotations

import json
import os
import shutil

import numpy as np
import pytest
from safetensors.numpy import save_file

from mvc import ConflictError, NotFoundError, Repo, UnsupportedError, UsageError
from mvc.formats.manifest import MANIFEST_PREFIX
from mvc.workspace.files import PLAIN_FILE_MAX_BYTES
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
    def test_everything(self, repo, root):
        write(root, "a", "d/b", "d/e/c", ".hidden")
        assert added(repo.add(".")) == [".hidden", "a", "d/b", "d/e/c"]

    def test_folder_and_file(self, repo, root):
        write(root, "a", "d/b", "d/c", "dd/x")
        assert added(repo.add("d")) == ["d/b", "d/c"]
        assert added(repo.add(["a", "d/b"])) == ["a"]

    def test_trailing_slash_dots_and_absolute_paths(self, repo, root):
        write(root, "d/b", "d/c", "e/f")
        assert added(repo.add("d/")) == ["d/b", "d/c"]
        assert added(repo.add("./e/../e/f")) == ["e/f"]
        write(root, "g")
        assert added(repo.add(root / "g")) == ["g"]

    def test_wildcards_reach_into_folders(self, repo, root):
        write(root, "a.bin", "d/b.bin", "d/c.txt")
        assert added(repo.add("*.bin")) == ["a.bin", "d/b.bin"]
        assert added(repo.add("d/?.txt")) == ["d/c.txt"]

    def test_wildcard_finds_removed_files(self, repo, root):
        write(root, "a.bin", "b.bin")
        repo.add(".")
        (root / "a.bin").unlink()
        assert repo.add("*.bin").removed == ("a.bin",)

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

    @pytest.mark.parametrize("path", ["..", "../x", "/etc/passwd"])
    def test_outside(self, repo, path):
        with pytest.raises(UsageError, match="outside the repository"):
            repo.add(path)

    @pytest.mark.parametrize("path", [".mvc", ".mvc/config", ".MVC/config", "a/../.mvc/HEAD"])
    def test_inside_the_repository_folder(self, repo, path):
        with pytest.raises(UsageError, match="inside"):
            repo.add(path)

    def test_nul(self, repo):
        with pytest.raises(UsageError, match="NUL"):
            repo.add("a\0b")

    def test_beyond_a_link(self, repo, root, tmp_path):
        write(tmp_path, "elsewhere/secret")
        (root / "link").symlink_to(tmp_path / "elsewhere")
        with pytest.raises(UsageError, match="beyond 'link'"):
            repo.add("link/secret")
        assert added(repo.add(".")) == ["link"]

    def test_no_path_adds_nothing(self, repo, root):
        write(root, "a")
        assert added(repo.add([])) == []
        assert staged(repo) == {}


class TestTracking:
    def test_removed_files_are_staged_as_removals(self, repo, root):
        write(root, "a", "d/b", "d/c")
        repo.add(".")
        (root / "a").unlink()
        shutil.rmtree(root / "d")
        assert repo.add("d").removed == ("d/b", "d/c")
        assert list(staged(repo)) == ["a"]
        assert repo.add("a").removed == ("a",)
        assert staged(repo) == {}

    def test_unchanged_files_are_not_read_and_keep_their_entry(self, repo, root):
        write_model(root / "m.safetensors")
        write(root, "a")
        repo.add(".")
        entries = repo._context.history.read_index().entries
        calls = []
        result = Repo.open(root).add(".", progress=calls.append)
        assert (added(result), result.unchanged, calls) == ([], ("a", "m.safetensors"), [])
        assert repo._context.history.read_index().entries == entries

    def test_a_touched_file_is_read_but_is_the_same(self, repo, root):
        write(root, "a")
        repo.add(".")
        before = staged(repo)
        os.utime(root / "a", ns=(10**18, 10**18))
        assert added(repo.add(".")) == ["a"]
        assert staged(repo) == before

    def test_only_the_executable_bit_changed(self, repo, root):
        write(root, "run.sh")
        repo.add(".")
        ((mode, blob),) = staged(repo).values()
        (root / "run.sh").chmod(0o755)
        assert added(repo.add(".")) == ["run.sh"]
        assert staged(repo) == {"run.sh": (0o100755, blob)}
        assert mode == 0o100644
        (root / "run.sh").chmod(0o601)  # others may run it: not the bit Git looks at
        repo.add(".")
        assert staged(repo) == {"run.sh": (0o100644, blob)}

    def test_links_are_stored_as_links(self, repo, root):
        write(root, "d/a")
        (root / "to-file").symlink_to("d/a")
        (root / "to-folder").symlink_to("d")
        (root / "dangling").symlink_to("../../nowhere")
        assert added(repo.add(".")) == ["d/a", "dangling", "to-file", "to-folder"]
        assert {mode for path, (mode, _) in staged(repo).items() if path != "d/a"} == {0o120000}
        repo.commit("links")
        assert repo.read_file("HEAD", "dangling") == b"../../nowhere"

    def test_a_link_that_reads_like_a_manifest_is_refused(self, repo, root):
        os.symlink(MANIFEST_PREFIX + b"1}", os.fsencode(root / "link"))
        with pytest.raises(UnsupportedError, match="text of link 'link'"):
            repo.add("link")

    def test_file_becomes_folder_and_back(self, repo, root):
        write(root, "d")
        repo.add(".")
        (root / "d").unlink()
        write(root, "d/x", "d/y")
        repo.add("d/x")
        assert list(staged(repo)) == ["d/x"]
        repo.add(".")
        shutil.rmtree(root / "d")
        write(root, "d")
        repo.add("d")
        assert list(staged(repo)) == ["d"]

    def test_two_files_of_one_content_share_everything(self, repo, root):
        write_model(root / "a.safetensors")
        shutil.copy(root / "a.safetensors", root / "b.safetensors")
        result = repo.add(".")
        assert len({blob for _, blob in staged(repo).values()}) == 1
        assert result.counts.chunks == 2 * result.counts.new_chunks

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

    def test_bytes_that_are_no_text_in_a_name(self, repo, root):
        with open(os.fsencode(root) + b"/caf\xe9", "wb") as file:
            file.write(b"x")
        assert added(repo.add(".")) == ["caf\udce9"]
        repo.commit("a name")
        os.unlink(os.fsencode(root) + b"/caf\xe9")
        repo.restore(".")
        assert os.path.exists(os.fsencode(root) + b"/caf\xe9")


class TestIgnored:
    def test_ignored_files_are_passed_over(self, repo, root):
        write(root, ".mvcignore", text="*.tmp\n/cache/\n!keep.tmp\n")
        write(root, "a.tmp", "keep.tmp", "cache/x", "d/cache/y")
        assert added(repo.add(".")) == [".mvcignore", "d/cache/y", "keep.tmp"]

    def test_naming_one_is_an_error_force_adds_it(self, repo, root):
        write(root, ".mvcignore", text="*.tmp\n")
        write(root, "a.tmp")
        with pytest.raises(UsageError, match="ignored") as caught:
            repo.add("a.tmp")
        assert "`force`" in caught.value.hint
        assert added(repo.add("a.tmp", force=True)) == ["a.tmp"]

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

    def test_a_git_repository_beside_it(self, repo, root):
        write(root, ".git/config", "project/.git/config", "project/model.py")
        assert added(repo.add(".")) == ["project/model.py"]


class TestStorage:
    def test_where_plain_files_end(self, repo, root):
        (root / "just").write_bytes(bytes(PLAIN_FILE_MAX_BYTES))
        (root / "over").write_bytes(bytes(PLAIN_FILE_MAX_BYTES + 1))
        (root / "empty").write_bytes(b"")
        (root / "like-one").write_bytes(MANIFEST_PREFIX + b"1,...")
        (root / "shorter").write_bytes(MANIFEST_PREFIX[:-1])
        manifests = {file.path: file.manifest for file in repo.add(".").added}
        assert {path for path, manifest in manifests.items() if manifest is not None} == {
            "over",
            "like-one",
        }
        assert manifests["over"].format == "opaque"
        repo.commit("all")
        before = {path: (root / path).read_bytes() for path in manifests}
        for path in before:
            (root / path).unlink()
        repo.restore(".")
        assert {path: (root / path).read_bytes() for path in before} == before

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

    def test_commit_passes_warnings_on(self, repo, root):
        (root / "bad.pt").write_bytes(b"PK\x03\x04nothing")
        ((path, _),) = repo.commit("x", paths="bad.pt").warnings
        assert path == "bad.pt"

    def test_progress_counts_the_bytes_that_are_read(self, repo, root):
        write_model(root / "m.safetensors", layers=4)
        write(root, "a", text="0123456789")
        calls = []
        plan = repo.plan_add(".")
        repo.add(".", progress=calls.append)
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

    def test_a_file_that_is_only_called_like_an_index(self, repo, root):
        write(root, "model.safetensors.index.json", text="not json")
        assert added(repo.add("model.safetensors.index.json")) == ["model.safetensors.index.json"]

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

    store_planned(second._context, plan, None, delta=None).stage(second._context)
    assert list(staged(repo)) == ["a", "b"]


def test_from_a_folder_below(repo, root):
    write(root, "d/e/a")
    below = Repo.open(root / "d/e")
    assert below.worktree == repo.worktree
    # Paths of the Python interface begin at the worktree, wherever the repository was opened.
    assert added(below.add("d/e/a")) == ["d/e/a"]


def test_through_a_link_to_the_worktree(repo, root, tmp_path):
    write(root, "a")
    (tmp_path / "short").symlink_to(root)
    other = Repo.open(tmp_path / "short")
    assert added(other.add(tmp_path / "short/a")) == ["a"]


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
