from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import mvc.history
from mvc.errors import RepositoryNotFoundError, StorageError, UsageError
from mvc.history.git import GitHistory
from mvc.history.values import Head, Identity
from support.stockgit import START_S, WHO, at, build_tangle, commit_on_head, git, run_git


def test_stock_git_works_on_what_mvc_wrote(history):
    build_tangle(history, seed=9)
    history.create_tag("v1", history.resolve("HEAD"), message="Release é", stamp=at(START_S))
    one, two = history.resolve("HEAD~1"), history.resolve("HEAD")
    fsck = run_git(history.git_dir, "fsck", "--strict", "--full")
    assert fsck.stdout == b""
    assert b"error" not in fsck.stderr
    assert b"warning" not in fsck.stderr
    assert git(history.git_dir, "log", "-1", "--format=%H %s %an") == (
        f"{two} {history.read_commit(two).subject} {WHO.name}"
    )
    assert git(history.git_dir, "diff", "--name-only", one, two) in ("file.txt", "")
    assert "Release é" in git(history.git_dir, "show", "v1")
    assert git(history.git_dir, "branch", "--show-current") == "main"
    assert git(history.git_dir, "config", "core.bare") == "false"
    assert run_git(history.git_dir, "config", "core.worktree", check=False).returncode == 1


def test_mvc_goes_on_from_what_stock_git_wrote(history):
    first = commit_on_head(history, "ours")
    tree = git(history.git_dir, "rev-parse", "HEAD^{tree}")
    theirs = git(history.git_dir, "commit-tree", tree, "-p", first, "-m", "theirs")
    git(history.git_dir, "update-ref", "-m", "by git", "HEAD", theirs, first)
    assert history.head() == Head("main", theirs)
    info = history.read_commit(theirs)
    assert (info.subject, info.author) == ("theirs", Identity("Stock", "stock@example.org"))
    assert history.read_reflog("HEAD")[0].message == "by git"
    commit_on_head(history, "ours again")
    assert history.resolve("HEAD~2") == first
    git(history.git_dir, "switch", "-q", "--orphan", "empty")
    assert history.head() == Head("empty", None)


def test_init_opens_what_exists_as_it_is(tmp_path):
    first = GitHistory.init(tmp_path / ".mvc", branch="trunk")
    head = commit_on_head(first, "one")
    first.set_config("a.b", "c")
    again = GitHistory.init(tmp_path / ".mvc", branch="main")
    assert again.head() == Head("trunk", head)
    assert again.get_config("a.b") == "c"


def test_an_init_that_was_cut_short_can_be_repeated(tmp_path):
    GitHistory.init(tmp_path / ".mvc")
    (tmp_path / ".mvc" / "HEAD").unlink()
    with pytest.raises(RepositoryNotFoundError):
        GitHistory.open(tmp_path / ".mvc")
    assert GitHistory.init(tmp_path / ".mvc").head() == Head("main", None)


def test_bad_names_for_the_first_branch_make_nothing(tmp_path):
    with pytest.raises(UsageError):
        GitHistory.init(tmp_path / ".mvc", branch="a b")
    assert list(tmp_path.iterdir()) == []


def test_no_repository_is_said_so(tmp_path):
    for path in (tmp_path, tmp_path / "nothing", tmp_path / "file"):
        (tmp_path / "file").write_text("x")
        with pytest.raises(RepositoryNotFoundError, match="is not a repository") as caught:
            GitHistory.open(path)
        assert "mvc init" in caught.value.hint


def test_a_folder_that_cannot_be_made_is_a_storage_error(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(StorageError):
        GitHistory.init(tmp_path / "file" / ".mvc")


def test_the_package_itself_imports_nothing():
    source = Path(mvc.history.__file__).read_text()
    assert "import" not in source


def modules_after(statement):
    script = f"import sys\n{statement}\nprint('\\n'.join(sorted(sys.modules)))"
    shown = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, check=True, text=True
    ).stdout
    return set(shown.split("\n"))


def test_reading_the_log_imports_only_what_it_needs(tmp_path):
    history = GitHistory.init(tmp_path / ".mvc")
    commit_on_head(history, "one")
    loaded = modules_after(
        f"from pathlib import Path\n"
        f"from mvc.history.git import GitHistory\n"
        f"history = GitHistory.open(Path({str(tmp_path / '.mvc')!r}))\n"
        f"print([one.trailers for one in history.walk([history.resolve('HEAD')])])"
    )
    heavy = {"dulwich", "numpy", "torch", "difflib", "urllib.request", "secrets", "logging"}
    assert heavy & {name.partition(".")[0] for name in loaded} | heavy & loaded == set()


def test_no_value_of_dulwich_comes_out(history):
    build_tangle(history, seed=2, moves=15)
    head = history.resolve("HEAD")
    values = [
        head,
        *history.list_refs().values(),
        *history.read_reflog("HEAD"),
        *history.walk([head]),
        *history.read_tree(head).values(),
        history.read_blob(next(iter(history.read_tree(head).values())).blob),
        history.head(),
        history.read_index(),
        *history.read_config().values(),
    ]
    for value in values:
        assert type(value).__module__.split(".")[0] in ("builtins", "mvc")
        fields = getattr(value, "__slots__", ())
        for field in fields:
            inner = getattr(value, field)
            assert type(inner).__module__.split(".")[0] in ("builtins", "mvc"), (value, field)
