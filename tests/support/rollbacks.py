"""A trained branch to roll back, and all that a rollback may change."""

from __future__ import annotations

import numpy as np
import pytest


@pytest.fixture
def trained(repo):
    """main: states of steps 100 to 600, as a training makes them; 200 and 400 are healthy."""
    commits = {}
    for step in range(100, 700, 100):
        commits[step] = repo.commit_state(
            {"w": np.full(50, step, np.float32)}, message=f"step {step}", step=step
        ).commit
    repo.runs.mark_healthy(commits[400])
    repo.runs.mark_healthy(commits[200])
    return repo, commits


def refs(repo):
    return repo._context.history.list_refs("refs/")


def everything(repo):
    """Return all that a rollback may change."""
    index = repo._context.history.read_index().entries
    files = {
        path.relative_to(repo.worktree).as_posix(): path.read_bytes()
        for path in repo.worktree.rglob("*")
        if path.is_file() and ".mvc" not in path.parts
    }
    staged = {path: (entry.mode, entry.blob) for path, entry in index.items()}
    return repo.head, refs(repo), staged, files, repo.reflog()
