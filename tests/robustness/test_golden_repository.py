"""Repositories made by earlier versions are read for ever: ``tests/golden/repository/*.tar``.

``support.golden_repository`` says what is in them and how a new one is made.
"""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest

from mvc import Repo
from support.golden_repository import digest, make_state, read_worktree
from support.states import assert_same
from support.stockgit import git

GOLDEN = Path(__file__).parents[1] / "golden" / "repository"
VERSIONS = sorted(GOLDEN.glob("*.tar"))

_TRUSTED = {"filter": "fully_trusted"} if hasattr(tarfile, "fully_trusted_filter") else {}
"""What Python 3.11.4 and later want to be told, and earlier ones do not know."""


@pytest.fixture(params=VERSIONS, ids=lambda path: path.stem)
def golden(request, tmp_path):
    """Return (worktree with nothing but the repository, what must be in it)."""
    with tarfile.open(request.param) as archive:
        archive.extractall(tmp_path, **_TRUSTED)
    told = json.loads(request.param.with_suffix(".json").read_text())
    return tmp_path, told


def test_there_is_one():
    assert VERSIONS


def test_every_commit_comes_back_byte_for_byte(golden):
    root, told = golden
    repo = Repo.open(root)
    repo.reset(mode="hard")
    for commit, wanted in told["commits"].items():
        repo.checkout(commit, force=True)
        assert repo.status().is_clean
        found = read_worktree(root)
        assert found == {path: file["content"] for path, file in wanted["files"].items()}
        for file in repo.ls(commit):
            known = wanted["files"][file.path]
            assert f"{file.mode:o}" == known["mode"]
            assert (file.format, file.size_bytes) == (known["format"], known["size"])
            assert {
                tensor.name: [
                    tensor.dtype,
                    list(tensor.shape),
                    digest(repo.tensor(commit, file.path, tensor.name).tobytes()),
                ]
                for tensor in file.tensors
            } == known["tensors"]


def test_history(golden):
    root, told = golden
    repo = Repo.open(root)
    assert repo.head.branch == told["head"]
    assert {ref.name: ref.commit for ref in [*repo.branches.list(), *repo.tags.list()]} == told[
        "refs"
    ]
    entries = {entry.info.id: entry for entry in repo.log(everything=True)}
    assert entries.keys() == told["commits"].keys()
    for commit, wanted in told["commits"].items():
        entry = entries[commit]
        assert entry.info.subject == wanted["subject"]
        assert entry.annotations.step == wanted["step"]
        assert dict(entry.annotations.metrics or {}) == wanted["metrics"]
        assert list(entry.info.parents) == wanted["parents"]


def test_it_is_sound_for_us_and_for_git(golden):
    root, _ = golden
    repo = Repo.open(root)
    report = repo.upkeep.fsck(data=True)
    assert report.ok, report.problems
    assert report.notices == ()
    git(repo.git_dir, "fsck", "--strict", "--full")


def test_the_state_is_the_same(golden):
    root, _ = golden
    assert_same(Repo.open(root).load_state("main@12000", framework="numpy"), make_state())


def test_it_can_be_worked_on(golden):
    """What is stored again is recognised, whatever this version would have made of it."""
    root, _ = golden
    repo = Repo.open(root)
    repo.reset(mode="hard")
    repo.checkout("v1")
    for path in root.rglob("*"):
        if ".mvc" not in path.parts and path.is_file() and not path.is_symlink():
            path.touch()
    added = repo.add(".")
    assert added.counts.new_chunks == 0
    assert added.counts.chunks > 20
    assert repo.status().files == ()
    (root / "new.txt").write_text("new")
    repo.commit("goes on", paths=["new.txt"])
    repo.switch("main")
    assert repo.upkeep.fsck(data=True).ok
