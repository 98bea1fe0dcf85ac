from __future__ import annotations

import pytest

from mvc import ConflictError, NotFoundError, Repo, UsageError
from support.stockgit import git, run_git


@pytest.fixture
def two(repo):
    repo.commit("first", allow_empty=True)
    repo.commit("second", allow_empty=True)
    return repo


def names(repo):
    return [branch.name for branch in repo.branches()]


class TestCreate:
    def test_at_head_or_elsewhere(self, two):
        assert two.create_branch("a") == two.resolve("HEAD")
        assert two.create_branch("b/c", "HEAD~1") == two.resolve("HEAD~1")
        assert names(two) == ["a", "b/c", "main"]
        (current,) = [branch for branch in two.branches() if branch.is_current]
        assert (current.name, current.subject, current.commit) == (
            "main", "second", two.resolve("HEAD"),
        )  # fmt: skip
        assert two.head.branch == "main"
        assert two.reflog("b/c")[0].message == "branch: Created from HEAD~1"

    def test_one_that_exists(self, two):
        two.create_branch("a")
        with pytest.raises(ConflictError, match="already exists"):
            two.create_branch("a", "HEAD~1")
        two.create_branch("a", "HEAD~1", force=True)
        assert two.resolve("a") == two.resolve("HEAD~1")
        assert two.reflog("a")[0].message == "branch: Reset to HEAD~1"
        with pytest.raises(ConflictError, match="checked out"):
            two.create_branch("main", "HEAD~1", force=True)

    def test_one_inside_another(self, two):
        two.create_branch("a")
        with pytest.raises(ConflictError, match="together with"):
            two.create_branch("a/b")
        with pytest.raises(ConflictError, match="together with"):
            two.create_branch("main/x")

    @pytest.mark.parametrize(
        "name",
        ["", "HEAD", "-d", "a b", "a..b", "a~1", "a^", "a:b", "a?", "a*", "a[b", "a\\b", "/a",
         "a/", "a//b", ".a", "a/.b", "a.lock", "a.", "a@{b", "a\nb", "a\0b", "x" * 300],
    )  # fmt: skip
    def test_names_that_git_refuses(self, two, root, name):
        with pytest.raises(UsageError, match="is not a valid branch name"):
            two.create_branch(name)
        if "\0" not in name and name not in ("HEAD", "x" * 300):
            answer = run_git(root / ".mvc", "check-ref-format", "--branch", name, check=False)
            assert answer.returncode != 0

    def test_where_nothing_is(self, two):
        with pytest.raises(NotFoundError):
            two.create_branch("a", "nope")
        with pytest.raises(NotFoundError):
            two.create_branch("a", "HEAD^{tree}")

    def test_before_the_first_commit(self, repo):
        with pytest.raises(NotFoundError, match="no commit yet"):
            repo.create_branch("a")
        assert repo.branches() == []


class TestDelete:
    def test_merged(self, two):
        two.create_branch("a", "HEAD~1")
        assert two.delete_branch("a") == two.resolve("HEAD~1")
        assert names(two) == ["main"]
        with pytest.raises(NotFoundError, match="no branch 'a'"):
            two.delete_branch("a")

    def test_unmerged_needs_force_and_names_the_tip(self, two):
        two.switch("a", create=True)
        tip = two.commit("only here", allow_empty=True).commit
        two.switch("main")
        with pytest.raises(ConflictError, match="not merged") as caught:
            two.delete_branch("a")
        assert tip in caught.value.hint
        assert two.delete_branch("a", force=True) == tip
        assert two.show(tip).info.subject == "only here"

    def test_the_current_one(self, two):
        for force in (False, True):
            with pytest.raises(ConflictError, match="checked out"):
                two.delete_branch("main", force=force)

    def test_a_tag_is_no_branch(self, two):
        two.create_tag("v1")
        with pytest.raises(NotFoundError):
            two.delete_branch("v1")


class TestRename:
    def test_with_its_log(self, two):
        two.create_branch("a", "HEAD~1")
        two.rename_branch("a", "b/c")
        assert names(two) == ["b/c", "main"]
        messages = [entry.message for entry in two.reflog("b/c")]
        assert messages == [
            "Branch: renamed refs/heads/a to refs/heads/b/c", "branch: Created from HEAD~1",
        ]  # fmt: skip

    def test_the_current_one(self, two):
        two.rename_branch("main", "trunk")
        assert two.head.branch == "trunk"
        assert names(two) == ["trunk"]

    def test_to_its_own_name(self, two):
        two.create_branch("a", "HEAD~1")
        for name, force in (("a", True), ("a", False), ("main", True)):
            two.rename_branch(name, name, force=force)
        assert names(two) == ["a", "main"]
        assert two.resolve("a") == two.resolve("HEAD~1")

    def test_over_another(self, two):
        two.create_branch("a", "HEAD~1")
        two.create_branch("b")
        with pytest.raises(ConflictError, match="already exists"):
            two.rename_branch("a", "b")
        two.rename_branch("a", "b", force=True)
        assert names(two) == ["b", "main"]
        assert two.resolve("b") == two.resolve("HEAD~1")
        with pytest.raises(ConflictError):
            two.rename_branch("b", "main", force=True)

    def test_from_nothing_or_to_no_name(self, two):
        with pytest.raises(NotFoundError):
            two.rename_branch("nope", "a")
        with pytest.raises(UsageError):
            two.rename_branch("main", "a b")

    def test_before_the_first_commit(self, repo):
        repo.rename_branch("main", "trunk")
        assert repo.head.branch == "trunk"


class TestTags:
    def test_light_and_annotated(self, two, root):
        assert two.create_tag("light") == two.resolve("HEAD")
        assert two.create_tag("noted", "HEAD~1", message="why") == two.resolve("HEAD~1")
        assert [(tag.name, tag.commit, tag.subject) for tag in two.tags()] == [
            ("light", two.resolve("HEAD"), "second"),
            ("noted", two.resolve("HEAD~1"), "first"),
        ]
        assert git(root / ".mvc", "cat-file", "-t", "noted") == "tag"
        assert git(root / ".mvc", "tag", "-n", "--format=%(contents)", "-l", "noted") == "why\n"
        assert two.resolve("noted") == two.resolve("HEAD~1")

    def test_one_that_exists(self, two):
        two.create_tag("v1")
        with pytest.raises(ConflictError, match="already exists"):
            two.create_tag("v1", "HEAD~1")
        two.create_tag("v1", "HEAD~1", force=True)
        assert two.resolve("v1") == two.resolve("HEAD~1")
        two.create_tag("v1", message="annotated now", force=True)
        assert two.resolve("v1") == two.resolve("HEAD")

    def test_replacing_one_never_leaves_it_away(self, two, monkeypatch):
        two.create_tag("v1", "HEAD~1")
        history = two._context.history
        monkeypatch.setattr(history, "delete_ref", None)
        two.create_tag("v1", force=True)
        assert two.resolve("v1") == two.resolve("HEAD")

    def test_delete(self, two):
        commit = two.create_tag("v1")
        assert two.delete_tag("v1") == commit
        with pytest.raises(NotFoundError, match="no tag 'v1'"):
            two.delete_tag("v1")

    @pytest.mark.parametrize("name", ["", "-d", "a b", "a..b", "a.lock"])
    def test_names(self, two, name):
        for force in (False, True):
            with pytest.raises(UsageError, match="is not a valid tag name"):
                two.create_tag(name, force=force)

    def test_an_annotation_says_something(self, two):
        with pytest.raises(UsageError, match="needs a message"):
            two.create_tag("v1", message=" \n")
        assert two.tags() == []


def test_two_processes_make_the_same_branch(two, root):
    other = Repo.open(root)
    two.create_branch("a")
    with pytest.raises(ConflictError):
        other.create_branch("a", "HEAD~1")


def test_stock_git_made_them(two, root):
    run_git(root / ".mvc", "branch", "theirs", "main~1")
    run_git(root / ".mvc", "pack-refs", "--all")
    assert names(two) == ["main", "theirs"]
    two.delete_branch("theirs")
    assert git(root / ".mvc", "branch", "--format=%(refname:short)") == "main"
