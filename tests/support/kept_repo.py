"""A small repository with everything that gc, repack and prune are about, and what it must keep.

Differences, roundings of fp32 masters, small packs, a deleted branch, released commits, garbage of a
refused commit. ``Kept`` knows the bytes of every commit and asks for them again after anything.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from mvc import ReleasedError, Repo
from mvc.history.values import Identity
from mvc.storage.local import LocalStorage
from support.states import assert_same
from support.templates import copy_made

WHO = Identity("Ann", "ann@example.org")
OLD_S = 40 * 24 * 3600


def drifting_state(step, *, run=0, scale=1e-3):
    """Return a training state near that of the step before, as a slow run has them."""
    start = np.random.default_rng(run).standard_normal((128, 64)).astype(np.float32)
    noise = np.random.default_rng(1000 * run + step + 1).standard_normal((128, 64))
    master = (start * (1 + scale * step) + scale * noise).astype(np.float32)
    return {
        "model": {"w": master.astype(ml_dtypes.bfloat16), "frozen": start[:30]},
        "optimizer": {"master": master, "m": master * np.float32(0.5)},
        "step": step,
        "run": run,
    }


def commit_step(repo, step, *, run=0, delta=None, **more):
    return repo.commit_state(
        drifting_state(step, run=run), message=f"run {run} step {step}", step=step, delta=delta, **more
    ).commit  # fmt: skip


def load_exactly(repo, commit):
    """Load a state and compare it with what its numbers say it was."""
    loaded = repo.load_state(commit, framework="numpy")
    assert_same(loaded, drifting_state(loaded["step"], run=loaded["run"]))
    return loaded["step"]


@dataclass
class Kept:
    """The commits that were made, and which of them must be there to the last bit.

    Attributes:
        whole: commits whose content nobody released.
        released: commits of which it was.
    """

    whole: list[str] = field(default_factory=list)
    released: list[str] = field(default_factory=list)

    def check(self, root, where=""):
        """Every kept commit loads bit for bit, the released say what they are, fsck is clean."""
        repo = Repo.open(root)
        for commit in self.whole:
            load_exactly(repo, commit)
        for commit in self.released:
            try:
                load_exactly(repo, commit)
            except ReleasedError as error:
                assert error.commit in (*self.released, *self.whole), where
                assert error.policy, where
        report = repo.upkeep.fsck(data=True)
        assert report.ok, f"{where}: {report.problems}"


def build_kept(root, *, chunk_bytes=16384, released=True):
    """Put the repository into a folder; return what it keeps."""
    return copy_made(_make_kept, root, chunk_bytes=chunk_bytes, released=released)


def _make_kept(root, *, chunk_bytes, released):
    repo = Repo.init(root)
    repo.identity = WHO
    repo.set_config("mvc.chunkbytes", str(chunk_bytes))
    kept = Kept()
    kept.released = [commit_step(repo, step, delta=step > 1) for step in (1, 2)]
    kept.whole = [commit_step(repo, 3, delta=True), commit_step(repo, 4, delta=False)]
    repo.branches.create("gone", kept.whole[0])
    for step in (31, 32):
        commit_step(repo, step, run=1, branch="gone")
    repo.branches.delete("gone", force=True)
    repo.branches.create("side", kept.whole[0])
    kept.whole += [commit_step(repo, 5, run=2, branch="side")]
    kept.whole += [commit_step(repo, 6, run=2, branch="side", delta=True)]
    kept.whole += [commit_step(repo, 5)]
    if released:
        repo.tags.create("three", kept.whole[0])
        repo.upkeep.prune(repo.upkeep.plan_prune(keep_last=2))
    else:
        kept.whole, kept.released = kept.released + kept.whole, []
    make_old(root)
    kept.whole += [commit_step(repo, 7)]
    return kept


def make_old(root):
    """Turn the clock of all objects and packs back, so that what nothing reaches may go."""
    then_s = time.time() - OLD_S
    for folder in ("objects", "chunks"):
        for path in (Path(root) / ".mvc" / folder).rglob("*"):
            if path.is_file():
                os.utime(path, (then_s, then_s))


@pytest.fixture
def whole_run(root):
    """A repository with a dozen commits, all stored whole, and their ids."""
    commits = copy_made(_make_whole_run, root)
    return Repo.open(root, identity=WHO), commits


def _make_whole_run(root):
    repo = Repo.init(root)
    repo.identity = WHO
    repo.set_config("mvc.chunkbytes", "16384")
    return [commit_step(repo, step, delta=False) for step in range(12)]


def count_reads(monkeypatch):
    found, real = [], LocalStorage.read_into

    def read_into(storage, key, offset, buffer):
        found.append((key, len(buffer)))
        real(storage, key, offset, buffer)

    monkeypatch.setattr(LocalStorage, "read_into", read_into)
    return found
