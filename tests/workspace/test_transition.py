"""The carrying out of a plan; ``tests/crash`` stops it at every step."""

import pytest

from mvc import ConflictError, CorruptionError, Identity, NotFoundError, Repo
from mvc.history.values import Stamp, TreeEntry
from mvc.workspace import transition as transitions
from mvc.workspace.checkout_plan import plan_checkout
from mvc.workspace.journal import (
    EntryChange,
    FileRemoval,
    FileWrite,
    Transition,
)
from mvc.workspace.recorded import head_tree
from mvc.workspace.transition import plan_head_move, run
from support.opened_repo import write
from support.transitions import JOURNAL, carry_out, codes, entry_of, mark, write_of


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
    def check_untouched(self, repo, transition, match, meanwhile=lambda: None):
        """Run it from a plan of before ``meanwhile``; nothing may change."""
        root, planned = repo.worktree, repo._context.history.read_index()
        meanwhile()
        before = repo.head, (root / ".mvc/index").read_bytes(), (root / "a").read_text()
        with pytest.raises(ConflictError, match=match):
            run(repo._context, transition, planned)
        assert before == (repo.head, (root / ".mvc/index").read_bytes(), (root / "a").read_text())
        assert not (root / JOURNAL).exists()
        assert list(root.glob(".mvc/tmp/*")) == []

    def test_another_process_staged_the_path(self, two, root):
        transition = Transition(writes=(write_of(two, "HEAD~1", "a"),))

        def stage():
            write(root, "a", "staged")
            two.add("a")

        self.check_untouched(two, transition, "'a' was staged by another process", stage)

    def test_the_file_was_edited(self, two, root):
        for path, transition in (
            ("a", Transition(writes=(write_of(two, "HEAD~1", "a"),))),
            ("d/gone", Transition(writes=(write_of(two, "HEAD~1", "d/gone"),))),
            ("new/file", Transition(removals=(FileRemoval("new/file", mark(root, "new/file")),))),
        ):
            write(root, path, "edited just now")
            self.check_untouched(two, transition, f"'{path}' changed")
            assert (root / path).read_text() == "edited just now"

    def test_the_folder_became_a_link(self, two, root, tmp_path):
        transition = Transition(writes=(write_of(two, "HEAD~1", "d/gone"),))
        (tmp_path / "elsewhere").mkdir()
        (root / "d").rmdir() if (root / "d").exists() else None
        (root / "d").symlink_to(tmp_path / "elsewhere")
        self.check_untouched(two, transition, "'d' is not a folder")
        assert list((tmp_path / "elsewhere").iterdir()) == []

    def test_head_moved(self, two):
        for meanwhile in (
            lambda: two.switch("other", create=True),  # another branch of the same commit
            lambda: two.commit("meanwhile", allow_empty=True),
        ):
            move = plan_head_move(
                "move", two.resolve("HEAD~1"), two.head, "x", Stamp.now(two.identity)
            )
            meanwhile()
            self.check_untouched(two, Transition(head=move), "HEAD moved")

    @pytest.mark.parametrize("gone", [False, True])
    def test_the_branch_to_go_to_moved(self, two, gone):
        two.branches.create("other")
        tip = two.resolve("other")
        move = plan_head_move(
            "branch", "other", two.head, "x", Stamp.now(two.identity), branch_at=tip
        )
        if gone:
            two.branches.delete("other")
        else:
            two.branches.create("other", "HEAD~1", force=True)
        self.check_untouched(two, Transition(head=move), "branch 'other' moved")

    def test_a_blob_that_is_missing(self, two, root):
        write_nothing = FileWrite("a", 0o100644, "1" * 40, was=mark(root, "a"))
        with pytest.raises((CorruptionError, NotFoundError)):
            carry_out(two, Transition(writes=(write_nothing,)))
        assert (root / "a").read_text() == "two"
        assert not (root / JOURNAL).exists()


@pytest.mark.parametrize("name", ["index", "HEAD", "refs/heads/main"])
def test_what_git_has_locked_ends_a_transition_before_it_begins(tmp_path, name):
    Repo.init(tmp_path)
    repo = Repo.open(tmp_path, identity=Identity("Ada", "ada@example.org"))
    state = {"step": 1}
    first = repo.commit_state(state, message="first").commit
    repo.branches.create("other")
    lock = repo.git_dir / f"{name}.lock"
    lock.touch()
    with pytest.raises(ConflictError, match="is locked by"):
        repo.switch("other") if name == "HEAD" else repo.commit_state({"step": 2}, message="lost")
    lock.unlink()
    assert not (repo.git_dir / JOURNAL).exists()
    assert repo.head.branch == "main"
    second = repo.commit_state({"step": 3}, message="second").commit
    assert repo.resolve(f"{second}~1") == first


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
