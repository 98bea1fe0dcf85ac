"""Opening, settings and identity."""

import socket

import numpy as np
import pytest

from mvc import (
    FormatError,
    Identity,
    MvcError,
    Repo,
    RepositoryNotFoundError,
    UsageError,
)
from mvc.history.git import GitHistory


class TestInit:
    def test_makes_folders(self, tmp_path, monkeypatch):
        repo = Repo.init(tmp_path / "deep/er")
        assert repo.worktree == tmp_path / "deep/er"
        assert repo.git_dir == tmp_path / "deep/er/.mvc"
        assert (repo.head.branch, repo.head.commit) == ("main", None)
        (tmp_path / "link").symlink_to("deep")
        assert Repo.init(tmp_path / "link").worktree == tmp_path / "deep"
        assert Repo.open(tmp_path / "deep").worktree == tmp_path / "deep"
        assert Repo.open(tmp_path / "deep/er").worktree == tmp_path / "deep/er"
        monkeypatch.chdir(tmp_path)
        assert Repo.init().worktree == Repo.open().worktree == tmp_path

    def test_where_one_is_already(self, repo, root):
        (root / "a").write_text("x")
        repo.commit("a", paths="a")
        again = Repo.init(root, branch="other")
        assert again.head == repo.head

    def test_branch_names(self, tmp_path):
        assert Repo.init(tmp_path / "a", branch="x/y").head.branch == "x/y"
        for name in ("a b", "HEAD", ""):
            with pytest.raises(UsageError):
                Repo.init(tmp_path / "b", branch=name)

    def test_a_file_of_that_name(self, tmp_path):
        (tmp_path / "file").write_text("precious")
        for path in (tmp_path / "file", tmp_path / "file/below"):
            with pytest.raises(UsageError, match="not a folder"):
                Repo.init(path)
        assert (tmp_path / "file").read_text() == "precious"


class TestOpen:
    def test_from_below(self, repo, root):
        (root / "d/e").mkdir(parents=True)
        (root / "d/file").write_text("x")
        for path in (root, root / "d/e", str(root / "d"), root / "d/file", root / "not/there"):
            assert Repo.open(path).worktree == root

    def test_where_none_is(self, tmp_path):
        with pytest.raises(RepositoryNotFoundError, match="not an mvc repository") as caught:
            Repo.open(tmp_path)
        assert caught.value.hint == 'run "mvc init" to make one'
        (tmp_path / ".mvc").mkdir()
        with pytest.raises(RepositoryNotFoundError):
            Repo.open(tmp_path)
        (tmp_path / ".mvc").rmdir()
        (tmp_path / ".mvc").write_text("x")
        for act in (Repo.open, Repo.init):
            with pytest.raises(RepositoryNotFoundError):
                act(tmp_path)

    def test_threads(self, repo, root):
        state = {"w": np.arange(10_000.0)}
        ids = {
            Repo.open(root, threads=threads).commit_state(state, message="x", time_s=1).commit
            for threads in (1, 3)
        }
        assert len(ids) == 2  # each follows the other; both hold the same
        assert repo.diff("HEAD~1", "HEAD") == []


class TestIdentity:
    def author(self, repo, **options):
        repo.commit("x", allow_empty=True, **options)
        info = repo.show().info
        return info.author.name, info.committer.email

    @pytest.fixture(autouse=True)
    def nobody(self, tmp_path, monkeypatch):
        """Start without a name anywhere but that of the login."""
        for name in ("GIT_AUTHOR_NAME", "GIT_AUTHOR_EMAIL", "GIT_CONFIG_GLOBAL", "EMAIL"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
        monkeypatch.setenv("HOME", str(tmp_path))
        monkeypatch.setenv("LOGNAME", "grace")

    def test_who_commits(self, root):
        repo = Repo.init(root)
        assert self.author(repo) == ("grace", f"grace@{socket.gethostname()}")
        repo.set_config("user.name", "From Config")
        assert self.author(repo) == ("From Config", f"grace@{socket.gethostname()}")
        repo.set_config("user.email", "config@example.org")
        assert self.author(repo) == ("From Config", "config@example.org")
        repo.identity = Identity("Of Repo", "repo@example.org")
        assert self.author(repo) == ("Of Repo", "repo@example.org")
        who = Identity("Of Call", "call@example.org")
        assert self.author(repo, author=who) == ("Of Call", "call@example.org")
        opened = Repo.open(root, identity=who)
        assert self.author(opened) == ("Of Call", "call@example.org")
        assert opened.identity == who


class TestSettings:
    def chunks(self, repo, root, seed):
        np.save(root / "w.npy", np.random.default_rng(seed).standard_normal(2048))
        (file,) = repo.add("w.npy").added
        return file.manifest.chunk_bytes

    def test_the_chunk_length_holds_from_now_on(self, repo, root):
        assert self.chunks(repo, root, 1) == 4 * 2**20
        repo.set_config("mvc.chunkbytes", "4096")
        assert self.chunks(repo, root, 2) == 4096
        repo.set_config("mvc.chunkbytes", None)
        assert self.chunks(repo, root, 3) == 4 * 2**20

    def test_what_is_no_size_of_a_cache_is_refused(self, repo):
        with pytest.raises(UsageError, match="not a size such as"):
            repo.set_config("cache.size", "much")

    def test_files_of_several_chunk_lengths_live_side_by_side(self, repo, root):
        for seed, length in enumerate(("1024", "65536", "4194304")):
            repo.set_config("mvc.chunkbytes", length)
            np.save(root / f"w{seed}.npy", np.random.default_rng(seed).standard_normal(20_000))
            repo.commit(length, paths=".")
        before = {path.name: path.read_bytes() for path in root.glob("*.npy")}
        for path in root.glob("*.npy"):
            path.unlink()
        repo.restore(".")
        assert {path.name: path.read_bytes() for path in root.glob("*.npy")} == before

    @pytest.mark.parametrize(
        "value", ["", "many", "-4096", "4096.0", "1000", "1023", "4097", "999999999", "²", "9" * 99]
    )
    def test_no_chunk_length(self, repo, root, value):
        (root / "w.npy").write_bytes(b"x" * 100)
        with pytest.raises(MvcError):
            repo.set_config("mvc.chunkbytes", value)
        GitHistory.open(repo.git_dir).config.set("mvc.chunkbytes", value)  # as stock Git may
        with pytest.raises(FormatError):
            repo.add("w.npy")
        assert list(repo.log()) == []  # what needs no chunks does not care
