"""After a ref moved, everything it reaches is on the disk; before, nothing points to it."""

import os
import shutil

import pytest

from mvc.errors import StorageError
from mvc.history.check import check
from mvc.history.git import GitHistory
from mvc.history.locks import find_lock_names
from mvc.history.values import Head, Index, IndexEntry
from support.bounds import rest_slow
from support.forgetful import ForgetfulDisk, PowerLoss
from support.stockgit import START_S, at, commit_on_head, create_ref, git, stage, write_commit


def prepare(root):
    history = GitHistory.init(root / ".mvc")
    commit_on_head(history, "one", files={"a": "1", "folder/b": "2"})
    commit_on_head(history, "two", time_s=START_S + 1, files={"a": "1", "folder/b": "3"})
    create_ref(history, "refs/heads/old/name", history.resolve("HEAD~1"))
    with history.lock():
        history.write_index(Index({"a": entry(history, "a")}))
    git(history.git_dir, "pack-refs", "--all")
    head = history.resolve("HEAD")  # one ref is in both places
    history.update_ref(
        "refs/heads/old/name", head, expected=history.resolve("HEAD~1"), message="m", stamp=at()
    )


def entry(history, path):
    return IndexEntry(path, history.write_blob(path.encode()), 0o100644)


def do_commit(history):
    files = {"a": "new", "folder/b": "3", "deep/er/c": "x" * 5000}
    commit_on_head(history, "three", time_s=START_S + 2, files=files)


def do_large_commit(history):
    with history.gathering():
        files = {f"folder/{one}": f"new {one}" for one in range(60)}
        commit_on_head(history, "many", time_s=START_S + 2, files=files)


def do_branch(history):
    create_ref(history, "refs/heads/new/one", history.resolve("HEAD"))


def do_tag(history):
    history.create_tag("v1", history.resolve("HEAD"), message="text", stamp=at(START_S))


def do_index(history):
    with history.lock():
        history.write_index(Index({path: entry(history, path) for path in ("x", "y/z")}))


def do_delete(history):
    value = history.find_ref("refs/heads/old/name")
    if value is not None:
        history.delete_ref("refs/heads/old/name", expected=value, stamp=at())


VERBS = {
    "commit": do_commit,
    "large commit": do_large_commit,
    "branch": do_branch,
    "tag": do_tag,
    "switch": lambda history: history.set_head_branch("old/name", stamp=at(START_S)),
    "detach": lambda history: history.detach_head(history.resolve("HEAD~1"), stamp=at()),
    "index": do_index,
    "config": lambda history: history.config.set("user.name", "Ann"),
    "delete": do_delete,
    "rename": lambda history: history.rename_branch("main", "trunk", stamp=at()),
}


def state_of(history):
    refs = history.list_refs()
    return history.head(), refs, history.read_index().entries, history.config.read()


def check_whole(root, states, verb):
    """Check that the repository is sound, in the old or new state, and goes on from there."""
    history = GitHistory.open(root / ".mvc")
    assert list(check(history)) == []
    found = state_of(history)
    assert found in states
    if found == states[0]:
        VERBS[verb](history)
        assert state_of(GitHistory.open(root / ".mvc")) == states[-1]
    commit_on_head(history, "goes on", time_s=START_S + 9)
    history.sync_objects()
    stage(history)
    assert list(find_lock_names(history.git_dir)) == []
    assert list(check(history)) == []


@pytest.mark.crash
@pytest.mark.parametrize("verb", rest_slow(VERBS, kept=3))
def test_the_power_goes_at_every_step(tmp_path, verb):
    start = tmp_path / "start"
    start.mkdir()
    prepare(start)
    old = state_of(GitHistory.open(start / ".mvc"))
    stop_at, states, is_done = 0, None, False
    while not is_done:
        work, after = tmp_path / f"work{stop_at}", tmp_path / f"after{stop_at}"
        shutil.copytree(start, work, symlinks=True)
        with ForgetfulDisk(work, None if states is None else stop_at) as disk:
            try:
                VERBS[verb](GitHistory.open(work / ".mvc"))
                is_done = states is not None
            except PowerLoss:
                pass
        disk.survivors(after)
        disk.close()
        if states is None:  # the first round runs through: what is durable now is the new state
            new = state_of(GitHistory.open(after / ".mvc"))
            assert new == state_of(GitHistory.open(work / ".mvc"))
            assert new != old
            states = [old, *middle_states(verb, old, new), new]
        else:
            check_whole(after, states, verb)  # what was not synced is gone
            if not is_done and stop_at % 4 == 0:
                check_whole(work, states, verb)  # the process died, the machine did not
            stop_at += 1
        shutil.rmtree(work)
        shutil.rmtree(after)
    assert stop_at > 3


def middle_states(verb, old, new):
    """Return what a rename may leave: both names, with HEAD on either; never none."""
    if verb != "rename":
        return []
    both = dict(sorted({**old[1], **new[1]}.items()))
    return [(head, both, *old[2:]) for head in (old[0], new[0])]


def test_what_a_ref_reaches_was_synced_before_it_moved(tmp_path, monkeypatch):
    with ForgetfulDisk(tmp_path) as disk:
        history = GitHistory.init(tmp_path / ".mvc")
        at_publish = []
        real = os.replace

        def replace(source, target):
            if str(source).endswith(".lock"):
                survivors = tmp_path.parent / f"{tmp_path.name}-{len(at_publish)}"
                disk.survivors(survivors)
                at_publish.append(survivors)
            return real(source, target)

        monkeypatch.setattr(os, "replace", replace)
        commit = commit_on_head(history, "one", files={"a/b": "1", "c": "2"})
        history.create_tag("v1", commit, message="annotated", stamp=at())
    disk.close()
    assert len(at_publish) == 2
    for survivors in at_publish:
        survivor = GitHistory.open(survivors / ".mvc")
        assert sorted(survivor.read_tree(commit)) == ["a/b", "c"]
        assert all(survivor.read_blob(one.blob) for one in survivor.read_tree(commit).values())


def test_objects_of_a_writer_that_died_are_synced_by_the_next_one(tmp_path):
    first = GitHistory.init(tmp_path / ".mvc")
    with ForgetfulDisk(tmp_path) as disk:
        files = {"a/b": "1", "c": "2"}
        write_commit(first, [], "one", time_s=START_S, files=files)  # and no sync: it dies here
        second = GitHistory.open(tmp_path / ".mvc")
        commit = commit_on_head(second, "one", time_s=START_S, files=files)
        disk.survivors(tmp_path.parent / f"{tmp_path.name}-after")
    disk.close()
    survivor = GitHistory.open(tmp_path.parent / f"{tmp_path.name}-after" / ".mvc")
    assert survivor.head() == Head("main", commit)
    assert list(check(survivor)) == []


def test_each_object_and_folder_is_synced_once(history, monkeypatch):
    calls = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: calls.append(os.fstat(descriptor).st_ino))
    for number in range(20):
        history.write_blob(b"%d" % number)
    assert len(calls) == 20
    calls.clear()
    history.sync_objects()
    folders = len(list((history.git_dir / "objects").glob("??")))
    assert len(calls) == len(set(calls)) == folders + 1
    calls.clear()
    history.sync_objects()
    assert calls == []


def test_after_a_failed_sync_nothing_is_promised_any_more(history, monkeypatch):
    head = commit_on_head(history, "one")
    new = write_commit(history, [head], "two", time_s=START_S)

    def fail(descriptor):
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        with pytest.raises(StorageError, match="input/output"):
            history.sync_objects()
    with pytest.raises(StorageError, match="earlier sync"):
        history.update_head(new, expected=head, message="m", stamp=at())
    assert history.head().commit == head
    again = GitHistory.open(history.git_dir)
    assert again.head().commit == head


def test_a_full_disk_is_a_storage_error_and_changes_nothing(history, monkeypatch):
    head = commit_on_head(history, "one")
    before = sorted(path for path in history.git_dir.rglob("*") if path.is_file())

    def fail(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "writev", fail)
    for change in (
        lambda: history.write_blob(b"new"),
        lambda: create_ref(history, "refs/heads/x", head),
        lambda: history.detach_head(head, stamp=at()),
        lambda: history.config.set("a.b", "c"),
        lambda: do_index_of(history),
    ):
        with pytest.raises(StorageError, match="no space left") as caught:
            change()
        assert "gc" in caught.value.hint
    after = sorted(path for path in history.git_dir.rglob("*") if path.is_file())
    assert [path for path in after if path.name != "mvc.lock"] == [
        path for path in before if path.name != "mvc.lock"
    ]
    assert len(history.read_reflog("HEAD")) == 1


def do_index_of(history):
    stage(history)
