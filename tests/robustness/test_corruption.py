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
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
import torch
from support.bounds import bounded
from support.models import digests, write_config, write_model
from support.states import assert_same

from mvc import Repo
from mvc.chunkstore.store import ChunkStore
from mvc.errors import CorruptionError, MvcError, RepositoryNotFoundError
from mvc.formats.pack import RECORD_BYTES
from mvc.operations import transition
from mvc.storage.local import LocalStorage

TENSORS = [
    ("model.safetensors", "norm"),
    ("model.safetensors", "layers.0.q"),
    ("weights.pt", "a"),
]
STATE = {"model": {"w": np.arange(300, dtype=np.float32)}, "step": 7}


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
    repo.create_branch("side")
    _write_files(root, 2)
    (root / "sub/run.sh").write_text("#!/bin/sh\n")
    (root / "sub/run.sh").chmod(0o755)
    repo.add(".")
    repo.commit("second", step=2)
    repo.create_tag("v1", message="tagged")
    repo.commit_state(STATE, message="third", step=7)
    return repo


def _learn(root):
    known = Known(root)
    repo = _prepare(root)
    known.subjects = [entry.commit.subject for entry in repo.log()]
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
    for size in sorted({0, 1, len(data) // 2, len(data) - 1} - {len(data), -1}):
        yield f"cut to {size}", data[:size]
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


def _look(root, known):
    """Read everything; check that nothing wrong comes out; return what failed."""
    seen = Seen()
    repo, error = _attempt(Repo.open, root, threads=1)
    if error is not None:
        assert isinstance(error, RepositoryNotFoundError), error
        seen.errors["open"] = error
        return seen
    seen.report = repo.fsck(data=True)  # what is wrong is in the report, never an error
    entries, seen.errors["log"] = _attempt(lambda: [entry.commit.subject for entry in repo.log()])
    is_moved = repo.head.commit != known.state_commit if seen.errors["log"] is None else True
    assert seen.errors["log"] or is_moved or entries == known.subjects
    _, seen.errors["status"] = _attempt(repo.status)
    for commit, path, tensor in known.tensors:
        values, error = _attempt(repo.tensor, commit, path, tensor)
        assert error or values.tobytes() == known.tensors[commit, path, tensor]
        seen.errors["tensor", commit, path, tensor] = error
    state, error = _attempt(repo.load_state, known.state_commit, framework="numpy")
    if error is None:
        assert_same(state, STATE)
    seen.errors["state"] = error
    for revision, commit in {**{c: c for c in known.files}, **known.names}.items():
        before = digests(root)
        _, error = _attempt(Repo.open(root, threads=1).checkout, revision, force=True)
        assert digests(root) == (known.files[commit] if error is None else before), revision
        seen.errors["checkout", revision] = error
    seen.errors = {what: error for what, error in seen.errors.items() if error is not None}
    return seen


def _check_report(seen, name, what, known):
    """Check that fsck saw what made something unreadable."""
    if "open" in seen.errors:
        return
    lost_names = {
        ("checkout", name) for name in known.names if what == "removed" or name == "HEAD"
    }
    failed = set(seen.errors) - lost_names
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


def _damage_all(known, folder, flips):
    cases = 0
    for name in _files_under(known.root / ".mvc"):
        data = (known.root / ".mvc" / name).read_bytes()
        for what, damaged in _damages(data, flips):
            root = folder / "work"
            shutil.copytree(known.root, root, symlinks=True)
            _put(root / ".mvc" / name, damaged)
            try:
                seen = _look(root, known)
                _check_report(seen, name, what, known)
            except BaseException as error:
                error.add_note(f"{name}: {what}")
                raise
            shutil.rmtree(root)
            cases += 1
    return cases


def test_every_file_damaged(known, quick_path):
    assert _damage_all(known, quick_path, 4) > 200


@pytest.mark.slow
def test_every_file_damaged_densely(known, quick_path):
    _damage_all(known, quick_path, bounded(8, 2000))
