"""Merging branches: tensors, files, conflicts, and what is under way."""

import json
import os
import stat
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from mvc import ConflictError, CorruptionError, NotFoundError, Repo, UsageError
from support.bounds import on_disk
from support.merging import commit
from support.models import digests
from support.opened_repo import message, write
from support.stockgit import git

NAMES = ("a", "b", "c")


def tensors(**changes):
    found = {name: np.full((4, 3), place, np.float32) for place, name in enumerate(NAMES)}
    for name, value in changes.items():
        if value is None:
            found.pop(name, None)
        else:
            found[name] = np.asarray(value, np.float32) * np.ones((4, 3), np.float32)
    return found


def put(root, path="m.safetensors", metadata=None, **changes):
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    save_file(tensors(**changes), root / path, metadata=metadata)


def models(parted, root, ours, theirs, base=None):
    return parted(
        lambda: put(root, **(base or {})), lambda: put(root, **ours), lambda: put(root, **theirs)
    )


def read(root, path="m.safetensors"):
    return {name: float(value.flat[0]) for name, value in load_file(root / path).items()}


class TestTensors:
    def test_disjoint_changes_are_both_there(self, parted, root):
        repo = models(parted, root, {"a": 10, "d": 7}, {"b": 20, "c": None})
        ours, theirs = (_chunks(repo, one) for one in ("main", "side"))
        result = repo.merge("side")
        assert (result.kind, result.conflicts) == ("merged", ())
        assert read(root) == {"a": 10, "b": 20, "d": 7}
        assert _chunks(repo, "HEAD") == {"a": ours["a"], "b": theirs["b"], "d": ours["d"]}
        assert (result.tensors["ours"], result.tensors["theirs"]) == (2, 2)
        assert repo.status().is_clean

    def test_what_is_taken_is_read_for_the_worktree_alone(self, parted, root, reads):
        def save(**changes):
            large = {name: np.full((512, 300), ord(name), np.float32) for name in NAMES}
            for name, value in changes.items():
                large[name] += value
            save_file(large, root / "m.safetensors")

        repo = parted(save, lambda: save(a=1, c=2), lambda: save(b=1, c=3))
        theirs = _chunks(repo, "side")
        reads.clear()
        repo.merge("side", strategy="linear")
        seen, merged = Counter(reads), _chunks(repo, "HEAD")
        assert [seen[merged[name][0]] for name in NAMES] == [1, 1, 1]
        assert seen[theirs["c"][0]] == 1  # what both changed is read, for the mean

    def test_both_changed_is_a_conflict_that_keeps_ours(self, parted, root):
        repo = models(parted, root, {"a": 10, "b": 11}, {"a": 20, "c": 22})
        result = repo.merge("side")
        assert [(one.path, one.tensor) for one in result.conflicts] == [("m.safetensors", "a")]
        assert read(root) == {"a": 10, "b": 11, "c": 22}
        status = repo.status()
        assert status.conflicts == result.conflicts
        assert (status.pending.kind, status.pending.heads) == ("merge", (repo.resolve("side"),))
        assert [file.code for file in status.files] == ["UU"]
        assert "both modified" in git(repo.git_dir, "--work-tree", str(root), "status")
        with pytest.raises(ConflictError, match="not yet merged"):
            repo.commit("too early")
        with pytest.raises(ConflictError, match="still undecided: 'a'"):
            repo.conclude()

    def test_another_dtype_on_one_side(self, parted, root):
        def half():
            save_file(tensors() | {"a": np.ones((4, 3), np.float16)}, root / "m.safetensors")

        repo = parted(lambda: put(root), half, lambda: put(root, a=20, b=21))
        result = repo.merge("side")
        assert "F16[4,3] and F32[4,3]" in result.conflicts[0].reason
        assert load_file(root / "m.safetensors")["a"].dtype == np.float16
        repo.conclude(strategy="theirs")
        assert load_file(root / "m.safetensors")["a"].dtype == np.float32

    def test_shapes_that_do_not_fit_are_refused_before_anything_is_written(self, parted, root):
        def grown():
            save_file(tensors() | {"a": np.ones((5, 3), np.float32)}, root / "m.safetensors")

        repo = parted(lambda: put(root), grown, lambda: put(root, a=20))
        before = (digests(root), repo.head)
        with pytest.raises(UsageError, match=r"\[5, 3\].*\[4, 3\]"):
            repo.merge("side", strategy="linear")
        assert (digests(root), repo.head) == before
        assert repo.status().pending is None

    def test_whole_numbers_have_no_mean(self, parted, root):
        def numbers(value):
            save_file(
                {"n": np.full(3, value, np.int64), "w": np.full(3, value, np.float32)},
                root / "m.safetensors",
            )

        repo = parted(lambda: numbers(0), lambda: numbers(1), lambda: numbers(2))
        result = repo.merge("side", strategy="linear")
        assert [one.tensor for one in result.conflicts] == ["n"]
        repo.conclude(rules=[("n", "theirs")])
        found = load_file(root / "m.safetensors")
        assert (found["n"][0], found["w"][0]) == (2, 1.5)

    def test_metadata_is_merged_key_by_key(self, parted, root):
        repo = parted(
            lambda: put(root, metadata={"format": "pt", "lr": "1", "n": "1"}),
            lambda: put(root, metadata={"format": "pt", "lr": "1", "n": "2", "run": "x"}, a=10),
            lambda: put(root, metadata={"format": "pt", "lr": "2", "n": "3"}, b=20),
        )
        assert [one.tensor for one in repo.merge("side").conflicts] == ["__metadata__.n"]
        repo.conclude(strategy="theirs")
        with safe_open(root / "m.safetensors", "np") as file:
            assert file.metadata() == {"format": "pt", "lr": "2", "n": "3", "run": "x"}
        assert read(root) == {"a": 10, "b": 20, "c": 2}

    def test_files_cut_at_other_lengths(self, parted, root, repo):
        big = {name: np.arange(3000, dtype=np.float32) + place for place, name in enumerate("ab")}

        def save(**changes):
            save_file(big | changes, root / "m.safetensors")

        def theirs():
            repo.set_config("mvc.chunkbytes", "1024")
            save(b=big["b"] * 2)

        def ours():
            repo.set_config("mvc.chunkbytes", "4096")
            save(a=big["a"] * 3)

        parted(save, ours, theirs)
        assert repo.merge("side").conflicts == ()
        found = load_file(root / "m.safetensors")
        assert (found["a"] == big["a"] * 3).all()
        assert (found["b"] == big["b"] * 2).all()
        assert repo.upkeep.fsck(data=True).ok

    @pytest.mark.parametrize(
        ("options", "value", "told"),
        [
            ({"strategy": "ours"}, 10, "Strategy: ours"),
            ({"strategy": "base"}, 0, "Strategy: base"),
            ({"strategy": "ours", "rules": [("a", "theirs")]}, 20, "Rule: a=theirs"),
            (
                {"strategy": "linear", "parameters": {"weight": [0.25, 0.75]}},
                17.5,
                "Param: weight=0.25,0.75",
            ),
        ],
    )
    def test_what_decides_decides_conflicts_only(self, parted, root, options, value, told):
        repo = models(parted, root, {"a": 10, "b": 11}, {"a": 20, "c": 22})
        result = repo.merge("side", **options)
        assert result.kind == "merged"
        assert result.bytes_computed == (48 if "parameters" in options else 0)
        assert read(root) == {"a": value, "b": 11, "c": 22}
        assert f"Merge-{told}" in message(repo)
        assert repo.upkeep.fsck(data=True).ok

    def test_a_renamed_tensor_takes_the_change_and_what_both_added_is_a_conflict(
        self, parted, root
    ):
        repo = models(parted, root, {"a": None, "z": 0, "d": 1, "e": 5}, {"a": 20, "d": 2, "e": 5})
        assert [one.tensor for one in repo.merge("side").conflicts] == ["d"]
        assert repo.conclude(strategy="linear").tensors["merged"] == 1
        assert read(root) == {"b": 1, "c": 2, "d": 1.5, "e": 5, "z": 20}


def _chunks(repo, revision):
    context = repo._context
    blob = context.history.read_tree(repo.resolve(revision))["m.safetensors"].blob
    return {view.name: stored.chunks for view, stored in context.manifests.read(blob).tensors()}


VALUES = st.sampled_from([None, 1, 2])
SIDE = st.fixed_dictionaries({}, optional=dict.fromkeys((*NAMES, "d"), VALUES))


@on_disk
@given(SIDE, SIDE)
def test_disjoint_changes_commute(tmp_path_factory, ours, theirs):
    theirs = {name: value for name, value in theirs.items() if name not in ours}
    found = []
    for first, second in ((ours, theirs), (theirs, ours)):
        root = tmp_path_factory.mktemp("work")
        repo = Repo.init(root)
        put(root)
        commit(repo)
        for name, changes in (("first", first), ("second", second)):
            repo.switch(name, create=True, start="main")
            put(root, **changes)
            (root / f"{sorted(changes)}.txt").write_text("x")
            commit(repo)
        assert repo.merge("first", fast_forward="never").conflicts == ()
        found.append((digests(root), repo._context.history.read_commit(repo.head.commit).tree))
        assert repo.merge("first").kind == "up-to-date"
        assert repo.status().is_clean
    assert found[0] == found[1]


class TestFiles:
    def test_text_with_markers(self, parted, root):
        repo = parted(
            lambda: write(root, "n.txt", "a\nb\nc\n"),
            lambda: write(root, "n.txt", "a\nX\nc\n"),
            lambda: write(root, "n.txt", "a\nY\nc\n"),
        )
        result = repo.merge("side")
        assert result.conflicts[0].path == "n.txt"
        assert (root / "n.txt").read_text() == "a\n<<<<<<< HEAD\nX\n=======\nY\n>>>>>>> side\nc\n"
        (root / "n.txt").write_text("a\nboth\nc\n")
        repo.add("n.txt")
        repo.conclude()
        assert repo.show().info.subject == "Merge branch 'side'"
        assert len(repo.show().info.parents) == 2

    def test_a_rule_after_an_edit_would_lose_it(self, parted, root):
        repo = parted(
            *(lambda text=text: write(root, "n.txt", text) for text in ("a\n", "b\n", "c\n"))
        )
        repo.merge("side")
        (root / "n.txt").write_text("mine\n")
        with pytest.raises(ConflictError, match="changed since"):
            repo.conclude(strategy="theirs")
        repo.add("n.txt")
        repo.conclude()
        assert (root / "n.txt").read_text() == "mine\n"

    def test_binary_files_keep_ours(self, parted, root):
        def save(byte):
            (root / "x.bin").write_bytes(b"\0" + byte)

        repo = parted(lambda: save(b"o"), lambda: save(b"a"), lambda: save(b"b"))
        assert repo.merge("side").conflicts[0].tensor is None
        assert (root / "x.bin").read_bytes() == b"\0a"
        repo.conclude(strategy="theirs")
        assert (root / "x.bin").read_bytes() == b"\0b"

    def test_added_removed_renamed(self, parted, root):
        def base():
            for name in ("moved", "gone", "kept", "empty"):
                write(root, name, "" if name == "empty" else f"{name}\n" * 3)

        def ours():
            (root / "moved").rename(root / "there")
            write(root, "new", "n")

        def theirs():
            write(root, "moved", "moved\n" * 3 + "more\n")
            (root / "gone").unlink()

        repo = parted(base, ours, theirs)
        assert repo.merge("side").conflicts == ()
        assert sorted(digests(root)) == ["empty", "kept", "new", "there"]
        assert (root / "there").read_text().endswith("more\n")

    @pytest.mark.parametrize("is_ours", [True, False])
    def test_what_was_renamed_and_changed_is_found_again(self, parted, root, is_ours):
        """By most of its lines, or the names of its tensors, as nothing else has them."""
        lines = [f"{number}\n" for number in range(40)]

        def base():
            put(root)
            write(root, "notes", "".join(lines))

        def moved():
            (root / "m.safetensors").unlink()
            (root / "notes").unlink()
            put(root, "n.safetensors", a=10)
            put(root, "other.safetensors", a=10, c=None)
            write(root, "renamed", "".join(["first\n", *lines]))
            write(root, "short", "".join(lines[:15]))

        def changed():
            put(root, b=20)
            write(root, "notes", "".join([*lines, "last\n"]))

        repo = parted(base, *((moved, changed) if is_ours else (changed, moved)))
        assert repo.merge("side").conflicts == ()
        assert sorted(digests(root)) == ["n.safetensors", "other.safetensors", "renamed", "short"]
        assert read(root, "n.safetensors") == {"a": 10, "b": 20, "c": 2}
        assert (root / "renamed").read_text() == "".join(["first\n", *lines, "last\n"])

    def test_shards_and_twins_are_not_taken_for_renamed(self, parted, root):
        def moved():
            (root / "m.safetensors").unlink()
            (root / "t").unlink()
            put(root, "m-1.safetensors", c=None)
            put(root, "m-2.safetensors", a=None, b=None)
            for name in ("t1", "t2"):
                write(root, name, "a\nb\nc\n")

        repo = parted(
            lambda: (put(root), write(root, "t", "a\nb\n")),
            moved,
            lambda: (put(root, b=20), write(root, "t", "a\nb\nd\n")),
        )
        result = repo.merge("side")
        assert {one.path for one in result.conflicts} == {"m.safetensors", "t"}
        assert result.conflicts[0].reason == "changed in theirs, removed in ours"

    def test_modes_and_links(self, parted, root):
        def link(target):
            (root / "l").unlink(missing_ok=True)
            os.symlink(target, root / "l")

        def base():
            write(root, "run", "a\nb\nc\n")
            link("one")

        repo = parted(
            base,
            lambda: (os.chmod(root / "run", 0o755), link("two")),
            lambda: write(root, "run", "a\nb\nC\n"),
        )
        assert repo.merge("side").conflicts == ()
        assert (root / "run").stat().st_mode & stat.S_IXUSR
        assert (root / "run").read_text() == "a\nb\nC\n"
        assert os.readlink(root / "l") == "two"

    def test_a_file_and_a_folder(self, parted, root):
        repo = parted(
            lambda: write(root, "x"), lambda: write(root, "d"), lambda: write(root, "d/e")
        )
        with pytest.raises(ConflictError, match="a file on one side and a folder"):
            repo.merge("side")
        assert repo.status().is_clean


class TestGoingOn:
    def test_rule_after_rule(self, parted, root):
        """What is said stays said: for what is left to decide, and in the message."""
        repo = models(parted, root, {"a": 10, "b": 11, "c": 12}, {"a": 20, "b": 21, "c": 22})
        repo.merge("side", rules=[("a", "theirs")])
        with pytest.raises(ConflictError, match="still undecided: 'c'"):
            repo.conclude(rules=[("b", "linear")])
        assert read(root) == {"a": 20, "b": 16, "c": 12}
        assert [one.tensor for one in repo.status().conflicts] == ["c"]
        repo.conclude(strategy="ours")
        assert read(root) == {"a": 20, "b": 16, "c": 12}
        for line in ("Strategy: ours", "Rule: a=theirs", "Rule: b=linear"):
            assert message(repo).count(f"Merge-{line}\n") == 1

    def test_abort_is_exact(self, parted, root):
        repo = models(parted, root, {"a": 10}, {"a": 20, "d": 4})
        write(root, "untracked", "mine")
        before = (digests(root), repo.status(), repo.head)
        assert repo.merge("side").conflicts
        write(root, "m.safetensors", "edited")
        repo.abort()
        assert (digests(root), repo.status(), repo.head) == before
        with pytest.raises(ConflictError, match="no merge is under way"):
            repo.abort()

    def test_reset_gives_it_up_too(self, parted, root):
        repo = models(parted, root, {"a": 10}, {"a": 20})
        before = digests(root)
        repo.merge("side")
        with pytest.raises(ConflictError, match="not yet merged"):
            repo.reset(mode="soft")
        repo.reset(mode="hard")
        assert (digests(root), repo.status().pending) == (before, None)

    @pytest.mark.parametrize("mode", ["hard", "mixed"])
    @pytest.mark.parametrize("text", [b"garbage\n", b"\xff" * 50, b"0" * 41 + b"\n"])
    def test_damaged_marks_are_an_error_that_reset_mends(self, one, root, text, mode):
        (one.git_dir / "MERGE_HEAD").write_bytes(text)
        for verb in (one.status, one.abort, lambda: one.merge("main"), one.upkeep.plan_gc):
            with pytest.raises(CorruptionError, match="MERGE_HEAD") as caught:
                verb()
            assert "mvc reset" in caught.value.hint
        one.reset(mode=mode)
        assert one.status().is_clean

    @pytest.mark.parametrize("verb", ["switch", "merge", "amend", "checkout", "undo", "stash"])
    def test_nothing_else_while_it_is_under_way(self, parted, root, verb):
        repo = models(parted, root, {"a": 10}, {"a": 20})
        repo.merge("side")
        verbs = {
            "switch": lambda: repo.switch("side"),
            "merge": lambda: repo.merge("side"),
            "amend": lambda: repo.commit("x", amend=True),
            "checkout": lambda: repo.checkout("side"),
            "undo": repo.undo,
            "stash": repo.stash_apply,
        }
        with pytest.raises(ConflictError, match="under way"):
            verbs[verb]()
        state = {"model": {"w": np.zeros(2, np.float32)}}
        with pytest.raises(ConflictError, match="not yet merged"):
            repo.commit_state(state, message="would leave the undecided file out")
        assert [change.path for change in repo.diff()] == []  # files are as ours
        repo.checkout("side", force=True)
        assert repo.status().pending is None

    def test_without_a_commit(self, parted, root):
        repo = models(parted, root, {"a": 10}, {"b": 20})
        head = repo.head
        assert repo.merge("side", commit=False).kind == "staged"
        assert repo.head == head
        assert read(root) == {"a": 10, "b": 20, "c": 2}
        assert repo.conclude(message="done").kind == "merged"
        assert repo.show().info.subject == "done"

    def test_an_undecided_version_outlives_gc(self, parted, root):
        repo = models(parted, root, {"a": 10}, {"a": 20})
        repo.merge("side")
        repo.branches.delete("side", force=True)
        (repo.git_dir / "logs").rename(repo.git_dir / "gone")
        repo.upkeep.gc(repo.upkeep.plan_gc(grace_s=0))
        assert repo.upkeep.fsck(data=True).ok
        repo.conclude(strategy="theirs")
        assert read(root)["a"] == 20


class TestBranches:
    def test_fast_forward(self, one, root):
        one.switch("side", create=True)
        write(root, "b")
        tip = commit(one)
        one.switch("main")
        with pytest.raises(ConflictError, match="no commit in common"):
            _unrelated(one, root)
        assert one.merge("side").kind == "fast-forward"
        assert one.head.commit == tip
        assert one.reflog()[0].message == "merge side: Fast-forward"
        assert one.merge("side").kind == "up-to-date"

    def test_several_at_once(self, parted, root, repo):
        put(root)
        commit(repo)
        for number, name in enumerate(NAMES):
            repo.switch(name, create=True, start="main")
            put(root, **{name: 10 + number})
            commit(repo)
        repo.switch("main")
        repo.merge(*NAMES)
        assert read(root) == {"a": 10, "b": 11, "c": 12}
        assert repo.show().info.subject == "Merge branches 'a', 'b' and 'c'"
        assert len(repo.show().info.parents) == 4

    def test_several_that_conflict_are_refused_or_averaged(self, root, repo):
        put(root)
        commit(repo)
        for number, name in enumerate(NAMES):
            repo.switch(name, create=True, start="main")
            put(root, a=10 * number + 10)
            commit(repo)
        repo.switch("a")
        with pytest.raises(ConflictError, match="2 branches at once"):
            repo.merge("b", "c")
        with pytest.raises(UsageError, match="which of 2 branches"):
            repo.merge("b", "c", strategy="theirs")
        assert repo.status().is_clean
        repo.merge("b", "c", strategy="linear")
        assert read(root)["a"] == 20

    def test_histories_that_crossed(self, root, repo):
        """Two merge bases: what they agree on is the base, or an old change would come back."""
        put(root)
        write(root, "n.txt", "1\n2\n3\n4\n5\n")
        commit(repo)
        repo.switch("side", create=True)
        put(root, b=20)
        side = commit(repo)
        repo.switch("main")
        put(root, a=10)
        main = commit(repo)
        repo.merge(side)
        repo.switch("side")
        repo.merge(main)
        put(root, a=10, b=1)  # takes its own change back
        commit(repo)
        repo.switch("main")
        put(root, a=10, b=20, c=30)
        commit(repo)
        assert (
            len(repo._context.history.find_merge_bases(repo.resolve("main"), repo.resolve("side")))
            == 2
        )
        assert repo.merge("side").conflicts == ()
        assert read(root) == {"a": 10, "b": 1, "c": 30}

    def test_local_changes_are_not_lost(self, parted, root):
        repo = models(parted, root, {"a": 10}, {"b": 20})
        put(root, c=99)
        before = digests(root)
        with pytest.raises(ConflictError, match="local changes"):
            repo.merge("side")
        repo.add(".")
        with pytest.raises(ConflictError, match="staged changes"):
            repo.merge("side")
        assert digests(root) == before

    def test_undo_brings_the_files_back(self, parted, root):
        repo = models(parted, root, {"a": 10}, {"b": 20})
        before = (digests(root), repo.head)
        repo.merge("side")
        after = (digests(root), repo.head)
        repo.undo()
        assert (digests(root), repo.head) == before
        assert repo.status().is_clean
        repo.undo(redo=True)
        assert (digests(root), repo.head) == after

    def test_mistakes_are_errors_before_anything(self, parted, root):
        repo = models(parted, root, {"a": 10}, {"a": 20})
        for options in (
            {"strategy": "linaer"},
            {"rules": [("x*", "ours")]},
            {"rules": [("a", "nope")]},
        ):
            with pytest.raises(NotFoundError):
                repo.merge("side", **options)
        for options in (
            {"parameters": {"weight": 1}},
            {"strategy": "ties", "parameters": {"density": 3}},
        ):
            with pytest.raises(UsageError):
                repo.merge("side", **options)
        with pytest.raises(NotFoundError):
            repo.merge("nowhere")
        with pytest.raises(UsageError, match="nothing to merge"):
            repo.merge()
        assert repo.status().is_clean


def _unrelated(repo, root):
    tree = repo._context.history.write_tree({})
    stamp = repo._context.stamp()
    new = repo._context.history.write_commit(tree=tree, parents=[], message="x", author=stamp)
    repo._context.history.sync_objects()
    try:
        repo.merge(new)
    finally:
        assert repo.merge(new, allow_unrelated=True).kind == "merged"
        repo.reset("HEAD~1", mode="hard")


class TestStates:
    def test_weights_are_averaged_and_the_optimizer_needs_a_rule(self, repo, root):
        def train(value, steps, branch="main"):
            model = {"w": np.full(6, value, np.float32), "b": np.full(2, value, np.float32)}
            state = {
                "model": model,
                "optimizer": {"m": np.full(6, value, np.float32)},
                "step": steps,
            }
            repo.commit_state(state, message=f"step {steps}", step=steps, branch=branch)

        train(0, 1)
        repo.branches.create("side")
        train(2, 3)
        train(4, 5, "side")
        result = repo.merge("side", strategy="linear")
        assert {one.path for one in result.conflicts} == {"optimizer.safetensors", "state.json"}
        repo.abort()
        assert repo.status().is_clean
        repo.merge("side", strategy="linear")
        with pytest.raises(NotFoundError, match="optimiser"):
            repo.conclude(rules=[("optimiser.*", "ours")])
        own = [("optimizer.*", "ours"), ("state.json", "ours"), ("model.*", "theirs")]
        repo.conclude(rules=own)  # the last had nothing left to decide
        loaded = repo.load_state("HEAD", framework="numpy")
        assert loaded["model"]["w"][0] == 3
        assert (loaded["optimizer"]["m"][0], loaded["step"]) == (2, 3)
        assert repo.status().is_clean
        assert list(root.iterdir()) == [root / ".mvc"]  # never written, and not now


@pytest.mark.parametrize("strategy", [None, "ours"])
def test_neighbouring_keys_of_a_configuration(parted, root, strategy):
    config = {"use_cache": True, "vocab_size": 10, "rope_theta": 1e4}

    def put(**changes):
        (root / "config.json").write_text(json.dumps(config | changes, indent=2) + "\n")

    repo = parted(put, lambda: put(use_cache=False), lambda: put(vocab_size=11))
    assert repo.merge("side", strategy=strategy).conflicts == ()
    found = (root / "config.json").read_text()
    put(use_cache=False, vocab_size=11)
    assert found == (root / "config.json").read_text()
