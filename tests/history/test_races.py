"""Processes that change one repository at once: one winner each time, and nothing is lost."""

import contextlib
import subprocess
from functools import partial

from mvc.errors import ConflictError
from mvc.history.check import check
from mvc.history.git import GitHistory
from mvc.history.values import Index, IndexEntry, TreeEntry
from support.machine import fork_each, forked
from support.stockgit import START_S, at, create_ref, git, write_commit

REF = "refs/heads/main"


def add(git_dir, name, count):
    """Commit on main so many times, once more wherever somebody else was faster."""
    history, done = GitHistory.open(git_dir), 0
    while done < count:
        old = history.find_ref(REF)
        files = {} if old is None else history.read_tree(old)
        for path, text in ((f"{name}-{done}", f"{name}-{done}"), ("shared", f"{len(files)}")):
            files[path] = TreeEntry(0o100644, history.write_blob(text.encode()))
        new = history.write_commit(
            tree=history.write_tree(files),
            parents=[] if old is None else [old],
            message=f"{name} {done}",
            author=at(START_S + len(files), 0),
        )
        with contextlib.suppress(ConflictError):
            history.update_ref(REF, new, expected=old, message="add", stamp=at())
            done += 1


def stage(git_dir, name, count):
    history = GitHistory.open(git_dir)
    for number in range(count):
        path = f"{name}-{number}"
        blob = history.write_blob(path.encode())
        with history.lock():
            entries = dict(history.read_index().entries)
            entries[path] = IndexEntry(path, blob, 0o100644)
            history.write_index(Index(entries))


def test_every_commit_of_every_process_is_in_the_history(history):
    names, count = ["a", "b", "c", "d"], 8
    fork_each(*(partial(add, history.git_dir, name, count) for name in names))
    commits = list(history.walk([history.find_ref(REF)]))
    assert len(commits) == len(names) * count
    assert all(len(commit.parents) <= 1 for commit in commits)
    files = set(history.read_tree(history.find_ref(REF)))
    assert files == {f"{name}-{number}" for name in names for number in range(count)} | {"shared"}
    moves = history.read_reflog(REF)
    assert [entry.new for entry in moves] == [commit.id for commit in commits]
    assert [entry.old for entry in moves[:-1]] == [commit.id for commit in commits[1:]]
    assert len(history.read_reflog("HEAD")) == len(commits)
    assert list(check(history)) == []
    git(history.git_dir, "fsck", "--strict")


def test_no_entry_of_the_index_is_lost(history):
    names, count = ["a", "b", "c"], 10
    fork_each(*(partial(stage, history.git_dir, name, count) for name in names))
    wanted = sorted(f"{name}-{number}" for name in names for number in range(count))
    assert sorted(history.read_index().entries) == wanted
    assert git(history.git_dir, "ls-files").split() == wanted


def test_a_reader_sees_whole_states_only(history):
    create_ref(history, REF, write_commit(history, [], "first", time_s=1))
    reader, seen = GitHistory.open(history.git_dir), set()
    with forked(partial(add, history.git_dir, "w", 25)) as at_work:
        while at_work():
            head = reader.head().commit
            seen.add(head)
            commit = reader.read_commit(head)
            assert reader.list_refs()[REF]
            assert reader.read_reflog(REF)
            for entry in reader.read_tree(commit.id).values():
                reader.read_blob(entry.blob)
    assert len(list(reader.walk([reader.head().commit]))) == 26
    assert seen


def test_stock_git_and_mvc_take_turns(history):
    first = write_commit(history, [], "first", time_s=1)
    create_ref(history, REF, first)
    moves = 0
    with forked(partial(add, history.git_dir, "w", 15)) as at_work:
        while at_work():
            git(history.git_dir, "update-ref", f"refs/heads/git-{moves}", first, "0" * 40)
            if moves % 3 == 0:
                subprocess.run(
                    ["git", f"--git-dir={history.git_dir}", "pack-refs", "--all"],
                    check=False,
                    capture_output=True,
                )
            moves += 1
    assert len(list(history.walk([history.find_ref(REF)]))) == 16
    assert len(history.list_refs("refs/heads/git-")) == moves
    assert list(check(history)) == []
