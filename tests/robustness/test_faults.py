"""Every call of the operating system fails once, and Ctrl-C is pressed at every one of them.

A failure is a StorageError and leaves the old state, or, behind the point of no return, one that
the next command completes. The next try works, and nothing is left lying about.
"""

from __future__ import annotations

import shutil

import pytest

from mvc import Repo
from support import verbs
from support.bounds import bounded, rest_slow
from support.faults import FAULTS, fail_calls
from support.leftovers import find_locks
from support.models import digests, write_config, write_model

_STRIDE = bounded(7, 1)


def _prepare(root):
    repo = Repo.init(root)
    repo.identity = verbs.WHO
    write_model(root / "model.safetensors", seed=1, layers=1)
    write_config(root / "config.json", epoch=1)
    (root / "folder").mkdir()
    (root / "folder" / "notes.txt").write_text("notes")
    repo.commit("one", paths=["."], step=1)
    repo.switch("two", create=True)
    write_model(root / "model.safetensors", seed=2, layers=1)
    shutil.rmtree(root / "folder")
    (root / "link").symlink_to("config.json")
    repo.commit("two", paths=["."], step=2)
    repo.switch("main")


def _edit(root):
    write_model(root / "model.safetensors", seed=3, layers=1)
    (root / "extra.txt").write_text("extra")


def _open(root):
    return Repo.open(root, identity=verbs.WHO)


def add_and_commit(root):
    _open(root).add(".")
    if _open(root).status().is_clean:
        return
    _open(root).commit("three", time_s=1_700_000_000)


def commit_state(root):
    if _open(root).show().annotations.step == 7:
        return  # it failed behind the point of no return
    _open(root).commit_state(verbs.make_state(7), message="s", step=7, time_s=1_700_000_000)


def switch(root):
    _open(root).switch("two")


def restore(root):
    _open(root).restore(".", source="two", staged=True)


def move(root):
    repo = _open(root)
    if (root / "renamed.txt").exists():
        if repo.status().files[0].staged != "renamed":
            repo.add(["folder/notes.txt", "renamed.txt"])  # as for what was moved by hand
    else:
        repo.move("folder/notes.txt", "renamed.txt")


def remove(root):
    repo = _open(root)
    if "config.json" in repo._context.history.read_index().entries:
        repo.remove("config.json")
    else:
        (root / "config.json").unlink(missing_ok=True)


def export(root):
    _open(root).export("two", root / "out.safetensors", force=True)


def move_names(root):
    repo = _open(root)
    repo.branches.create("side", "two", force=True)
    repo.tags.create("v1", "two", message="one", force=True)


_VERBS = [add_and_commit, commit_state, switch, restore, move, remove, export, move_names]


def _state(root):
    repo = Repo.open(root)
    status = repo.status()
    names = {ref.name: ref.commit for ref in [*repo.branches.list(), *repo.tags.list()]}
    links = sorted(path.name for path in root.iterdir() if path.is_symlink())
    staged = {
        path: (entry.mode, entry.blob)
        for path, entry in repo._context.history.read_index().entries.items()
    }
    names.pop("v1", None)  # its tagger's time
    return repo.head.branch, names, staged, status.files, digests(root), links


@pytest.mark.parametrize("fault", rest_slow(FAULTS))
@pytest.mark.parametrize("verb", _VERBS, ids=lambda verb: verb.__name__)
def test_one_fault(verb, fault, tmp_path, monkeypatch):
    monkeypatch.setattr("mvc.history.values.time.time", lambda: 1_700_000_000)
    origin, done = tmp_path / "origin", tmp_path / "done"
    origin.mkdir()
    _prepare(origin)
    if verb is add_and_commit:
        _edit(origin)
    shutil.copytree(origin, done, symlinks=True)
    verb(done)
    before, after = _state(origin), _state(done)
    kept_contents = set(digests(origin).values()) - set(digests(done).values())
    for where, work in fail_calls(verb, origin, tmp_path, fault, _STRIDE):
        assert kept_contents <= set(digests(work).values()) or _state(work) == after, where
        report = Repo.open(work).upkeep.fsck(data=True)
        assert report.ok, f"{where}: {report.problems}"
        if verb in (switch, restore, commit_state, export):
            assert _state(work) in (before, after), where
        assert not [path for path in work.rglob("*.mvc-tmp") if ".mvc" not in path.parts], where
        verb(work)
        assert _state(work) == after, where
        assert find_locks(work) == [], where
        assert not (work / ".mvc" / "transition.json").exists(), where
        assert Repo.open(work).upkeep.fsck(data=True).ok, where
