import subprocess
import sys

import pytest

from mvc.errors import RepositoryNotFoundError, StorageError, UsageError
from mvc.history.git import GitHistory
from mvc.history.values import Head, Identity
from support.stockgit import commit_on_head, git


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
    first.config.set("a.b", "c")
    again = GitHistory.init(tmp_path / ".mvc", branch="main")
    assert again.head() == Head("trunk", head)
    assert again.config.get("a.b") == "c"


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


LOG = """
import sys
from pathlib import Path
from mvc.history.git import GitHistory
history = GitHistory.open(Path(sys.argv[1]))
for commit in history.walk([history.resolve("HEAD")]):
    print(commit.trailers, [history.read_blob(one.blob) for one in history.read_tree(commit.id).values()])
print(*sorted(sys.modules), sep="\\n")
"""


def test_reading_the_log_imports_only_what_it_needs(tmp_path):
    history = GitHistory.init(tmp_path / ".mvc")
    commit_on_head(history, "one")
    git(history.git_dir, "repack", "-a", "-d", "-q")
    shown = subprocess.run(
        [sys.executable, "-c", LOG, history.git_dir], capture_output=True, check=True, text=True
    ).stdout
    loaded = set(shown.split("\n"))
    heavy = {"dulwich", "numpy", "torch", "difflib", "urllib.request", "secrets", "logging"}
    assert heavy & {name.partition(".")[0] for name in loaded} | heavy & loaded == set()
