"""Every file under ``.mvc`` is damaged in turn: right results or a documented error, nothing else.

A small repository is prepared once. For each damage a copy is looked at with everything that
reads: fsck, checkout of every revision, single tensors, the training state, status and log. What
comes out is exactly what was committed, or an ``MvcError``; the worktree never holds a wrong byte;
and fsck sees whatever made something unreadable.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest
import torch

from mvc import Repo
from mvc.chunkstore.store import ChunkStore
from mvc.errors import CorruptionError, MvcError, NotFoundError, StorageError
from mvc.formats.pack import RECORD_BYTES
from mvc.storage.local import LocalStorage
from mvc.workspace import transition
from support.bounds import bounded
from support.models import digests, write_config, write_model
from support.states import assert_same
from support.stockgit import run_git

TENSORS = [
    ("model.safetensors", "norm"),
    ("model.safetensors", "layers.0.q"),
    ("weights.pt", "a"),
]
JOURNAL = ".mvc/transition.json"
_DENSE = 8
STATE = {"run": {"w": np.arange(300, dtype=np.float32)}, "step": 7}


@dataclass
class Known:
    """A repository and everything that can be read from it."""

    root: Path
    files: dict[str, dict[str, str]] = field(default_factory=dict)  # commit → path → digest
    tensors: dict[tuple[str, str, str], bytes] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)  # branch or tag → commit
    subjects: list[str] = field(default_factory=list)

    @property
    def state_commit(self):
        return self.names["main"]


def _write_files(root, epoch):
    norm = np.full(8, epoch, np.float32)
    write_model(root / "model.safetensors", seed=1, layers=1, width=8, norm=norm)
    write_config(root / "config.json", epoch=epoch)


def _prepare(root):
    repo = Repo.init(root)
    _write_files(root, 1)
    tied = torch.arange(6.0)
    torch.save({"a": tied, "b": tied[2:], "c": torch.ones(3).bfloat16()}, root / "weights.pt")
    (root / "sub").mkdir()
    (root / "sub/notes.txt").write_text("small and plain\n")
    repo.add(".")
    repo.commit("first", step=1)
    repo.branches.create("side")
    _write_files(root, 2)
    (root / "sub/run.sh").write_text("#!/bin/sh\n")
    (root / "sub/run.sh").chmod(0o755)
    repo.add(".")
    repo.commit("second", step=2)
    repo.tags.create("v1", message="tagged")
    repo.commit_state(STATE, message="third", step=7)
    return repo


def _learn(root):
    known = Known(root)
    repo = _prepare(root)
    known.subjects = [entry.info.subject for entry in repo.log()]
    for name, revision in {"main": "main", "side": "side", "v1": "v1^{commit}"}.items():
        known.names[name] = commit = repo.resolve(revision)
        repo.checkout(commit)
        known.files[commit] = digests(root)
        for path, tensor in TENSORS:
            values = repo.tensor(commit, path, tensor)
            known.tensors[commit, path, tensor] = values.tobytes()
    repo.checkout("main")
    return known


@pytest.fixture(scope="module")
def known(tmp_path_factory):
    root = tmp_path_factory.mktemp("known") / "repository"
    return _learn(root)


def _flips(size, count):
    """Return places to flip, first and last among them; all of them where they are few."""
    if size <= count:
        return range(size)
    return sorted({place * (size - 1) // (count - 1) for place in range(count)})


def _damages(data, flips):
    """Yield (what was done, new bytes or None for removed) for one file."""
    for place in _flips(len(data), flips):
        damaged = bytearray(data)
        damaged[place] ^= 1 << (place * 5 + 1) % 8
        yield f"byte {place} flipped", bytes(damaged)
    sizes = {0, len(data) // 2} if flips < _DENSE else {0, 1, len(data) // 2, len(data) - 1}
    for size in sorted(sizes - {len(data), -1}):
        yield f"cut to {size}", data[:size]
    if flips >= _DENSE:
        yield "longer", data + b"\x00"
    yield "removed", None


def _put(path, data):
    path.unlink()
    if data is not None:
        path.write_bytes(data)


def _attempt(call, *arguments, **options):
    """Return (answer, None) or (None, error); whatever is no MvcError fails the test."""
    try:
        return call(*arguments, **options), None
    except MvcError as error:
        assert error.message
        assert "\n" not in error.message
        return None, error


@dataclass
class Seen:
    """What a damaged repository gave."""

    report: object = None
    errors: dict = field(default_factory=dict)  # what was read → error


def _look(root, known, names):
    """Read everything; check that nothing wrong comes out; return what failed."""
    seen = Seen()
    repo, error = _attempt(Repo.open, root, threads=1)
    if error is not None:
        assert error.hint or isinstance(error, StorageError)
        seen.errors["open"] = error
        return seen
    seen.report, error = _attempt(repo.upkeep.fsck, data=True)
    # What is wrong is in the report; only a machine that fails is an error.
    assert error is None or isinstance(error, StorageError), error
    entries, seen.errors["log"] = _attempt(lambda: [entry.info.subject for entry in repo.log()])
    head, seen.errors["head"] = _attempt(lambda: repo.head.commit)
    assert seen.errors["log"] or head != known.state_commit or entries == known.subjects
    _, seen.errors["status"] = _attempt(repo.status)
    for commit, path, tensor in known.tensors:
        values, error = _attempt(repo.tensor, commit, path, tensor)
        assert error or values.tobytes() == known.tensors[commit, path, tensor]
        seen.errors["tensor", commit, path, tensor] = error
    state, error = _attempt(repo.load_state, known.state_commit, framework="numpy")
    if error is None:
        assert_same(state, STATE)
    seen.errors["state"] = error
    for revision, commit in {**{c: c for c in known.files}, **names}.items():
        before = digests(root)
        _, error = _attempt(Repo.open(root, threads=1).checkout, revision, force=True)
        allowed = [known.files[commit]]
        if error is not None:  # with a journal left behind, all files may be there before HEAD is
            allowed = [before, *allowed] if (root / JOURNAL).exists() else [before]
        assert digests(root) in allowed, revision
        seen.errors["checkout", revision] = error
    seen.errors = {what: error for what, error in seen.errors.items() if error is not None}
    return seen


def _check_report(seen, name, what, known):
    """Check that fsck saw what made something unreadable."""
    if "open" in seen.errors:
        return
    # A ref that has gone, or whose name in packed-refs is another now, is no damage to be seen.
    lost = {
        ("checkout", ref)
        for ref in known.names
        if isinstance(seen.errors.get(("checkout", ref)), NotFoundError)
        if what == "removed" or name == "packed-refs"
    }
    failed = set(seen.errors) - lost
    if failed:
        assert not seen.report.ok, (name, what, seen.errors)
    files = {key[2] for key in failed if key[0] == "tensor"}
    if name.startswith("chunks/") and files:
        assert files <= {problem.path for problem in seen.report.problems}, (name, what)
        assert all(p.commit and p.hint for p in seen.report.problems if p.tensor), (name, what)


def _files_under(git_dir):
    return sorted(
        path.relative_to(git_dir).as_posix()
        for path in git_dir.rglob("*")
        if path.is_file() and path.name != "description"
    )


def _damage_all(known, folder, flips, names=None):
    cases = 0
    for name in names or _files_under(known.root / ".mvc"):
        data = (known.root / ".mvc" / name).read_bytes()
        for what, damaged in _damages(data, flips):
            root = folder / "work"
            shutil.copytree(known.root, root, symlinks=True)
            _put(root / ".mvc" / name, damaged)
            try:
                # What is a name's own business cannot depend on packs and objects.
                is_content = name.startswith(("chunks/", "objects/"))
                seen = _look(root, known, {} if is_content else known.names)
                _check_report(seen, name, what, known)
            except BaseException as error:
                error.add_note(f"{name}: {what}")
                raise
            shutil.rmtree(root)
            cases += 1
    return cases


def test_packed_objects_and_refs_damaged(known, tmp_path):
    packed = tmp_path / "packed"
    shutil.copytree(known.root, packed, symlinks=True)
    for command in (["gc", "-q"], ["pack-refs", "--all"]):
        run_git(packed / ".mvc", *command)
    again = replace(known, root=packed)
    names = [n for n in _files_under(packed / ".mvc") if n.startswith(("objects", "packed"))]
    assert len(names) >= 3
    assert _damage_all(again, tmp_path, bounded(3, 200), names) > 20


@pytest.mark.slow
def test_every_file_damaged(known, tmp_path):
    assert _damage_all(known, tmp_path, bounded(4, 200)) > 150


def _chunk_of(root, commit, path, tensor):
    context = Repo.open(root, threads=1)._context
    manifest = context.manifests.read(context.history.read_tree(commit)[path].blob)
    (stored,) = (stored for view, stored in manifest.tensors() if view.name == tensor)
    return stored.chunks[0]


@pytest.mark.parametrize("place", ["body", "header"])
@pytest.mark.parametrize(("path", "tensor"), TENSORS, ids=["one", "two", "pt"])
def test_a_damaged_chunk_is_named_in_full(known, tmp_path, path, tensor, place):
    root, commit = tmp_path / "work", known.names["side"]
    shutil.copytree(known.root, root, symlinks=True)
    chunk = _chunk_of(root, commit, path, tensor)
    where = ChunkStore(LocalStorage(root / ".mvc/chunks")).find(chunk)
    (pack,) = (root / ".mvc/chunks").rglob(f"{where.pack}.pack")
    data = bytearray(pack.read_bytes())
    data[where.offset + (RECORD_BYTES if place == "body" else 9)] ^= 0x10
    _put(pack, bytes(data))
    (root / path).unlink()  # a clean file would not be written again
    repo, before = Repo.open(root, threads=1), digests(root)
    for read in (
        lambda: repo.tensor(commit, path, tensor),
        lambda: repo.checkout(commit, force=True),
        lambda: repo.export(commit, tmp_path / "out", path=path),
    ):
        with pytest.raises(CorruptionError) as caught:
            read()
        message = caught.value.message
        assert f"chunk {chunk.hex()[:12]}" in message
        assert repr(tensor) in message
        assert path in message
        assert f"in pack {where.pack[:12]} at offset {where.offset:,}:" in message
        assert "fsck" in caught.value.hint
    assert digests(root) == before
    assert not (tmp_path / "out").exists()
    problems = [found for found in repo.upkeep.fsck(data=True).problems if found.tensor == tensor]
    assert problems
    for found in problems:  # one per version of the file
        assert (found.path, found.chunk) == (path, chunk.hex())
        assert (found.pack, found.offset) == (where.pack, where.offset)
        assert found.commit in known.files
        assert found.hint


def test_a_lost_branch_is_noticed_and_can_be_brought_back(known, tmp_path):
    root, commit = tmp_path / "work", known.names["main"]
    shutil.copytree(known.root, root, symlinks=True)
    (root / ".mvc/refs/heads/main").unlink()
    repo = Repo.open(root)
    (problem,) = repo.upkeep.fsck().problems
    assert "refs/heads/main" in problem.detail
    assert commit in problem.detail
    repo.reset(commit, mode="soft")
    assert repo.upkeep.fsck().ok
    assert [entry.info.subject for entry in repo.log()] == known.subjects
    assert repo.status().files == ()


class _Stopped(BaseException):
    """The process is gone."""


def _stop():
    raise _Stopped


@pytest.fixture(scope="module")
def interrupted(known, tmp_path_factory):
    """A repository whose checkout of ``side`` stopped behind the point of no return."""
    root = tmp_path_factory.mktemp("interrupted") / "repository"
    shutil.copytree(known.root, root, symlinks=True)
    Repo.open(root).checkout("main", force=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(transition, "_apply", lambda *_: _stop())
        with pytest.raises(_Stopped):
            Repo.open(root).checkout("side")
    return root


def _staged(root):
    return sorted(path for path in (root / ".mvc/tmp").rglob("*.mvc-tmp") if path.is_file())


def test_staged_files_and_store_damaged_both(interrupted, tmp_path):
    root = tmp_path / "work"
    shutil.copytree(interrupted, root, symlinks=True)
    before = digests(root)
    for staged in _staged(root):
        staged.write_bytes(b"damaged" * 100)
    for pack in (root / ".mvc/chunks").rglob("*.pack"):
        _put(pack, bytes(pack.stat().st_size))
    for _ in range(2):
        with pytest.raises(CorruptionError, match="interrupted checkout") as caught:
            Repo.open(root).status()
        assert f"remove {root / JOURNAL}" in caught.value.hint
        assert digests(root) == before
    (root / JOURNAL).unlink()
    assert Repo.open(root).status().files == ()


@pytest.mark.slow
def test_other_things_in_place_of_files(known, tmp_path):
    """Folders, links to nowhere and to themselves where files should be."""
    names = _files_under(known.root / ".mvc")
    objects = [name for name in names if name.startswith("objects/")]
    packs = [name for name in names if name.startswith("chunks/")]
    for name in sorted(set(names) - set(objects[2:]) - set(packs[2:])):
        for kind in ("folder", "nowhere", "itself"):
            root = tmp_path / "work"
            shutil.copytree(known.root, root, symlinks=True)
            path = root / ".mvc" / name
            path.unlink()
            with contextlib.suppress(FileExistsError):
                if kind == "folder":
                    path.mkdir()
                else:
                    os.symlink(tmp_path / "nowhere" if kind == "nowhere" else path.name, path)
            try:
                _look(root, known, {} if name.startswith("objects/") else known.names)
            except BaseException as error:
                error.add_note(f"{name}: {kind} in its place")
                raise
            assert not (tmp_path / "nowhere").exists(), name
            shutil.rmtree(root)
