"""The carrying out of a plan; ``tests/crash`` stops it at every step."""

from __future__ import annotations

import pytest

from mvc import ConflictError, CorruptionError, NotFoundError, Repo
from mvc.history.values import Stamp, TreeEntry
from mvc.workspace import transition as transitions
from mvc.workspace.checkout_plan import plan_checkout
from mvc.workspace.journal import (
    EntryChange,
    FileRemoval,
    FileWrite,
    HeadMove,
    Transition,
    encode_journal,
)
from mvc.workspace.recorded import drop_clashing, head_tree, make_entry
from mvc.workspace.recovery import recover
from mvc.workspace.staging import stat_mark
from mvc.workspace.transition import plan_head_move, run
from mvc.workspace.worktree import find_file_stat

JOURNAL = ".mvc/transition.json"


def write(root, path, text="x"):
    target = root / path
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(text)


def codes(repo):
    return {file.path: file.code for file in repo.status().files}


@pytest.fixture
def two(repo, root):
    write(root, "a", "one")
    write(root, "d/gone", "one")
    repo.commit("one", paths=".")
    write(root, "a", "two")
    (root / "d/gone").unlink()
    write(root, "new/file", "only here")
    repo.commit("two", paths=".")
    return repo


def entry_of(repo, revision, path):
    return repo._context.history.read_tree(repo.resolve(revision))[path]


def mark(root, path):
    return stat_mark(find_file_stat(root, path))


def write_of(repo, revision, path, **options):
    entry = entry_of(repo, revision, path)
    was = mark(repo.worktree, path)
    return FileWrite(path, entry.mode, entry.blob, was=was, **options)


def carry_out(repo, transition):
    run(repo._context, transition, repo._context.history.read_index())


class TestRun:
    def test_everything_at_once(self, two, root):
        head = two.head
        first = two.resolve("HEAD~1")
        carry_out(
            two,
            Transition(
                writes=(write_of(two, "HEAD~1", "a"), write_of(two, "HEAD~1", "d/gone")),
                removals=(FileRemoval("new/file", mark(root, "new/file")),),
                head=plan_head_move("detach", first, head, "checkout: x", Stamp.now(two.identity)),
            ),
        )
        assert codes(two) == {}
        assert (two.head.branch, two.head.commit) == (None, first)
        assert not (root / "new").exists()
        assert not (root / JOURNAL).exists()
        assert list(root.glob(".mvc/tmp/*")) == []

    def test_without_files_nothing_is_staged(self, two, root, monkeypatch):
        monkeypatch.setattr(transitions, "staging_folder", None)
        entry = entry_of(two, "HEAD~1", "a")
        carry_out(two, Transition(entries=(EntryChange("a", entry.mode, entry.blob),)))
        assert codes(two) == {"a": "MM"}

    def test_a_file_that_leaves_only_the_worktree(self, two, root):
        removal = FileRemoval("new/file", mark(root, "new/file"), from_index=False)
        carry_out(two, Transition(removals=(removal,)))
        assert codes(two) == {"new/file": " D"}

    def test_a_file_that_comes_only_into_the_worktree(self, two, root):
        carry_out(two, Transition(writes=(write_of(two, "HEAD~1", "a", into_index=False),)))
        assert codes(two) == {"a": " M"}

    def test_names_that_clash_in_the_index(self, two, root):
        (root / "new/file").unlink()
        (root / "new").rmdir()
        entry = entry_of(two, "HEAD", "a")
        carry_out(two, Transition(writes=(FileWrite("new", entry.mode, entry.blob),)))
        assert codes(two) == {"new": "A ", "new/file": "D "}
        carry_out(two, Transition(entries=(EntryChange("a/b", entry.mode, entry.blob),)))
        assert set(two._context.history.read_index().entries) == {"a/b", "new"}


class TestTheWorldMoved:
    def transition(self, repo, **options):
        return Transition(writes=(write_of(repo, "HEAD~1", "a"),), **options)

    def check_untouched(self, repo, transition, match):
        """Run it from a plan of before ``meanwhile``; nothing may change."""
        root = repo.worktree
        before = repo.head, (root / ".mvc/index").read_bytes(), (root / "a").read_text()
        with pytest.raises(ConflictError, match=match):
            run(repo._context, transition, self.planned)
        assert before == (repo.head, (root / ".mvc/index").read_bytes(), (root / "a").read_text())
        assert not (root / JOURNAL).exists()
        assert list(root.glob(".mvc/tmp/*")) == []

    def test_another_process_staged_the_path(self, two, root):
        transition = self.transition(two)
        self.planned = two._context.history.read_index()
        write(root, "a", "staged")
        two.add("a")
        self.check_untouched(two, transition, "'a' was staged by another process")

    def test_the_file_was_edited(self, two, root):
        transition = self.transition(two)
        self.planned = two._context.history.read_index()
        write(root, "a", "edited just now")
        self.check_untouched(two, transition, "'a' changed")

    def test_a_file_turned_up(self, two, root):
        transition = Transition(writes=(write_of(two, "HEAD~1", "d/gone"),))
        self.planned = two._context.history.read_index()
        write(root, "d/gone", "somebody's")
        self.check_untouched(two, transition, "'d/gone' changed")
        assert (root / "d/gone").read_text() == "somebody's"

    def test_the_file_to_remove_was_edited(self, two, root):
        transition = Transition(removals=(FileRemoval("new/file", mark(root, "new/file")),))
        self.planned = two._context.history.read_index()
        write(root, "new/file", "edited just now")
        self.check_untouched(two, transition, "'new/file' changed")

    def test_the_folder_became_a_link(self, two, root, tmp_path):
        transition = Transition(writes=(write_of(two, "HEAD~1", "d/gone"),))
        self.planned = two._context.history.read_index()
        (tmp_path / "elsewhere").mkdir()
        (root / "d").rmdir() if (root / "d").exists() else None
        (root / "d").symlink_to(tmp_path / "elsewhere")
        self.check_untouched(two, transition, "'d' is not a folder")
        assert list((tmp_path / "elsewhere").iterdir()) == []

    def test_head_moved(self, two):
        move = plan_head_move("move", two.resolve("HEAD~1"), two.head, "x", Stamp.now(two.identity))
        self.planned = two._context.history.read_index()
        two.commit("meanwhile", allow_empty=True)
        self.check_untouched(two, Transition(head=move), "HEAD moved")

    def test_head_went_to_another_branch_of_the_same_commit(self, two):
        move = plan_head_move("move", two.resolve("HEAD~1"), two.head, "x", Stamp.now(two.identity))
        self.planned = two._context.history.read_index()
        two.switch("other", create=True)
        self.check_untouched(two, Transition(head=move), "HEAD moved")

    @pytest.mark.parametrize("gone", [False, True])
    def test_the_branch_to_go_to_moved(self, two, gone):
        two.create_branch("other")
        tip = two.resolve("other")
        move = plan_head_move(
            "branch", "other", two.head, "x", Stamp.now(two.identity), branch_at=tip
        )
        self.planned = two._context.history.read_index()
        if gone:
            two.delete_branch("other")
        else:
            two.create_branch("other", "HEAD~1", force=True)
        self.check_untouched(two, Transition(head=move), "branch 'other' moved")

    def test_a_blob_that_is_missing(self, two, root):
        self.planned = two._context.history.read_index()
        write_nothing = FileWrite("a", 0o100644, "1" * 40, was=mark(root, "a"))
        with pytest.raises((CorruptionError, NotFoundError)):
            run(two._context, Transition(writes=(write_nothing,)), self.planned)
        assert (root / "a").read_text() == "two"
        assert not (root / JOURNAL).exists()


class TestRecover:
    def interrupt(self, repo, transition, monkeypatch):
        """Leave the journal as a crash does, with everything still to be done."""

        def stop(*_):
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(transitions, "_apply", stop)
            with pytest.raises(KeyboardInterrupt):
                carry_out(repo, transition)
        assert (repo.worktree / JOURNAL).exists()

    def everything(self, repo):
        root, first = repo.worktree, repo.resolve("HEAD~1")
        return Transition(
            writes=(write_of(repo, "HEAD~1", "a"), write_of(repo, "HEAD~1", "d/gone")),
            removals=(FileRemoval("new/file", mark(root, "new/file")),),
            head=plan_head_move("move", first, repo.head, "reset: x", Stamp.now(repo.identity)),
        )

    def test_nothing_to_do(self, two):
        assert not recover(two._context)

    def test_finishes_what_was_begun(self, two, root, monkeypatch):
        first = two.resolve("HEAD~1")
        self.interrupt(two, self.everything(two), monkeypatch)
        status = Repo.open(root).status()
        assert (status.recovered, status.commit, status.files) == (True, first, ())
        assert (root / "a").read_text() == "one"
        assert not (root / "new/file").exists()
        assert not Repo.open(root).status().recovered

    @pytest.mark.parametrize("verb", ["add", "commit", "checkout", "diff", "switch", "branch"])
    def test_any_verb_does_it_first(self, two, root, monkeypatch, verb):
        first = two.resolve("HEAD~1")
        self.interrupt(two, self.everything(two), monkeypatch)
        opened = Repo.open(root)
        {
            "add": lambda: opened.add("a"),
            "commit": lambda: opened.commit("x", allow_empty=True),
            "checkout": lambda: opened.checkout("main"),
            "diff": opened.diff,
            "switch": lambda: opened.switch("new", create=True),
            "branch": lambda: opened.create_branch("new"),
        }[verb]()
        assert not (root / JOURNAL).exists()
        assert first in (entry.info.id for entry in opened.log())
        assert (root / "a").read_text() == "one"

    def test_twice_is_as_good_as_once(self, two, root, monkeypatch):
        self.interrupt(two, self.everything(two), monkeypatch)
        journal = (root / JOURNAL).read_bytes()
        Repo.open(root).status()
        (root / JOURNAL).write_bytes(journal)
        status = Repo.open(root).status()
        assert (status.recovered, status.files) == (True, ())

    def test_what_the_user_did_since_is_left_alone(self, two, root, monkeypatch):
        self.interrupt(two, self.everything(two), monkeypatch)
        write(root, "a", "edited after the crash")
        write(root, "new/file", "edited too")
        assert codes(Repo.open(root)) == {"a": " M", "new/file": "??"}
        assert (root / "a").read_text() == "edited after the crash"
        assert (root / "new/file").read_text() == "edited too"

    def test_staged_files_that_are_gone_are_made_again(self, two, root, monkeypatch):
        self.interrupt(two, self.everything(two), monkeypatch)
        for path in (root / ".mvc/tmp").rglob("*.mvc-tmp"):
            path.unlink()
        assert codes(Repo.open(root)) == {}
        assert (root / "a").read_text() == "one"

    def test_staged_files_that_are_damaged_are_made_again(self, two, root, monkeypatch):
        self.interrupt(two, self.everything(two), monkeypatch)
        for path in (root / ".mvc/tmp").rglob("*.mvc-tmp"):
            path.write_text("not this")
        assert codes(Repo.open(root)) == {}
        assert (root / "a").read_text() == "one"

    def test_a_repository_that_was_moved_since(self, two, root, monkeypatch, tmp_path):
        self.interrupt(two, self.everything(two), monkeypatch)
        root.rename(tmp_path / "moved")
        opened = Repo.open(tmp_path / "moved")
        assert codes(opened) == {}
        assert (tmp_path / "moved/a").read_text() == "one"

    def test_somebody_else_moved_head_since(self, two, root, monkeypatch):
        self.interrupt(two, self.everything(two), monkeypatch)
        history = two._context.history
        tree = two.show().info.tree
        mine = history.write_commit(
            tree=tree, parents=[two.head.commit], message="by hand",
       author=Stamp(two.identity, 1, 0),
        )  # fmt: skip
        history.update_head(
            mine, expected=two.head.commit, message="x", stamp=Stamp.now(two.identity)
        )
        opened = Repo.open(root)
        assert opened.status().commit == mine

    def test_a_damaged_journal_says_what_to_do(self, two, root):
        (root / JOURNAL).write_bytes(b"{}")
        for call in (two.status, lambda: two.checkout("HEAD~1"), lambda: two.add(".")):
            with pytest.raises(CorruptionError, match="journal") as caught:
                call()
            assert f"remove {root / JOURNAL}" in caught.value.hint
        assert list(two.log())  # history needs no worktree
        (root / JOURNAL).unlink()
        assert codes(two) == {}

    def test_a_journal_that_cannot_be_followed(self, two, root):
        move = HeadMove("detach", "1" * 40, "main", two.head.commit, "x", "Ann", "a@b")
        (root / JOURNAL).write_bytes(encode_journal(Transition(head=move)))
        with pytest.raises(CorruptionError, match="cannot be finished"):
            two.status()


class TestPlan:
    def test_reads_no_clean_file_and_plans_nothing_twice(self, two, root):
        context = two._context
        index, target = context.history.read_index(), context.history.read_tree(two.resolve("main"))
        plan = plan_checkout(context, index, head_tree(context), target)
        assert (plan.write, plan.remove, plan.entries, plan.conflicts, plan.blockers) == (
            (), (), (), (), (),
        )  # fmt: skip

    def test_of_a_tree_that_nobody_committed(self, two, root):
        context = two._context
        target = {"x": TreeEntry(0o100644, entry_of(two, "HEAD", "a").blob)}
        index = context.history.read_index()
        plan = plan_checkout(context, index, head_tree(context), target)
        assert [path for path, _ in plan.write] == ["x"]
        assert plan.remove == ("a", "new/file")


class TestEntries:
    def entry(self, path):
        return make_entry(path, 0o100644, "0" * 40, None)

    @pytest.mark.parametrize(
        ("before", "placed", "after"),
        [
            (["a", "b"], ["a"], ["a", "b"]),
            (["a/x", "a/y", "b"], ["a"], ["a", "b"]),
            (["a", "b"], ["a/x/y"], ["a/x/y", "b"]),
            (["a/x"], ["a/x/y"], ["a/x/y"]),
            (["ab", "a.b"], ["a"], ["a", "a.b", "ab"]),
            (["a/b/c", "a/d"], ["a/b"], ["a/b", "a/d"]),
            (["a", "c/d"], ["a/b", "c"], ["a/b", "c"]),
        ],
    )
    def test_files_and_folders_of_one_name(self, before, placed, after):
        entries = {path: self.entry(path) for path in (*before, *placed)}
        drop_clashing(entries, placed)
        assert sorted(entries) == after

    def test_without_a_stat_an_entry_matches_no_file(self, root, repo):
        write(root, "a")
        assert not self.entry("a").matches(find_file_stat(root, "a"))
