"""A training run with content to prune, and what comes back of it."""

from __future__ import annotations

import numpy as np
import pytest

from mvc import Identity, Repo
from support.templates import copy_made

NOW_S = 1_800_000_000


def state(step, *, big=True):
    """Return a state of its own per step; the model keeps a frozen part."""
    rng = np.random.default_rng(step)
    values = rng.standard_normal((40, 50)).astype(np.float32)
    found = {
        "model": {"frozen": np.arange(3000.0), "w": values},
        "optimizer": {"m": values * 2, "v": values * 3},
        "step": step,
    }
    return found if big else {"model": {"w": values}, "step": step}


def commit(repo, step, **more):
    metrics = {"loss": 10.0 - step / 1000}
    return repo.commit_state(
        state(step), message=f"step {step}", step=step, metrics=metrics,
        time_s=NOW_S - 10_000 + step, **more,
    )  # fmt: skip


@pytest.fixture
def five_steps(repo):
    """Five commits of a training state at 1000-step spacing."""
    return copy_made(_make_five_steps, repo.worktree)


def _make_five_steps(root):
    repo = Repo.init(root)
    repo.identity = Identity("Ann Example", "ann@example.org")
    return {step: commit(repo, step).commit for step in range(1000, 6000, 1000)}


def prune(repo, **policy):
    return repo.upkeep.prune(repo.upkeep.plan_prune(now_s=NOW_S, **policy))


def load(repo, revision):
    loaded = repo.load_state(revision, framework="numpy")
    np.testing.assert_array_equal(loaded["model"]["w"], state(loaded["step"])["model"]["w"])
    np.testing.assert_array_equal(loaded["optimizer"]["m"], state(loaded["step"])["optimizer"]["m"])
    return loaded["step"]
