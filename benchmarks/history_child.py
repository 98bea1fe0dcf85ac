"""Histories that upkeep works on: ``python -m benchmarks.history_child make|check FOLDER COMMITS VALUES``.

``make`` commits training states (fp32 weights and two moments of so many values each, drawn and
then moved by a small random step per commit) through ``Repo.commit_state``: a trunk ``main`` of
three fifths of the commits, and branches off it that train on with half of the layers frozen.
Every second branch is deleted at the end, so a fifth of the history is garbage. One commit is
tagged. Digests of what must survive (the tips of all branches that are left, the tag, the newest
commits of main) lie beside the repository; ``check`` loads those commits and compares.

A process of its own, because ``make`` turns fsync off: the histories are made once and thrown away.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import mvc

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    Tensors = dict[str, NDArray[np.float32]]

DIGESTS = "digests.json"
KEPT_LAST = 10  # of prune; whether it counts per branch or in all, half of them are of main
_LAYERS = 8
_BRANCH_EVERY = 25
_FAR_PAST_S = 1_700_000_000


@dataclass(slots=True)
class Weights:
    """A training state that can be moved on: layer → weights, and their moments."""

    values: Tensors
    first: Tensors
    second: Tensors

    def move(self, rng: np.random.Generator, *, frozen: int) -> None:
        """Take one step of noise on all layers but the first ``frozen``."""
        for name in list(self.values)[frozen:]:
            slope = rng.standard_normal(self.values[name].shape, np.float32) * np.float32(1e-3)
            self.first[name] = np.float32(0.9) * self.first[name] + np.float32(0.1) * slope
            self.second[name] = np.float32(0.99) * self.second[name] + np.float32(0.01) * slope**2
            size = np.sqrt(self.second[name]) + np.float32(1e-8)
            self.values[name] = self.values[name] - np.float32(1e-4) * self.first[name] / size

    def copy(self) -> Weights:
        """Return a state that moves on its own; arrays are never written in place."""
        return Weights(dict(self.values), dict(self.first), dict(self.second))

    def state(self) -> dict[str, object]:
        """Return it as a run would hand it over."""
        return {"model": self.values, "optimizer": {"m": self.first, "v": self.second}}


def start(values: int) -> Weights:
    """Return a fresh state of so many weights."""
    rng = np.random.default_rng(0)
    shape = (max(1, values // _LAYERS // 64), 64)
    drawn = {
        f"layer.{n}": rng.standard_normal(shape, np.float32) * np.float32(0.02)
        for n in range(_LAYERS)
    }
    return Weights(
        drawn,
        {name: np.zeros_like(array) for name, array in drawn.items()},
        {name: np.zeros_like(array) for name, array in drawn.items()},
    )


def make(folder: Path, commits: int, values: int) -> None:
    """Make the history."""
    repo = mvc.Repo.init(folder)
    count = max(2, commits // _BRANCH_EVERY)
    length = max(1, commits * 2 // 5 // count)
    trunk = commits - count * length
    weights, branches = start(values), 0
    for step in range(trunk):
        weights.move(np.random.default_rng([1, step]), frozen=0)
        _commit(repo, weights, step, None)
        while branches < count and step >= (branches + 1) * trunk // (count + 2):
            _grow_branch(repo, weights.copy(), f"side-{branches}", step, length)
            branches += 1
    assert branches == count
    repo.tags.create("kept", f"main~{trunk // 2}")
    for number in range(0, count, 2):
        repo.branches.delete(f"side-{number}", force=True)
    names = [f"side-{number}" for number in range(1, count, 2)]
    names += ["kept", *(f"main~{back}" for back in range(min(KEPT_LAST // 2, trunk)))]
    digests = {str(repo.resolve(f"{name}^{{commit}}")): _digest(repo, name) for name in names}
    (folder / DIGESTS).write_text(json.dumps(digests))


def _grow_branch(repo: mvc.Repo, weights: Weights, name: str, step: int, length: int) -> None:
    repo.branches.create(name)
    for more in range(1, length + 1):
        weights.move(np.random.default_rng([2, step, more]), frozen=_LAYERS // 2)
        _commit(repo, weights, step + more, name)


def _commit(repo: mvc.Repo, weights: Weights, step: int, branch: str | None) -> None:
    repo.commit_state(
        weights.state(),
        message=f"step {step}",
        step=step,
        metrics={"loss": 3 - step / 1000},
        branch=branch,
        time_s=_FAR_PAST_S + 60 * step,
    )


def _digest(repo: mvc.Repo, revision: str) -> str:
    digest = hashlib.blake2b()
    _feed(digest, repo.load_state(revision, framework="numpy"))
    return digest.hexdigest()


def _feed(digest: Any, state: Mapping[str, Any]) -> None:
    for name, value in sorted(state.items()):
        digest.update(name.encode())
        if isinstance(value, dict):
            _feed(digest, value)
        else:
            digest.update(np.ascontiguousarray(value).data)


def check(folder: Path) -> None:
    """Compare what is left with what it was.

    Raises:
        AssertionError: a commit that had to stay came back with other bytes.
    """
    repo = mvc.Repo.open(folder)
    for commit, digest in json.loads((folder / DIGESTS).read_text()).items():
        if _digest(repo, commit) != digest:
            raise AssertionError(f"commit {commit} came back with other bytes")


def main() -> None:
    verb, folder, commits, values = sys.argv[1], Path(sys.argv[2]), *map(int, sys.argv[3:5])
    if verb == "check":
        check(folder)
    else:
        os.fsync = lambda _descriptor: None  # see above
        make(folder, commits, values)


if __name__ == "__main__":
    main()
