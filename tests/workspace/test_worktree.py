import os

import pytest

from mvc import ConflictError, UsageError
from mvc.fs import find_stat
from mvc.history.ignore import IgnoreRules
from mvc.workspace.worktree import (
    check_parents,
    find_file_stat,
    find_inner_repository,
    find_obstacle,
    folders_above,
    git_mode,
    relative_path,
    scan_files,
)


def write(root, *paths):
    for path in paths:
        target = root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text("x")


@pytest.fixture
def tree(tmp_path):
    root = tmp_path / "tree"
    root.mkdir()
    return root


class TestRelativePath:
    @pytest.mark.parametrize(
        ("cwd", "name", "path"),
        [
            ("", "a", "a"),
            ("", ".", ""),
            ("", "./a/../b/", "b"),
            ("d", "a", "d/a"),
            ("d", ".", "d"),
            ("d", "..", ""),
            ("d/e", "../../a", "a"),
            ("d", "*.bin", "d/*.bin"),
            ("", "a b\n", "a b\n"),
            ("", "...", "..."),
            ("", ".mvcignore", ".mvcignore"),
            ("", "d/.mvc", "d/.mvc"),
        ],
    )
    def test_from_where_the_user_stands(self, tree, cwd, name, path):
        assert relative_path(tree, tree / cwd, name) == path

    @pytest.mark.parametrize("name", ["..", "../x", "/", "/x", "a/../../x", "../tree2/x"])
    def test_outside(self, tree, name):
        with pytest.raises(UsageError, match="outside"):
            relative_path(tree, tree, name)

    @pytest.mark.parametrize("name", [".mvc", ".mvc/x", ".MVC", "./.Mvc/x", "a/../.mvc"])
    def test_in_the_repository_itself(self, tree, name):
        with pytest.raises(UsageError, match=r"inside \.mvc"):
            relative_path(tree, tree, name)

    def test_absolute(self, tree):
        assert relative_path(tree, tree / "d", str(tree / "a")) == "a"
        assert relative_path(tree, tree / "d", str(tree)) == ""

    def test_a_link_to_the_worktree_is_the_worktree(self, tree, tmp_path):
        (tmp_path / "short").symlink_to(tree)
        assert relative_path(tree, tmp_path / "short", "a") == "a"
        assert relative_path(tree, tree, str(tmp_path / "short/d/a")) == "d/a"

    def test_the_last_link_is_not_followed(self, tree, tmp_path):
        (tree / "link").symlink_to(tmp_path)
        assert relative_path(tree, tree, "link") == "link"
        (tmp_path / "short").symlink_to(tree)
        assert relative_path(tree, tmp_path / "short", "link") == "link"

    def test_a_link_out_of_the_worktree_leads_nowhere(self, tree, tmp_path):
        (tree / "out").symlink_to(tmp_path)
        # Names are taken as they are written; what lies behind the link is refused later.
        assert relative_path(tree, tree, "out/x") == "out/x"
        assert find_obstacle(tree, "out/x") == "out"

    def test_nul(self, tree):
        with pytest.raises(UsageError, match="NUL"):
            relative_path(tree, tree, "a\0")


class TestScan:
    def test_sorted_links_and_no_folders(self, tree, tmp_path):
        write(tree, "b", "a/x", "a/y/z", "c")
        (tree / "empty").mkdir()
        (tree / "link").symlink_to("a")
        (tree / "dangling").symlink_to("nowhere")
        os.mkfifo(tree / "pipe")
        assert list(scan_files(tree, None)) == ["a/x", "a/y/z", "b", "c", "dangling", "link"]
        assert list(scan_files(tree, None, "a")) == ["a/x", "a/y/z"]

    def test_what_is_never_a_users_file(self, tree):
        write(tree, "a", ".mvc/x", ".git/x", ".GIT/x", "d/.git/x", "d/.mvc/x", "0123.mvc-tmp")
        assert list(scan_files(tree, None)) == ["a"]

    def test_ignored(self, tree):
        write(tree, "a.tmp", "b", "cache/x")
        (tree / ".mvcignore").write_text("*.tmp\ncache/\n")
        assert list(scan_files(tree, IgnoreRules(tree))) == [".mvcignore", "b"]
        assert list(scan_files(tree, None)) == [".mvcignore", "a.tmp", "b", "cache/x"]

    def test_what_is_gone_by_now(self, tree):
        write(tree, "file")
        assert list(scan_files(tree, None, "nope")) == []
        assert list(scan_files(tree, None, "file")) == []


class TestPlaces:
    def test_stat_of_what_is_in_the_worktree(self, tree, tmp_path):
        write(tmp_path, "elsewhere/x")
        write(tree, "d/x")
        (tree / "link").symlink_to(tmp_path / "elsewhere")
        assert find_file_stat(tree, "d/x").is_regular
        assert find_file_stat(tree, "link").is_symlink
        assert find_file_stat(tree, "link/x") is None
        assert find_file_stat(tree, "d/x/y") is None
        assert find_file_stat(tree, "nope/x") is None

    def test_obstacles(self, tree):
        write(tree, "d/file")
        (tree / "link").symlink_to("d")
        assert find_obstacle(tree, "d/new") is None
        assert find_obstacle(tree, "new/deep/x") is None
        assert find_obstacle(tree, "d/file/x/y") == "d/file"
        assert find_obstacle(tree, "link/x") == "link"
        check_parents(tree, "d/new")
        with pytest.raises(ConflictError, match="'link' is not a folder"):
            check_parents(tree, "link/x")

    def test_parents_that_do_not_exist_yet(self, tree):
        check_parents(tree, "a/b/c")
        (tree / "a").mkdir(exist_ok=True)
        (tree / "link").symlink_to("a")
        with pytest.raises(ConflictError):
            check_parents(tree, "link/new/x")

    def test_folders_above(self):
        assert list(folders_above("a/b/c")) == ["a", "a/b"]
        assert list(folders_above("a")) == []

    def test_inner_repositories(self, tree):
        write(tree, "in/.mvc/HEAD", "in/d/x")
        for path in ("in", "in/d", "in/d/x", "in/nope"):
            assert find_inner_repository(tree, path) == "in"
        assert find_inner_repository(tree, "other/in") is None

    def test_modes(self, tree):
        write(tree, "plain", "program", "others")
        (tree / "program").chmod(0o700)
        (tree / "others").chmod(0o601)  # the owner may not run it
        (tree / "link").symlink_to("plain")
        modes = [
            git_mode(find_stat(tree / name)) for name in ("plain", "program", "link", "others")
        ]
        assert modes == [0o100644, 0o100755, 0o120000, 0o100644]
