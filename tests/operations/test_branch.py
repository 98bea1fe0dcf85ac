import pytest

from mvc import ConflictError, NotFoundError, UsageError
from support.stockgit import run_git


@pytest.fixture
def two(repo):
    repo.commit("first", allow_empty=True)
    repo.commit("second", allow_empty=True)
    return repo


def names(repo):
    return [branch.name for branch in repo.branches.list()]


class TestCreate:
    def test_at_head_or_elsewhere(self, two):
        assert two.branches.create("a") == two.resolve("HEAD")
        assert two.branches.create("b/c", "HEAD~1") == two.resolve("HEAD~1")
        assert names(two) == ["a", "b/c", "main"]
        (current,) = [branch for branch in two.branches.list() if branch.is_current]
        assert (current.name, current.subject, current.commit) == (
            "main", "second", two.resolve("HEAD"),
        )  # fmt: skip
        assert two.head.branch == "main"
        assert two.reflog("b/c")[0].message == "branch: Created from HEAD~1"

    def test_one_that_exists(self, two):
        two.branches.create("a")
        with pytest.raises(ConflictError, match="already exists"):
            two.branches.create("a", "HEAD~1")
        two.branches.create("a", "HEAD~1", force=True)
        assert two.resolve("a") == two.resolve("HEAD~1")
        assert two.reflog("a")[0].message == "branch: Reset to HEAD~1"
        with pytest.raises(ConflictError, match="checked out"):
            two.branches.create("main", "HEAD~1", force=True)
        with pytest.raises(ConflictError, match="together with"):
            two.branches.create("a/b")
        with pytest.raises(NotFoundError):
            two.branches.create("b", "HEAD^{tree}")

    @pytest.mark.parametrize(
        "name",
        ["", "HEAD", "-d", "a b", "a..b", "a~1", "a^", "a:b", "a?", "a*", "a[b", "a\\b", "/a",
         "a/", "a//b", ".a", "a/.b", "a.lock", "a.", "a@{b", "a\nb", "a\0b", "x" * 300],
    )  # fmt: skip
    def test_names_that_git_refuses(self, two, root, name):
        with pytest.raises(UsageError, match="is not a valid branch name"):
            two.branches.create(name)
        if "\0" not in name and name not in ("HEAD", "x" * 300):
            answer = run_git(root / ".mvc", "check-ref-format", "--branch", name, check=False)
            assert answer.returncode != 0


class TestDelete:
    def test_merged(self, two):
        two.tags.create("a")
        two.branches.create("a", "HEAD~1")
        assert two.branches.delete("a") == two.resolve("HEAD~1")
        assert names(two) == ["main"]
        with pytest.raises(NotFoundError, match="no branch 'a'"):
            two.branches.delete("a")
        with pytest.raises(NotFoundError):
            two.branches.rename("a", "b")
        assert two.tags.delete("a") == two.resolve("HEAD")
        with pytest.raises(NotFoundError, match="no tag 'a'"):
            two.tags.delete("a")

    def test_unmerged_needs_force_and_names_the_tip(self, two):
        two.switch("a", create=True)
        tip = two.commit("only here", allow_empty=True).commit
        two.switch("main")
        with pytest.raises(ConflictError, match="not merged") as caught:
            two.branches.delete("a")
        assert tip in caught.value.hint
        assert two.branches.delete("a", force=True) == tip
        assert two.show(tip).info.subject == "only here"


class TestRename:
    def test_with_its_log(self, two):
        two.branches.create("a", "HEAD~1")
        two.branches.rename("a", "b/c")
        assert names(two) == ["b/c", "main"]
        messages = [entry.message for entry in two.reflog("b/c")]
        assert messages == [
            "Branch: renamed refs/heads/a to refs/heads/b/c", "branch: Created from HEAD~1",
        ]  # fmt: skip

    def test_to_its_own_name(self, two):
        two.branches.create("a", "HEAD~1")
        for name, force in (("a", True), ("a", False), ("main", True)):
            two.branches.rename(name, name, force=force)
        assert names(two) == ["a", "main"]
        assert two.resolve("a") == two.resolve("HEAD~1")

    def test_over_another(self, two):
        two.branches.create("a", "HEAD~1")
        two.branches.create("b")
        with pytest.raises(ConflictError, match="already exists"):
            two.branches.rename("a", "b")
        two.branches.rename("a", "b", force=True)
        assert names(two) == ["b", "main"]
        assert two.resolve("b") == two.resolve("HEAD~1")
        with pytest.raises(ConflictError):
            two.branches.rename("b", "main", force=True)

    def test_the_current_one(self, two):
        for force in (False, True):
            with pytest.raises(ConflictError, match="checked out"):
                two.branches.delete("main", force=force)
        two.branches.rename("main", "trunk")
        assert two.head.branch == "trunk"
        assert names(two) == ["trunk"]


class TestTags:
    def test_replacing_one_never_leaves_it_away(self, two, monkeypatch):
        two.tags.create("v1", "HEAD~1")
        history = two._context.history
        monkeypatch.setattr(history, "delete_ref", None)
        two.tags.create("v1", force=True)
        assert two.resolve("v1") == two.resolve("HEAD")

    def test_an_annotation_says_something(self, two):
        with pytest.raises(UsageError, match="needs a message"):
            two.tags.create("v1", message=" \n")
        for force in (False, True):
            with pytest.raises(UsageError, match="is not a valid tag name"):
                two.tags.create("a..b", force=force)
        assert two.tags.list() == []
