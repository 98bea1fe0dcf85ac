from __future__ import annotations

import pytest

from mvc import ConflictError, Identity, NotFoundError, Repo, UsageError
from mvc.history.values import Stamp
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

    def test_paths_are_added_first(self, one, root):
        write(root, "a", "two")
        write(root, "new", "new")
        write(root, "other", "other")
        one.commit("second", paths=["a", "new"])
        assert [file.path for file in one.ls()] == ["a", "new"]

    def test_everything_that_is_tracked(self, one, root):
        write(root, "b", "b")
        one.commit("b", paths="b")
        write(root, "a", "two")
        (root / "b").unlink()
        write(root, "untracked", "x")
        one.commit("second", everything=True)
        assert [file.path for file in one.ls()] == ["a"]

    def test_a_path_that_is_not_there_commits_nothing(self, one):
        before = one.head
        with pytest.raises(NotFoundError):
            one.commit("second", paths=["a", "nope"])
        assert one.head == before

    def test_nothing_to_commit(self, repo, one, root):
        for options in ({}, {"everything": True}, {"paths": "a"}):
            with pytest.raises(ConflictError, match="nothing to commit"):
                one.commit("again", **options)
        one.add(".")
        with pytest.raises(ConflictError, match="the index equals the last commit"):
            one.commit("again")

    def test_nothing_at_all(self, repo):
        with pytest.raises(ConflictError, match=r"(?m)^nothing to commit$"):
            repo.commit("first")

    def test_allow_empty(self, repo):
        root_commit = repo.commit("first", allow_empty=True)
        second = repo.commit("second", allow_empty=True)
        assert (root_commit.parents, second.parents) == ((), (root_commit.commit,))
        assert repo.ls() == []

    def test_the_last_file_removed(self, one):
        one.remove("a")
        result = one.commit("empty")
        assert (result.files_total, result.files_changed) == (0, 1)

    def test_without_a_message_nothing_is_added(self, one, root):
        write(root, "new", "new")
        for text in (None, "", "  \n \t\n"):
            with pytest.raises(UsageError, match="needs a message"):
                one.commit(text, paths="new")
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

    def test_detached(self, one, root):
        one.checkout("HEAD", detach=True)
        write(root, "a", "two")
        result = one.commit("second", paths="a")
        assert result.branch is None
        assert one.head.commit == result.commit
        assert one.resolve("main") == result.parents[0]

    def test_reflogs(self, one, root):
        write(root, "a", "two")
        one.commit("second\n\nbody", paths="a")
        one.commit("better", amend=True)
        expected = ["commit (amend): better", "commit: second", "commit (initial): first"]
        assert [entry.message for entry in one.reflog()] == expected
        assert [entry.message for entry in one.reflog("main")] == expected

    def test_head_moved_meanwhile(self, one, root):
        other = Repo.open(root)
        write(root, "b", "b")
        other.commit("theirs", paths="b")
        # The call reads HEAD itself: what is refused is a move while it runs.
        one.commit("mine", allow_empty=True)
        assert [entry.info.subject for entry in one.log()] == ["mine", "theirs", "first"]


class TestAmend:
    def test_message_and_trailers_are_kept(self, one, root):
        before = one.show().info
        write(root, "a", "amended")
        result = one.commit(amend=True, paths="a")
        assert message(one) == before.message
        assert (result.parents, result.subject) == ((), "first")
        assert one.read_file("HEAD", "a") == b"amended"
        assert len(list(one.log())) == 1

    def test_a_new_message_keeps_the_facts(self, one):
        one.commit("better words", amend=True)
        assert message(one) == "better words\n\nStep: 10\nMetric: loss=0.5\nMeta: run=x\n"

    def test_facts_given_anew_replace_their_like(self, one):
        one.commit(amend=True, step=11, metrics={"acc": 0.9}, meta={"run": "y", "host": "h"})
        annotations = one.show().annotations
        assert annotations.step == 11
        assert annotations.metrics == {"loss": 0.5, "acc": 0.9}
        assert annotations.meta == {"run": "y", "host": "h"}
        assert message(one).startswith("first\n\nwith a body\n\n")
        one.commit("again", amend=True, metrics={"loss": 0.1})
        assert one.show().annotations.metrics == {"acc": 0.9, "loss": 0.1}

    def test_other_trailers_go_with_the_message(self, repo):
        repo.commit("s\n\nReviewed-by: Ann", allow_empty=True, step=3)
        repo.commit(amend=True, step=4)
        assert message(repo) == "s\n\nReviewed-by: Ann\nStep: 4\n"
        repo.commit("t", amend=True)
        assert message(repo) == "t\n\nStep: 4\n"

    def test_parents_are_kept(self, one, root):
        first = one.resolve("HEAD")
        write(root, "a", "two")
        one.commit("second", paths="a")
        result = one.commit("second, better", amend=True)
        assert result.parents == (first,)
        assert one.resolve("HEAD@{1}") != one.resolve("HEAD")

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

    def test_nothing_to_amend(self, repo):
        with pytest.raises(UsageError, match="no commit to amend"):
            repo.commit("x", amend=True)

    @pytest.mark.parametrize("text", ["", " \n"])
    def test_an_empty_message(self, one, text):
        with pytest.raises(UsageError, match="needs a message"):
            one.commit(text, amend=True)

    def test_into_nothing(self, one, root):
        write(root, "a", "two")
        one.commit("second", paths="a")
        write(root, "a", "one")
        with pytest.raises(ConflictError, match="would change nothing"):
            one.commit(amend=True, paths="a")
        one.commit(amend=True, allow_empty=True)
        one.commit("words", amend=True)  # it was empty before: that is its owner's will

    def test_a_merge_stays_one(self, one, root):
        history, who = one._context.history, one._context.stamp().identity
        first = one.resolve("HEAD")
        one.commit("second", allow_empty=True)
        tree = one.show().info.tree
        merge = history.write_commit(
            tree=tree, parents=[one.resolve("HEAD"), first], message="merge",
            author=Stamp(who, 1_700_000_000, 0),
        )  # fmt: skip
        history.update_head(merge, expected=one.head.commit, message="merge", stamp=Stamp.now(who))
        result = one.commit("merged", amend=True)
        assert len(result.parents) == 2
