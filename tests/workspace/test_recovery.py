"""A checkout that a crash interrupted is finished first, without losing what the user did since."""

import os

import pytest

from mvc import CorruptionError, Repo
from mvc.history.values import Stamp
from mvc.workspace import transition as transitions
from mvc.workspace.journal import FileRemoval, HeadMove, Transition, encode_journal
from mvc.workspace.recovery import recover
from mvc.workspace.transition import plan_head_move
from support.opened_repo import write
from support.transitions import JOURNAL, carry_out, codes, mark, write_of


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

    def test_finishes_what_was_begun(self, two, root, monkeypatch):
        assert not recover(two._context)
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
            "branch": lambda: opened.branches.create("new"),
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

    @pytest.mark.parametrize("spoil", [os.unlink, lambda path: path.write_text("not this")])
    def test_staged_files_that_are_not_sound_are_made_again(self, two, root, monkeypatch, spoil):
        self.interrupt(two, self.everything(two), monkeypatch)
        for path in (root / ".mvc/tmp").rglob("*.mvc-tmp"):
            spoil(path)
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
        assert "bad-journal" in {problem.kind for problem in two.upkeep.fsck().problems}
        assert list(two.log())  # history needs no worktree
        (root / JOURNAL).unlink()
        assert codes(two) == {}

    def test_a_journal_that_cannot_be_followed(self, two, root):
        move = HeadMove("detach", "1" * 40, "main", two.head.commit, "x", "Ann", "a@b")
        (root / JOURNAL).write_bytes(encode_journal(Transition(head=move)))
        with pytest.raises(CorruptionError, match="cannot be finished"):
            two.status()
