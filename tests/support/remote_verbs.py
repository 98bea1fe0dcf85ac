"""Verbs that travel, for the children of a zygote: killed at a call of the operating system or a store."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import tempfile
from pathlib import Path

import numpy as np

from mvc import ConflictError, Repo
from mvc import clone as make_clone
from mvc.remotes import remote as remote_module
from support.faults import OneFault
from support.remote_repos import CountedStorage, commit_model, make_repo
from support.verbs import WHO


class KillAt(OneFault):
    """Kills this very process in place of a call that changes the disk."""

    def _count(self, name):
        with self._lock:
            self.calls += 1
            if self.calls - 1 == self.at:
                os.kill(os.getpid(), signal.SIGKILL)


def warm_up():
    """Go every way once, so that no child has anything left to import."""
    root = Path(tempfile.mkdtemp())
    try:
        repo = make_repo(root / "a", str(root / "store"))
        commit_model(repo)
        repo.push()
        copy = make_clone(root / "store", root / "b")
        copy.fetch()
        assert copy.upkeep.fsck(data=True).problems == ()
        copy.remotes.gc(grace_s=0)
        make_clone(root / "store", root / "c", depth=1)
        repo.upkeep.prune(repo.upkeep.plan_prune(pushed=True))
        commit_one(make_clone(root / "store", root / "d", store=True).worktree, -1)
    finally:
        shutil.rmtree(root)


def push(root, at):
    """Push; return how many calls that took."""
    return _run(lambda: Repo.open(root, identity=WHO).push(all_branches=True), at)


def fetch(root, at):
    """Fetch; return how many calls that took, and what was read of the store."""
    return _run(Repo.open(root, identity=WHO).fetch, at)


def clone(root, at, url, **options):
    """Clone; return how many calls that took, and what was read of the store."""
    return _run(lambda: make_clone(url, root, **options), at)


def unshallow(root, at):
    """Bring the whole history; return how many calls that took, and what was read of the store."""
    return _run(lambda: Repo.open(root, identity=WHO).fetch(unshallow=True), at)


def prune_pushed(root, at):
    """Release what was pushed; return how many calls that took, and what was read of the store."""
    repo = Repo.open(root, identity=WHO)
    return _run(lambda: repo.upkeep.prune(repo.upkeep.plan_prune(pushed=True)), at)


def gc_remote(root, at):
    """Sweep the remote, nothing kept for a grace; return how many calls that took."""
    return _run(lambda: Repo.open(root, identity=WHO).remotes.gc(grace_s=0), at)


def commit_one(root, at):
    """Commit a state to a repository whose content is on a store; return how many calls that took."""
    state = {"model": {"w": np.arange(5000, dtype=np.float32)}, "step": 2}
    repo = Repo.open(root, identity=WHO)
    return _run(lambda: repo.commit_state(state, message="two"), at)


def _run(work, at):
    opened = []
    real = remote_module.open_store
    remote_module.open_store = lambda *args: (
        opened.append(CountedStorage(real(*args))) or opened[-1]
    )
    with KillAt(at=at) as kill:
        work()
    return kill.calls, [call for one in opened for call in one.calls]


def push_rounds(root, rounds, branch, number):
    """Commit and push to a branch again and again; return the commits that were accepted."""
    repo = Repo.open(root, identity=WHO)
    accepted, refused = [], 0
    while len(accepted) < rounds:
        seed = 10_000 * number + 100 * len(accepted) + refused
        commit = commit_model(repo, seed=seed, name=f"{number}.safetensors")
        try:
            repo.push("origin", [f"HEAD:refs/heads/{branch}"])
            accepted.append(commit)
        except ConflictError:
            refused += 1
            repo.fetch()
            repo.reset(f"origin/{branch}", mode="hard")
    return accepted, refused


def branch_rounds(root, rounds, number, seed):
    """Push branches with content of few kinds and delete them again; return which are there: of one kind, in the end."""
    repo, chance = Repo.open(root, identity=WHO), random.Random(f"{seed} {number}")
    there = {}
    for _ in range(rounds):
        kind = chance.randrange(4)
        commit, branch = repo.resolve(f"k{kind}"), f"c{number}-{kind}"
        with contextlib.suppress(ConflictError):  # it is being deleted: later
            if branch in there:
                repo.push("origin", [f":refs/heads/{branch}"])
                del there[branch]
            else:
                repo.push("origin", [f"{commit}:refs/heads/{branch}"])
                there[branch] = commit
    for branch in [one for one in there if not one.endswith("0")]:
        while branch in there:
            with contextlib.suppress(ConflictError):
                repo.push("origin", [f":refs/heads/{branch}"])
                del there[branch]
    return there


def sweep_rounds(root, rounds, seed):
    """Sweep the remote again and again; return how many objects were deleted."""
    repo, chance, deleted = Repo.open(root, identity=WHO), random.Random(seed), 0
    for number in range(200 * rounds):
        if deleted and number >= rounds:
            break
        with contextlib.suppress(ConflictError):
            deleted += repo.remotes.gc(grace_s=chance.choice([0, 0, 1])).deleted_objects
    return deleted
