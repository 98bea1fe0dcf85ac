import os
import threading

import pytest

from mvc.errors import ConflictError
from mvc.history.check import check
from mvc.history.git import GitHistory
from mvc.history.locks import LOCK_NAME, find_lock_names
from mvc.history.values import Index, IndexEntry
from support.machine import kill_at_replace
from support.stockgit import START_S, at, commit_on_head, create_ref, git, stage, write_commit

MAIN = "refs/heads/main"

# Each makes one change: the lock file exists at its rename, the log lines are written.
ACTIONS = {
    "ref": lambda h, one, two: h.update_ref(MAIN, two, expected=one, message="m", stamp=at()),
    "new": lambda h, one, two: create_ref(h, "refs/heads/a/new", two),
    "head": lambda h, one, two: h.detach_head(two, stamp=at()),
    "switch": lambda h, one, two: h.set_head_branch("side", stamp=at()),
    "delete": lambda h, one, two: h.delete_ref("refs/heads/packed", expected=one, stamp=at()),
    "rename": lambda h, one, two: h.rename_branch("main", "renamed", stamp=at()),
    "config": lambda h, one, two: h.config.set("a.b", "c"),
    "index": lambda h, one, two: stage(h, IndexEntry("dead", h.write_blob(b"x"), 0o100644)),
}


def prepare(history):
    one = commit_on_head(history, "one")
    two = write_commit(history, [one], "two", time_s=START_S + 1)
    for name in ("packed", "side"):
        create_ref(history, f"refs/heads/{name}", one)
    git(history.git_dir, "pack-refs", "--all")
    with history.lock():
        entry = IndexEntry("kept", history.write_blob(b"kept"), 0o100644)
        history.write_index(Index({"kept": entry}))
    return one, two


def snapshot(history):
    head = history.head()
    logs = {name: tuple(history.read_reflog(name)) for name in history.refs.logs.names()}
    values = (head, history.list_refs(), history.config.read(), history.read_index().entries)
    return *values, {name: log for name, log in logs.items() if log}


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("action", ACTIONS)
def test_a_killed_writer_leaves_the_old_or_the_new_state_and_no_lock(history, action, when):
    one, two = prepare(history)
    before = snapshot(history)
    kill_at_replace(
        lambda: ACTIONS[action](GitHistory.open(history.git_dir), one, two), when, ".lock"
    )
    if when == "before":
        assert list(find_lock_names(history.git_dir))
    opened = GitHistory.open(history.git_dir)
    with opened.lock():
        pass
    assert list(find_lock_names(opened.git_dir)) == []
    assert (opened.git_dir / LOCK_NAME).read_bytes() == b""
    after = snapshot(opened)
    if when == "before":
        assert after == before
    else:
        assert after[:4] != before[:4]
    for name in ("HEAD", MAIN, "refs/heads/side"):
        entries = opened.read_reflog(name)
        value = opened.head().commit if name == "HEAD" else opened.find_ref(name)
        assert not entries or entries[0].new == value
    commit_on_head(opened, "life goes on")
    stage(opened)
    opened.config.set("x.y", "z")
    assert list(check(opened)) == []
    git(opened.git_dir, "fsck", "--strict")


def test_readers_need_no_lock(history):
    head = commit_on_head(history, "one")
    with history.lock():
        other = GitHistory.open(history.git_dir)
        assert other.head().commit == head
        assert other.resolve("HEAD@{0}") == head
        assert other.read_index() == Index({}, 0)


@pytest.mark.parametrize("name", ["refs/heads/main", "HEAD", "packed-refs", "index", "config"])
def test_a_lock_of_a_living_git_is_respected(history, name):
    one, two = prepare(history)
    lock = history.git_dir / f"{name}.lock"
    lock.parent.mkdir(parents=True, exist_ok=True)
    lock.write_bytes(b"by git")
    changes = {
        MAIN: lambda: history.update_ref(MAIN, two, expected=one, message="m", stamp=at()),
        "HEAD": lambda: history.detach_head(one, stamp=at()),
        "packed-refs": lambda: history.delete_ref("refs/heads/packed", expected=one, stamp=at()),
        "index": lambda: empty_index(history),
        "config": lambda: history.config.set("a.b", "c"),
    }
    with pytest.raises(ConflictError, match="locked") as caught:
        changes[name]()
    assert str(lock) in caught.value.hint or str(lock) in caught.value.message
    assert lock.read_bytes() == b"by git"
    assert history.find_ref("refs/heads/packed") == one
    assert len(history.read_reflog(MAIN)) == 1
    lock.unlink()
    history.update_ref(MAIN, two, expected=one, message="m", stamp=at())


def empty_index(history):
    stage(history)


def test_a_lock_older_than_the_machine_s_boot_is_nobodys(history):
    one, two = prepare(history)
    lock = history.git_dir / "refs/heads/main.lock"
    lock.parent.mkdir(parents=True, exist_ok=True)
    lock.write_bytes(b"before the power went")
    os.utime(lock, (1, 1))
    history.update_ref(MAIN, two, expected=one, message="m", stamp=at())
    assert history.find_ref(MAIN) == two
    assert not lock.exists()


@pytest.mark.parametrize(
    "mark",
    [b"refs/heads/main", b"refs/heads/../../x\n.\n", b"\xff\n.\n", b"/etc/x\n.\n", b".\n.\n"],
)
def test_a_torn_or_foreign_mark_removes_lock_files_and_nothing_else(history, mark):
    one, two = prepare(history)
    (history.git_dir / LOCK_NAME).write_bytes(mark)
    (history.git_dir / "refs/heads").mkdir(exist_ok=True)
    (history.git_dir / "refs/heads/main.lock").write_bytes(b"")
    (history.git_dir.parent / "x.lock").write_bytes(b"the user's")
    history.update_ref(MAIN, two, expected=one, message="m", stamp=at())
    assert history.find_ref(MAIN) == two
    assert (history.git_dir.parent / "x.lock").exists()


def test_the_lock_is_taken_again_by_its_holder_and_by_nobody_else(history):
    order = []

    def other():
        order.append("waiting")
        with history.lock():
            order.append("other")

    thread = threading.Thread(target=other)
    with history.lock(), history.lock():
        thread.start()
        with history.lock():
            order.append("holder")
        order.append("holder still")
    thread.join()
    assert order[-1] == "other"
    assert order.index("holder") < order.index("other")


def test_the_lock_is_free_after_an_error(history):
    with pytest.raises(KeyError), history.lock():
        raise KeyError
    with GitHistory.open(history.git_dir).lock():
        pass


def test_a_child_that_was_forked_meanwhile_does_not_keep_the_lock(history):
    reader, writer = os.pipe()
    with history.lock():
        child = os.fork()
        if child == 0:  # it inherits the descriptor and lives on, as a data loader would
            os.close(writer)
            os.read(reader, 1)
            os._exit(0)
    try:
        with GitHistory.open(history.git_dir).lock():
            pass
    finally:
        os.write(writer, b"x")
        os.close(writer)
        os.close(reader)
        os.waitpid(child, 0)
