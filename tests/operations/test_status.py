"""``test_git_oracle`` compares the codes with Git's; here: what is read, renames, kinds."""

import os
import shutil

import pytest

from mvc import Repo
from mvc.workspace import content
from support.models import write_model
from support.opened_repo import write
from support.stockgit import git


def codes(repo, **options):
    return {file.path: file.code for file in repo.status(**options).files}


@pytest.fixture
def reads(monkeypatch):
    """Collect the paths whose content is compared."""
    found = []
    original = content.content_matches

    def watch(context, path, *arguments):
        found.append(path)
        return original(context, path, *arguments)

    monkeypatch.setattr(content, "content_matches", watch)
    return found


@pytest.fixture
def committed(repo, root):
    write_model(root / "m.safetensors")
    write(root, "a", "one")
    write(root, "d/b", "one")
    repo.commit("all", paths=".")
    return repo


def test_clean(committed):
    status = committed.status()
    assert status.is_clean
    assert (status.branch, status.commit, status.files) == ("main", committed.head.commit, ())
    assert not status.recovered


def test_before_the_first_commit(repo, root):
    write(root, "a")
    status = repo.status()
    assert (status.branch, status.commit, status.is_clean) == ("main", None, True)
    assert codes(repo) == {"a": "??"}
    repo.add("a")
    assert codes(repo) == {"a": "A "}
    assert not repo.status().is_clean


def test_unchanged_files_are_not_read(committed, root, reads):
    Repo.open(root).status()
    assert reads == []


def test_a_touched_file_is_read_once(committed, root, reads):
    os.utime(root / "m.safetensors", ns=(10**18, 10**18))
    assert codes(committed) == {}
    assert reads == ["m.safetensors"]
    assert codes(committed) == {}
    assert reads == ["m.safetensors"]


def test_an_entry_as_old_as_the_index_is_compared(committed, root, reads):
    """Written in the same tick as the index: its stat data prove nothing."""
    index = root / ".mvc/index"
    stat = (root / "a").stat()
    os.utime(index, ns=(stat.st_mtime_ns, stat.st_mtime_ns))
    with open(root / "a", "r+") as file:
        file.write("two")
    os.utime(root / "a", ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert codes(committed) == {"a": " M"}
    assert "a" in reads


def test_a_folder_replaced_by_a_link(committed, root, tmp_path):
    shutil.rmtree(root / "d")
    write(tmp_path, "elsewhere/b", "one")
    (root / "d").symlink_to(tmp_path / "elsewhere")
    assert codes(committed) == {"d/b": " D", "d": "??"}


def test_untracked_files(committed, root):
    write(root, ".mvcignore", "*.tmp\nbuild/\n")
    for path in ("new", "d/new", "x.tmp", "build/y", ".git/config", "inner/z"):
        write(root, path)
    Repo.init(root / "inner")
    assert codes(committed) == {".mvcignore": "??", "d/new": "??", "new": "??"}
    assert codes(committed, untracked=False) == {}
    assert committed.status().is_clean


def test_folders_without_a_tracked_file_are_one_path_as_in_git(committed, root):
    for path in ("runs/a/1", "runs/b/2", "dd/new", "dd/e/f/new", "a.d/x", "ignored/x", "mixed/x"):
        write(root, path)
    write(root, "tracked/t")
    committed.add("tracked/t")
    write(root, "tracked/deep/er/u")
    write(root, ".mvcignore", "ignored/\n")
    shown = ["a.d/", "dd/", "mixed/", "runs/", "tracked/deep/"]
    assert list(committed.status().untracked) == [".mvcignore", *shown]
    (root / ".mvcignore").rename(root / ".gitignore")
    lines = git(committed.git_dir, "--work-tree=.", "status", "--porcelain").splitlines()
    assert [line[3:] for line in lines if line.startswith("??")] == [".gitignore", *shown]


def test_renames(committed, root):
    committed.move("a", "moved")
    committed.move("m.safetensors", "d/n.safetensors")
    found = {file.path: (file.code, file.old_path) for file in committed.status().files}
    assert found == {"d/n.safetensors": ("R ", "m.safetensors"), "moved": ("R ", "a")}
    write(root, "moved", "edited")
    assert codes(committed)["moved"] == "RM"
    committed.add("moved")
    assert codes(committed) == {"a": "D ", "d/n.safetensors": "R ", "moved": "A "}


def count_calls(monkeypatch, *names):
    """Return the arguments of every later call of these functions of ``os``, by name."""
    calls = {name: [] for name in names}

    def counted(name, real):
        def call(*args, **kwargs):
            calls[name].append(args)
            return real(*args, **kwargs)

        return call

    for name in names:
        monkeypatch.setattr(os, name, counted(name, getattr(os, name)))
    return calls


def test_many_clean_files_cost_one_look_each(repo, root, monkeypatch):
    folders, files = 12, 240
    for one in range(files):
        path = root / f"d{one % folders}" / f"f{one}"
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"file {one}")
    repo.add(".")
    calls = count_calls(monkeypatch, "preadv", "pread", "open", "lstat", "scandir")
    repo.commit("many")
    # Of each blob its length and kind, once; the trees and the commit were only written.
    assert len(calls["pread"]) < 2 * files + 50
    assert Repo.open(root).status().is_clean
    for made in calls.values():
        made.clear()
    opened = Repo.open(root)
    assert opened.status().is_clean
    seen = [str(args[0]) for args in calls["lstat"]]
    assert sum("/f" in path for path in seen) == files
    assert len(seen) < files + folders + 50
    assert len(calls["scandir"]) == folders + 1
    trees = [args for args in calls["open"] if "/objects/" in str(args[0])]
    assert len(trees) <= 3  # the commit: its trees are known from the index
    (root / "d3" / "f3").write_text("other")
    assert [file.code for file in opened.status().files] == [" M"]
    opened.add(".")
    assert [file.code for file in opened.status().files] == ["M "]


def test_kinds(committed, root):
    (root / "a").chmod(0o755)
    assert codes(committed) == {"a": " M"}
    (root / "a").chmod(0o600)
    assert codes(committed) == {}
    (root / "a").unlink()
    os.mkfifo(root / "a")  # nothing that a commit could hold
    (root / "m.safetensors").unlink()
    (root / "m.safetensors").symlink_to("a")
    assert codes(committed) == {"a": " D", "m.safetensors": " M"}
