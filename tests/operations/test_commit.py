import pytest

from mvc import ConflictError, Identity, Repo, UsageError
from support.opened_repo import message, write


class TestWhatIsCommitted:
    def test_what_is_staged_and_nothing_else(self, one, root):
        write(root, "b", "staged")
        one.add("b")
        write(root, "b", "edited since")
        write(root, "c", "untracked")
        one.commit("second")
        assert one.read_file("HEAD", "b") == b"staged"
        assert [file.path for file in one.ls()] == ["a", "b"]
        assert {file.path: file.code for file in one.status().files} == {"b": " M", "c": "??"}

    def test_nothing_to_commit(self, one, tmp_path):
        for options in ({}, {"everything": True}, {"paths": "a"}):
            with pytest.raises(ConflictError, match="nothing to commit"):
                one.commit("again", **options)
        one.add(".")
        with pytest.raises(ConflictError, match="the index equals the last commit"):
            one.commit("again")
        with pytest.raises(ConflictError, match=r"(?m)^nothing to commit$"):
            Repo.init(tmp_path / "empty").commit("first")

    def test_without_a_message_nothing_is_added(self, one, root):
        write(root, "new", "new")
        for options in ({}, {"amend": True}):
            for text in ("", "  \n \t\n"):
                with pytest.raises(UsageError, match="needs a message"):
                    one.commit(text, paths="new", **options)
        with pytest.raises(UsageError, match="step"):
            one.commit("x", paths="new", step=-1)
        assert one.status().files[0].code == "??"


class TestWhere:
    def test_before_the_first_commit(self, tmp_path):
        repo = Repo.init(tmp_path / "w", branch="feature/deep/name")
        write(tmp_path / "w", "a", "a")
        result = repo.commit("first", paths="a")
        assert (result.branch, result.parents) == ("feature/deep/name", ())
        assert repo.head.branch == "feature/deep/name"
        assert repo.reflog()[0].message == "commit (initial): first"

    def test_reflogs(self, one, root):
        write(root, "a", "two")
        one.commit("second\n\nbody", paths="a")
        one.commit("better", amend=True)
        expected = ["commit (amend): better", "commit: second", "commit (initial): first"]
        assert [entry.message for entry in one.reflog()] == expected
        assert [entry.message for entry in one.reflog("main")] == expected


class TestAmend:
    def test_message_and_trailers_are_kept(self, one, root):
        before = one.show().info
        write(root, "a", "amended")
        result = one.commit(amend=True, paths="a")
        assert message(one) == before.message
        assert (result.parents, result.subject) == ((), "first")
        assert one.read_file("HEAD", "a") == b"amended"
        assert len(list(one.log())) == 1

    def test_facts_given_anew_replace_their_like(self, one):
        first = one.commit(
            "second", allow_empty=True, step=10, metrics={"loss": 0.5}, meta={"run": "x"}
        ).parents
        one.commit(amend=True, step=11, metrics={"acc": 0.9}, meta={"run": "y", "host": "h"})
        annotations = one.show().annotations
        assert annotations.step == 11
        assert annotations.metrics == {"loss": 0.5, "acc": 0.9}
        assert annotations.meta == {"run": "y", "host": "h"}
        assert one.commit("again", amend=True, metrics={"loss": 0.1}).parents == first
        assert one.show().annotations.metrics == {"acc": 0.9, "loss": 0.1}
        assert message(one).startswith("again\n\nStep: 11\n")

    def test_other_trailers_go_with_the_message(self, repo):
        repo.commit("s\n\nReviewed-by: Ann", allow_empty=True, step=3)
        repo.commit(amend=True, step=4)
        assert message(repo) == "s\n\nReviewed-by: Ann\nStep: 4\n"
        repo.commit("t", amend=True)
        assert message(repo) == "t\n\nStep: 4\n"

    def test_author_and_time_are_kept_the_committer_is_new(self, one):
        one.commit("x", allow_empty=True, time_s=1_000_000_000)
        one.identity = Identity("Bob", "bob@example.org")
        one.commit(amend=True, step=1)
        info = one.show().info
        assert (info.author.name, info.author_time_s) == ("Ann Example", 1_000_000_000)
        assert info.committer.name == "Bob"
        assert info.commit_time_s > 1_000_000_000
        one.commit(amend=True, author=Identity("Cid", "cid@example.org"))
        info = one.show().info
        assert (info.author.name, info.author_time_s) == ("Cid", 1_000_000_000)
        one.commit(amend=True, time_s=1_100_000_000)
        assert one.show().info.author_time_s == 1_100_000_000

    def test_into_nothing(self, one, root):
        write(root, "a", "two")
        one.commit("second", paths="a")
        write(root, "a", "one")
        with pytest.raises(ConflictError, match="would change nothing"):
            one.commit(amend=True, paths="a")
        one.commit(amend=True, allow_empty=True)
        one.commit("words", amend=True)  # it was empty before: that is its owner's will
