"""The carrying out of a plan; ``tests/crash`` stops it at every step."""

from __future__ import annotations

import pytest

from mvc import ConflictError, CorruptionError, Identity, NotFoundError, Repo
from mvc.history.values import Stamp
from mvc.workspace import transition as transitions
from mvc.workspace.journal import (
    EntryChange,
    FileRemoval,
    FileWrite,
    Transition,
)
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
        two.branches.create("other")
        tip = two.resolve("other")
        move = plan_head_move(
            "branch", "other", two.head, "x", Stamp.now(two.identity), branch_at=tip
        )
        self.planned = two._context.history.read_index()
        if gone:
            two.branches.delete("other")
        else:
            two.branches.create("other", "HEAD~1", force=True)
        self.check_untouched(two, Transition(head=move), "branch 'other' moved")

    def test_a_blob_that_is_missing(self, two, root):
        self.planned = two._context.history.read_index()
        write_nothing = FileWrite("a", 0o100644, "1" * 40, was=mark(root, "a"))
        with pytest.raises((CorruptionError, NotFoundError)):
            run(two._context, Transition(writes=(write_nothing,)), self.planned)
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
