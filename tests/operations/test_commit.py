from __future__ import annotations

import math

import numpy as np
import pytest
from safetensors.numpy import save_file

from mvc import ConflictError, Identity, NotFoundError, Repo, UsageError
from mvc.history.values import Stamp
from support.models import write_model
from support.stockgit import git


def write(root, path, text):
    target = root / path
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(text)


@pytest.fixture
def one(repo, root):
    """A repository with one commit."""
    write(root, "a", "one")
    repo.add(".")
    repo.commit("first\n\nwith a body", step=10, metrics={"loss": 0.5}, meta={"run": "x"})
    return repo


def message(repo, revision="HEAD"):
    return repo.show(revision).info.message


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
        with pytest.raises(ConflictError, match=r"^nothing to commit$"):
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


class TestMessage:
    @pytest.mark.parametrize(
        ("given", "stored"),
        [
            ("one line", "one line\n"),
            ("\n\n  \nsubject\n\n\n\nbody  \n  indented\n\n\n", "subject\n\nbody\n  indented\n"),
            ("subject\r\n\r\nbody\r\n", "subject\n\nbody\n"),
            ("# no comment here", "# no comment here\n"),
            ("grüße 你好 🎉", "grüße 你好 🎉\n"),
        ],
    )
    def test_is_tidied_as_git_does(self, repo, root, given, stored):
        repo.commit(given, allow_empty=True)
        assert message(repo) == stored
        oracle = git(root / ".mvc", "stripspace", data=given.encode())
        assert oracle + "\n" == stored

    @pytest.mark.parametrize("text", ["a\0b", "lone \ud800 surrogate"])
    def test_what_git_cannot_store(self, repo, text):
        with pytest.raises(UsageError, match="message"):
            repo.commit(text, allow_empty=True)

    def test_trailers(self, one, root):
        expected = "first\n\nwith a body\n\nStep: 10\nMetric: loss=0.5\nMeta: run=x\n"
        assert message(one) == expected
        assert git(root / ".mvc", "log", "-1", "--format=%(trailers:key=Step,valueonly)") == "10\n"

    def test_trailers_join_those_of_the_message(self, repo):
        repo.commit("s\n\nReviewed-by: Ann", allow_empty=True, step=3)
        assert message(repo) == "s\n\nReviewed-by: Ann\nStep: 3\n"


NUMBERS = {
    "half": 0.5,
    "tiny": 5e-324,
    "third": 1 / 3,
    "minus-zero": -0.0,
    "inf": math.inf,
    "minus-inf": -math.inf,
    "whole": 7,
    "big": 2**70,
    "float-whole": 3.0,
    "np-f32": np.float32(0.1),
    "np-int": np.int64(12),
}


class TestAnnotations:
    def test_numbers_come_back_to_the_bit(self, repo):
        repo.commit("m", allow_empty=True, metrics=NUMBERS)
        found = repo.show().annotations.metrics
        assert list(found) == list(NUMBERS)
        for name, value in NUMBERS.items():
            assert found[name] == value
            assert math.copysign(1, found[name]) == math.copysign(1, value)
        assert isinstance(found["whole"], int)
        assert isinstance(found["float-whole"], float)

    def test_nan_and_booleans(self, repo):
        repo.commit("m", allow_empty=True, metrics={"nan": math.nan, "yes": True})
        found = repo.show().annotations.metrics
        assert math.isnan(found["nan"])
        assert found["yes"] == 1

    @pytest.mark.parametrize("value", ["x", None, [1], 1j, pytest.param(10**5000, id="long")])
    def test_what_is_no_number(self, repo, value):
        with pytest.raises(UsageError, match="metric 'loss' is"):
            repo.commit("m", allow_empty=True, metrics={"loss": value})

    @pytest.mark.parametrize("name", ["", "a b", "a=b", "a\nb", "a\u2028b"])
    def test_names(self, repo, name):
        with pytest.raises(UsageError, match="is not a valid name"):
            repo.commit("m", allow_empty=True, metrics={name: 1})
        with pytest.raises(UsageError, match="is not a valid name"):
            repo.commit("m", allow_empty=True, meta={name: "x"})

    @pytest.mark.parametrize("step", [0, 12_000, 10**18 - 1, np.int64(5)])
    def test_steps(self, repo, step):
        commit = repo.commit("m", allow_empty=True, step=step).commit
        assert repo.show().annotations.step == step
        assert repo.resolve(f"main@{int(step)}") == commit

    @pytest.mark.parametrize(
        "step", [-1, 1.5, "7", 10**18, math.nan, pytest.param(10**5000, id="long")]
    )
    def test_what_is_no_step(self, repo, step):
        with pytest.raises(UsageError, match="step"):
            repo.commit("m", allow_empty=True, step=step)

    def test_meta_is_one_line_of_text(self, repo):
        meta = {"host": "gpu 01", "note": "two\nlines", "empty": "", "eq": "a=b=c", "uni": "ü"}
        repo.commit("m", allow_empty=True, meta=meta)
        assert repo.show().annotations.meta == {**meta, "note": "two lines"}

    def test_no_trailer_can_be_smuggled_in(self, repo):
        repo.commit("m", allow_empty=True, step=1, meta={"note": "x\nStep: 99"})
        annotations = repo.show().annotations
        assert (annotations.step, annotations.meta) == (1, {"note": "x Step: 99"})

    def test_hostile_trailers_say_nothing(self, repo):
        lines = [
            "Step: " + "9" * 5000,
            "Step: -4",
            "Step: ²",
            "Metric: a=" + "9" * 5000,
            "Metric: b=0x10",
            "Metric: c",
            "Metric: d=²",
        ]
        repo.commit("m\n\n" + "\n".join(lines), allow_empty=True)
        annotations = repo.show().annotations
        assert annotations.step is None
        assert annotations.metrics.keys() <= {"a"}


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


class TestResult:
    def tensors(self, **changes):
        rng = np.random.default_rng(0)
        made = {name: rng.standard_normal((64, 32)).astype(np.float32) for name in "uvw"}
        return {**made, **changes}

    def test_numbers(self, repo, root):
        repo.set_config("mvc.chunkbytes", "4096")
        path = root / "m.safetensors"
        save_file(self.tensors(), path)
        write(root, "config.json", "{}")
        first = repo.commit("base", paths=".")
        size_bytes = path.stat().st_size
        assert (first.tensors_total, first.tensors_new) == (3, 3)
        assert (first.files_total, first.files_changed) == (2, 2)
        assert (first.plain_bytes, first.reused_bytes) == (size_bytes + 2, 0)
        assert 0.7 * size_bytes < first.written_bytes < size_bytes
        assert first.seconds > 0

        changed = self.tensors()
        changed["v"][0] += 1  # one of its two chunks
        save_file(changed, path)
        second = repo.commit("v", paths=".")
        assert (second.tensors_total, second.tensors_new) == (3, 1)
        assert (second.files_total, second.files_changed) == (2, 1)
        assert second.plain_bytes == size_bytes + 2
        assert second.reused_bytes == size_bytes - 4096 + 2
        assert 0 < second.written_bytes < 4096 + 256

    def test_the_same_tensors_under_another_path_are_reused(self, repo, root):
        save_file(self.tensors(), root / "m.safetensors")
        repo.commit("base", paths=".")
        save_file(self.tensors(), root / "copy.safetensors")
        result = repo.commit("copy", paths=".")
        assert (result.tensors_total, result.tensors_new) == (6, 3)  # by name: nobody had these
        assert result.written_bytes == 0
        assert result.reused_bytes == result.plain_bytes

    def test_a_tensor_that_is_there_twice_is_written_once(self, repo, root):
        twin = self.tensors()["u"]
        save_file({"a": twin, "b": twin.copy()}, root / "m.safetensors")
        result = repo.commit("twins", paths=".")
        assert result.reused_bytes == twin.nbytes
        assert result.written_bytes < twin.nbytes + 512

    def test_new_means_by_name_and_bytes(self, repo, root):
        save_file(self.tensors(), root / "m.safetensors")
        repo.commit("base", paths=".")
        made = self.tensors()
        made["renamed"] = made.pop("u")
        save_file(made, root / "m.safetensors")
        result = repo.commit("renamed", paths=".")
        assert (result.tensors_total, result.tensors_new) == (3, 1)

    def test_a_damaged_parent_is_not_counted_but_followed(self, repo, root):
        write_model(root / "m.safetensors", seed=1)
        blob = repo.commit("base", paths=".") and repo.ls()[0].blob
        path = root / ".mvc/objects" / blob[:2] / blob[2:]
        path.chmod(0o644)
        path.write_bytes(b"damaged")
        write_model(root / "m.safetensors", seed=2)
        opened = Repo.open(root)
        result = opened.commit("healed", paths=".")
        assert opened.head.commit == result.commit
        assert result.tensors_new == result.tensors_total > 0

    def test_amending_counts_against_the_parent(self, repo, root):
        write(root, "a", "a")
        repo.commit("root", paths=".")
        write_model(root / "m.safetensors")
        repo.commit("model", paths=".")
        result = repo.commit("model, better", amend=True)
        assert result.tensors_new == result.tensors_total > 0
        assert result.files_changed == 1
