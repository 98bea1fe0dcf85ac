"""When the machine says no: full disk, no permission, files that change or go while they are read.

Every refusal is a StorageError or ConflictError that says what and what to do, leaves everything
as it was, and leaves nothing in the way of the next try.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from mvc import ConflictError, CorruptionError, Repo, StorageError
from mvc.sources import FileSource
from support import verbs
from support.bounds import bounded, rest_slow
from support.fulldisk import FullDisk
from support.leftovers import STANDING_LOCKS
from support.models import digests, write_config, write_model

_NOBODY = 65534


def _prepare(root):
    repo = Repo.init(root)
    repo.identity = verbs.WHO
    repo.set_config("mvc.chunkbytes", "4096")
    write_model(root / "model.safetensors", seed=1)
    write_config(root / "config.json", epoch=1)
    repo.commit("one", paths=["."], step=1)
    repo.switch("two", create=True)
    write_model(root / "model.safetensors", seed=2)
    write_config(root / "config.json", epoch=2)
    (root / "folder").mkdir()
    (root / "folder" / "notes.txt").write_text("notes" * 500)
    repo.commit("two", paths=["."], step=2)
    repo.switch("main")
    return repo


def _state(root):
    repo = Repo.open(root)
    refs = {ref.name: ref.commit for ref in [*repo.branches.list(), *repo.tags.list()]}
    return repo.head, refs, repo.status().files, digests(root)


def _leftovers(root):
    """Return temporary files and locks that a verb which ended should not have left."""
    return [
        path.relative_to(root).as_posix()
        for path in root.rglob("*")
        if path.name.endswith((".mvc-tmp", ".lock")) or path.name.startswith("tmp_obj")
        if path.name not in STANDING_LOCKS
    ]


# Full.


_VERBS = {
    "add": lambda repo: repo.add("."),
    "commit": lambda repo: repo.commit("staged", step=3),
    "commit_state": lambda repo: repo.commit_state(verbs.make_state(7), message="state", step=7),
    "switch": lambda repo: repo.switch("two"),
    "branch": lambda repo: repo.branches.create("more", "two"),
    "export": lambda repo: repo.export("two", repo.worktree / "exported.safetensors"),
}


def _run(root, verb):
    _VERBS[verb](Repo.open(root, identity=verbs.WHO))


def _ready(root, verb):
    """Make a repository in which the verb has something to do."""
    _prepare(root)
    if verb in ("add", "commit"):
        write_model(root / "model.safetensors", seed=3)
        (root / "extra.txt").write_text("extra" * 300)
    if verb == "commit":
        _run(root, "add")


@pytest.mark.parametrize("verb", rest_slow(_VERBS, kept=2))
def test_full_at_every_level(verb, tmp_path):
    origin = tmp_path / "origin"
    origin.mkdir()
    _ready(origin, verb)
    before = _state(origin)
    done = tmp_path / "done"
    shutil.copytree(origin, done, symlinks=True)
    with FullDisk(done, 2**30) as disk:
        _run(done, verb)
    needed = disk.used_bytes
    after = _state(done)[2:]
    assert needed > 100
    refused = 0
    work = tmp_path / "work"
    levels = bounded(25, 400)
    for free_bytes in [0, 1, *range(10, needed, max(1, needed // levels)), needed - 1]:
        shutil.copytree(origin, work, symlinks=True)
        with FullDisk(work, free_bytes):
            try:
                _run(work, verb)
            except StorageError as error:
                refused += 1
                assert error.hint is not None, f"{free_bytes} of {needed}: {error}"
                assert "space" in error.hint
            else:
                assert free_bytes > needed // 2, f"{free_bytes} of {needed} were enough"
        where = f"{free_bytes} of {needed} bytes free"
        assert _leftovers(work) == [], where
        is_done = _state(work)[2:] == after and _state(work) != before
        assert is_done or _state(work) == before, where
        if not is_done:
            _run(work, verb)
        assert _state(work)[2:] == after, where
        assert Repo.open(work).upkeep.fsck(data=True).ok, where
        shutil.rmtree(work)
    assert refused > 10


@contextmanager
def _mount(folder):
    """Mount a real file system of 1.5 MiB."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1536k,mode=0777", "tmpfs", str(folder)]
    mounted = subprocess.run(command, capture_output=True, check=False)
    if mounted.returncode:
        pytest.skip(f"cannot mount a tmpfs: {mounted.stderr.decode().strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.fixture
def tiny_disk(tmp_path):
    with _mount(tmp_path / "tiny") as folder:
        yield folder


@pytest.mark.parametrize("verb", rest_slow(_VERBS, kept=2))
def test_full_file_system(verb, tiny_disk):
    root = tiny_disk / "work"
    root.mkdir()
    _ready(root, verb)
    before = _state(root)
    filler = tiny_disk / "filler"
    refused = 0
    for spare_blocks in range(0, bounded(30, 120), bounded(2, 1)):
        space = os.statvfs(tiny_disk)
        filler.write_bytes(bytes(max(0, space.f_bavail - spare_blocks) * space.f_frsize))
        try:
            _run(root, verb)
        except StorageError as error:
            refused += 1
            assert "space" in error.hint, error
        else:
            filler.unlink()
            break
        filler.unlink()
        assert _leftovers(root) == [], spare_blocks
        assert _state(root) == before, spare_blocks
        assert Repo.open(root).upkeep.fsck(data=True).ok, spare_blocks
    assert refused or verb == "branch"
    if _state(root) == before:
        _run(root, verb)
    assert Repo.open(root).upkeep.fsck(data=True).ok


def test_reading_commands_work_on_a_full_disk(tiny_disk):
    root = tiny_disk / "work"
    root.mkdir()
    _ready(root, "add")
    space = os.statvfs(tiny_disk)
    (tiny_disk / "filler").write_bytes(bytes(space.f_bavail * space.f_frsize))
    repo = Repo.open(root)
    assert {file.path for file in repo.status().files} == {"model.safetensors", "extra.txt"}
    assert len(list(repo.log())) == 1
    assert repo.diff()[0].path == "model.safetensors"
    assert repo.tensor("two", "model.safetensors", "norm").shape == (32,)
    assert repo.upkeep.fsck(data=True).ok


def test_worktree_over_two_file_systems(tmp_path):
    """A file is staged on the file system where it will lie, and never left there."""
    root = tmp_path / "work"
    repo = Repo.init(root)
    with _mount(root / "other") as other:
        for number in (1, 2):
            write_model(other / "model.safetensors", seed=number)
            write_model(root / "model.safetensors", seed=10 + number)
            (other / f"only-{number}.txt").write_text("text")
            repo.commit(f"number {number}", paths=["."], step=number)
            (other / f"only-{number}.txt").unlink()
        repo.restore(".")
        second = digests(root)
        repo.checkout("main@1")
        assert repo.status().files == ()
        assert sorted(path.name for path in other.iterdir()) == ["model.safetensors", "only-1.txt"]
        repo.switch("main")
        assert digests(root) == second
        filler = other / "filler"
        filler.write_bytes(bytes(os.statvfs(other).f_bavail * os.statvfs(other).f_frsize))
        with pytest.raises(StorageError) as caught:
            repo.checkout("main@1")
        assert "space" in caught.value.hint
        filler.unlink()
        assert _leftovers(root) == []
        assert digests(root) == second
        assert repo.status().files == ()
        for pack in (repo.git_dir / "chunks").rglob("*.pack"):
            pack.chmod(0o644)
            pack.write_bytes(bytes(pack.stat().st_size))
        with pytest.raises(CorruptionError):
            Repo.open(root).checkout("main@1")
        assert _leftovers(root) == []
        assert digests(root) == second


def test_file_size_limit(tmp_path, zygote):
    """A quota on single files is a refusal like any other."""
    repo = Repo.init(tmp_path)
    (tmp_path / "small.txt").write_text("small")
    repo.commit("one", paths=["."])
    (tmp_path / "big.bin").write_bytes(np.random.default_rng(0).bytes(3_000_000))
    before = _state(tmp_path)
    outcome = zygote.run("add_with_limit", tmp_path, path="big.bin", limit_bytes=1_000_000)
    assert outcome.kind == "StorageError", outcome
    assert "file too large" in outcome.error
    assert _leftovers(tmp_path) == []
    assert _state(tmp_path) == before
    repo.commit("two", paths=["."])
    assert repo.upkeep.fsck(data=True).ok


# Not permitted.


@pytest.fixture
def open_path():
    """A folder that is not among pytest's, which only their owner may enter."""
    root = os.environ.get("PYTEST_DEBUG_TEMPROOT")
    with tempfile.TemporaryDirectory(prefix="mvc-test-", dir=root) as folder:
        yield Path(folder)


@pytest.fixture
def nobody(open_path):
    """A folder whose owner is not root, who may do anything; and the id to become."""
    if os.geteuid():
        return None
    os.chown(open_path, _NOBODY, _NOBODY)
    return _NOBODY


def _give(root, uid):
    if uid is not None:
        for path in [root, *root.rglob("*")]:
            os.chown(path, uid, uid, follow_symlinks=False)


def test_read_only_repository(open_path, nobody, zygote):
    """Everything that only reads works; what writes says why not."""
    _prepare(open_path)
    (open_path / "untracked.txt").write_text("new")
    (open_path / "same").touch()
    Repo.open(open_path).add("same")
    os.utime(open_path / "same", ns=(time.time_ns(),) * 2)  # status would like to note the time
    _give(open_path, nobody)
    folders = [path for path in open_path.rglob("*") if path.is_dir()]
    for path in [open_path, *folders]:
        path.chmod(0o555)
    for path in open_path.joinpath(".mvc").rglob("*"):
        if path.is_file():
            path.chmod(0o444)
    try:
        outcome = zygote.run("look_at_everything", open_path, uid=nobody)
        assert outcome.error is None, outcome.error
        for verb, arguments in [
            ("add_and_commit", {"message": "x"}),
            ("commit_state", {"number": 1}),
            ("switch", {"branch": "two"}),
            ("move_names", {"revision": "two"}),
        ]:
            outcome = zygote.run(verb, open_path, uid=nobody, **arguments)
            assert outcome.kind == "StorageError", (verb, outcome)
            assert "permission denied" in outcome.error, (verb, outcome)
            assert outcome.hint is not None, (verb, outcome)
    finally:
        for path in [open_path, *folders]:
            path.chmod(0o755)


def test_unreadable_file_and_folder(open_path, nobody, zygote):
    repo = Repo.init(open_path)
    for name in ("secret.bin", "tracked.bin"):
        (open_path / name).write_bytes(bytes(5000))
    repo.commit("tracked", paths=["tracked.bin"])
    (open_path / "tracked.bin").write_bytes(b"\1" * 5000)
    (open_path / "locked").mkdir()
    (open_path / "locked" / "inner.txt").write_text("inner")
    _give(open_path, nobody)
    for name in ("secret.bin", "tracked.bin", "locked"):
        (open_path / name).chmod(0)
    try:
        for path in ("secret.bin", "tracked.bin", "."):
            outcome = zygote.run("add", open_path, uid=nobody, path=path)
            assert outcome.kind == "StorageError", outcome
            assert "permission denied" in outcome.error, outcome
            assert any(name in outcome.error for name in ("secret", "tracked", "locked")), outcome
            assert "permissions" in outcome.hint
        outcome = zygote.run("status_codes", open_path, uid=nobody, untracked=False)
        assert outcome.result == {"tracked.bin": " M"}, outcome
        outcome = zygote.run("switch", open_path, uid=nobody, branch="main")
        assert outcome.error is None, outcome
        # What cannot be read may hold anything: it is not overwritten.
        outcome = zygote.run("checkout_empty", open_path, uid=nobody)
        assert outcome.kind == "ConflictError", outcome
    finally:
        (open_path / "locked").chmod(0o755)


def test_checkout_into_a_folder_that_may_not_be_written(open_path, nobody, zygote):
    repo = _prepare(open_path)
    repo.switch("two")
    before = _state(open_path)
    _give(open_path, nobody)
    (open_path / "folder").chmod(0o555)
    try:
        outcome = zygote.run("switch", open_path, uid=nobody, branch="main")
        assert outcome.kind == "StorageError", outcome
        assert "folder" in outcome.error
    finally:
        (open_path / "folder").chmod(0o755)
    # The machine failed half-way; now that it does not, the checkout is finished or taken back.
    outcome = zygote.run("status_codes", open_path, uid=nobody)
    assert outcome.result == {}, outcome
    _give(open_path, os.geteuid())
    state = _state(open_path)
    assert state == before or (state[0].branch == "main" and state[2] == ())
    assert Repo.open(open_path).upkeep.fsck(data=True).ok


# Files that do not keep still.


def _while_reading(monkeypatch, path, action):
    """Act once, after the first bytes of the file were read."""
    original = FileSource.read_into
    done = []

    def read_into(self, offset, buffer):
        original(self, offset, buffer)
        if Path(self.path) == path and not done:
            done.append(True)
            action()

    monkeypatch.setattr(FileSource, "read_into", read_into)


def _grow(path):
    with path.open("ab") as file:
        file.write(b"more")


def _edit_in_place(path):
    with path.open("r+b") as file:
        file.seek(-3, os.SEEK_END)
        file.write(b"new")


def _edit_and_hide(path):
    """Change bytes and put the time of change back, as some copying tools do."""
    before = path.stat()
    _edit_in_place(path)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def _replace(path):
    other = path.with_name("other.tmp")
    shutil.copy2(path, other)
    other.replace(path)


def _replace_parent_by_link(path):
    aside = path.parent.parent.with_name(path.parent.parent.name + "-aside")
    shutil.move(path.parent, aside)
    path.parent.symlink_to(aside)


_CHANGES = {
    "grow": _grow,
    "edit_in_place": _edit_in_place,
    "edit_and_hide": _edit_and_hide,
    "truncate": lambda path: os.truncate(path, 5),
    "empty": lambda path: os.truncate(path, 0),
    "remove": lambda path: path.unlink(),
    "replace": _replace,
    "replace_by_link": lambda path: (path.unlink(), path.symlink_to("/etc/passwd")),
    "replace_by_folder": lambda path: (path.unlink(), path.mkdir()),
    "replace_parent_by_link": _replace_parent_by_link,
}


@pytest.mark.parametrize("name", ["model.safetensors", "notes.txt", "big.bin"])
@pytest.mark.parametrize("change", _CHANGES)
def test_file_that_changes_while_it_is_added(change, name, tmp_path, monkeypatch):
    root = tmp_path / "work"
    repo = Repo.init(root)
    repo.set_config("mvc.chunkbytes", "4096")
    folder = root / "folder"
    folder.mkdir()
    path = folder / name
    if name == "model.safetensors":
        write_model(path, seed=1)
    else:
        path.write_bytes(b"text\n" * (300_000 if name == "big.bin" else 300))
    (root / "first.txt").write_text("first")
    before = _state(root)[:3]
    _while_reading(monkeypatch, path, lambda: _CHANGES[change](path))
    with pytest.raises(ConflictError, match=name) as caught:
        repo.add(["first.txt", f"folder/{name}"])
    assert "while it was read" in str(caught.value)
    monkeypatch.undo()
    assert _state(root)[0] == before[0]
    assert Repo.open(root)._context.history.read_index().entries == {}
    assert repo.upkeep.fsck(data=True).ok
    repo.add(".")
    repo.commit("as it is now")
    assert Repo.open(root).status().files == ()
    assert repo.upkeep.fsck(data=True).ok


def test_same_size_edits_within_a_tick(tmp_path, monkeypatch):
    """However fast a file is written again after it was read, status sees it."""
    repo = Repo.init(tmp_path)
    path = tmp_path / "value.txt"
    for number in range(bounded(15, 300)):
        path.write_text(f"{number:08}")
        _while_reading(monkeypatch, path, lambda: None)
        repo.add("value.txt")
        path.write_text(f"{number:07}x")
        assert [file.worktree for file in repo.status().files] == ["modified"], number
        repo.add("value.txt")
        assert [file.worktree for file in repo.status().files] == ["unmodified"], number
        monkeypatch.undo()


def test_edit_between_read_and_index(tmp_path, monkeypatch):
    """An edit right after the reading, in the same tick if the clock is slow, is not lost sight of."""
    repo = Repo.init(tmp_path)
    path = tmp_path / "value.txt"
    original = Repo.open(tmp_path)._context.history.__class__.write_index

    def edit_first(self, index):
        path.write_text("22222222")
        original(self, index)

    path.write_text("11111111")
    monkeypatch.setattr("mvc.history.git.GitHistory.write_index", edit_first)
    repo.add("value.txt")
    monkeypatch.undo()
    assert [file.worktree for file in repo.status().files] == ["modified"]
    assert repo.commit("ones").files_total == 1
    assert repo.read_file("HEAD", "value.txt") == b"11111111"


def test_tracked_file_that_became_a_pipe_is_not_overwritten(tmp_path):
    repo = _prepare(tmp_path)
    (tmp_path / "config.json").unlink()
    os.mkfifo(tmp_path / "config.json")
    with pytest.raises(ConflictError, match=r"config\.json"):
        repo.switch("two")
    repo.switch("two", force=True)
    assert (tmp_path / "config.json").is_file()
    assert repo.status().files == ()
