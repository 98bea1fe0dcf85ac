"""Any sequence of commit, branch, delete, tag, reset, undo, prune, repack and gc keeps what it must.

The model is a dictionary: which files a commit had, and their bytes. A file of a commit that a ref
or reflog still leads to comes back bit for bit, unless a prune released it; then it does all the
same, or the error tells which commit, which policy, and a commit that has it. What was released and
is committed again is recognised and is there again.
"""

from __future__ import annotations

from random import Random

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save

from mvc import ConflictError, NotFoundError, ReleasedError, Repo
from mvc.history.reachability import DAY_S, find_roots
from mvc.workspace.released import check_content
from mvc.workspace.state_files import read_small_file
from support.bounds import bounded
from support.kept_repo import WHO, make_old
from support.walks import fresh_folder, walk

REFUSALS = (ConflictError, NotFoundError, ReleasedError)
PATHS = ("m.safetensors", "n.safetensors")
BRANCHES = ("main", "side", "diverged/main/3")
_START = np.random.default_rng(0).standard_normal((80, 64)).astype(np.float32)


def _values(number):
    """Return weights that drift, so that differences pay; 6 and 7 are something else."""
    if number > 5:
        return np.random.default_rng(number).standard_normal((80, 64)).astype(np.float32)
    return _START * np.float32(1 + number * 1e-4)


def _model(number):
    values = _values(number)
    return save({"w": values, "half": values.astype(ml_dtypes.bfloat16)})


def _policy(number):
    return [
        {"keep_last": 1},
        {"keep_last": 2},
        {"keep_every": 2},
        {"keep_tagged": True},
        {"keep_last": 1, "weights_only": True},
        {"keep_branch_tips": True, "also_diverged": ["*"]},
        {"keep_best": 1, "metric": "loss"},
        {"keep_within_s": 3600, "now_s": 2_000_000_000},
    ][number % 8]


class UpkeepMachine:
    def __init__(self, root, number):
        self.root, self.repo, self.trail = root, Repo.init(root), []
        self.repo.identity = WHO
        self.repo.set_config("mvc.chunkbytes", "16384")
        self.trees, self.bytes, self.released = {}, {}, set()
        self.commit_files(number, number, None)

    def can(self, name):
        return True

    @property
    def context(self):
        return self.repo._context

    def reachable(self):
        """Return the commits of the model that a ref or reflog leads to."""
        history = self.context.history
        commits = [one for one in find_roots(history) if one in self.trees]
        return [info.id for info in history.walk(commits)]

    def read(self, path, blob, commit):
        check_content(self.context, [(path, blob)], commit=commit)
        return read_small_file(self.context, blob)

    def try_to(self, action):
        """Do it, or let it be refused; nothing else may come of it."""
        try:
            return action()
        except REFUSALS as error:
            assert str(error)
            return None

    # Writing.

    def take(self, result, written):
        """Put a new commit into the model; what it brought back is released no more."""
        if result is None:
            return
        tree = {path: e.blob for path, e in self.context.history.read_tree(result.commit).items()}
        for path, blob in tree.items():
            data = self.read(path, blob, result.commit)
            assert self.bytes.setdefault(blob, data) == data
        for path, data in written.items():
            assert self.bytes[tree[path]] == data
        blobs = set(tree.values())
        history = self.context.history
        back = {(c, p) for c, p in self.released if self.trees[c][p] in blobs}
        if any(history.has_object(commit) for commit, _ in back):
            assert result.identical_to is not None
            assert result.identical_to.commit in {commit for commit, _ in back}
        self.released -= back
        self.trees[result.commit] = tree

    def commit_files(self, first, second, delta):
        written = {PATHS[0]: _model(first), PATHS[1]: _model(second)}
        for path, data in written.items():
            (self.root / path).write_bytes(data)
        step = len(self.trees)
        result = self.try_to(
            lambda: self.repo.commit(
                f"files {first} {second}",
                paths=list(PATHS),
                step=step,
                metrics={"loss": 1 / (1 + first)},
                delta=delta,
            )
        )
        self.take(result, written)

    def commit_state(self, number, delta, branch):
        values = _values(number)
        state = {
            "model": {"w": values.astype(ml_dtypes.bfloat16)},
            "optimizer": {"master": values, "m": values * np.float32(0.5)},
        }
        result = self.try_to(
            lambda: self.repo.commit_state(
                state, message=f"state {number}", step=len(self.trees), delta=delta, branch=branch
            )
        )
        self.take(result, {})
        if result is not None:
            loaded = self.repo.load_state(result.commit, framework="numpy")
            assert loaded["optimizer"]["master"].tobytes() == values.tobytes()

    # Names and places.

    def some(self, position):
        commits = sorted(self.reachable())
        return commits[position % len(commits)]

    def branch(self, name, position, force):
        commit = self.some(position)
        self.try_to(lambda: self.repo.branches.create(name, commit, force=force))

    def switch(self, name):
        self.try_to(lambda: self.repo.switch(name, force=True))

    def delete_branch(self, name):
        self.try_to(lambda: self.repo.branches.delete(name, force=True))

    def tag(self, name, position, annotated):
        commit, message = self.some(position), name if annotated else None
        self.try_to(lambda: self.repo.tags.create(name, commit, message=message, force=True))

    def delete_tag(self, name):
        self.try_to(lambda: self.repo.tags.delete(name))

    def reset(self, position, mode):
        commit = self.some(position)
        self.try_to(lambda: self.repo.reset(commit, mode=mode))

    def undo(self, redo):
        self.try_to(lambda: self.repo.undo(redo=redo, force=True))

    def reopen(self):
        self.repo = Repo.open(self.root, identity=WHO)

    # Upkeep.

    def prune(self, number):
        policy = _policy(number)
        plan = self.try_to(lambda: self.repo.upkeep.plan_prune(**policy))
        if plan is None:
            return
        protected = {self.repo.head.commit, *(ref.commit for ref in self.repo.tags.list())}
        if "also_diverged" not in policy:
            protected |= {ref.commit for ref in self.repo.branches.list()}
        for release in plan.releases:
            assert release.commit not in protected
            self.released |= {(release.commit, path) for path in release.paths}
        self.repo.upkeep.prune(plan)

    def repack(self, everything, grace_s):
        plan = self.repo.upkeep.plan_repack(everything=everything, grace_s=grace_s)
        self.repo.upkeep.repack(plan)
        self.repo.upkeep.repack()

    def gc(self, grace_s, expire):
        self.repo.upkeep.gc(self.repo.upkeep.plan_gc(grace_s=grace_s, expire_reflogs_s=expire))

    def grow_old(self):
        """Let everything on disk be older than any grace period."""
        make_old(self.root)

    # What must hold.

    def check(self):
        for commit in self.reachable():
            for path, blob in self.trees[commit].items():
                self.check_version(commit, path, blob)

    def check_version(self, commit, path, blob):
        may_be_gone = (commit, path) in self.released
        try:
            assert self.read(path, blob, commit) == self.bytes[blob]
        except ReleasedError as error:
            assert may_be_gone, f"{path} of {commit} was never released"
            assert path in str(error)
            assert (error.commit, path) in self.released or error.commit in self.trees
            assert error.policy.startswith("--keep-")
            assert error.time_s > 1_700_000_000
            if error.nearest is not None:
                near = self.trees[error.nearest][path]
                assert self.read(path, near, error.nearest) == self.bytes[near]

    def check_end(self):
        self.check_sound()
        self.repo.upkeep.gc(grace_s=0)
        self.check_sound()
        again = self.repo.upkeep.plan_gc(grace_s=0)
        assert again.is_empty, again
        self.repo.upkeep.repack()
        self.check_sound()
        again = self.repo.upkeep.plan_repack()
        assert again.is_empty, again
        self.check()

    def check_sound(self):
        report = Repo.open(self.root).upkeep.fsck(data=True)
        assert report.ok, report.problems


_is, _any = (True, False), range(41)
STEPS = {
    "commit_files": {"first": range(8), "second": range(8), "delta": (None, True, False)},
    "commit_state": {
        "number": range(8), "delta": (None, True, False), "branch": (None, *BRANCHES),
    },
    "branch": {"name": BRANCHES, "position": _any, "force": _is},
    "switch": {"name": BRANCHES},
    "delete_branch": {"name": BRANCHES},
    "tag": {"name": ("v1", "v2"), "position": _any, "annotated": _is},
    "delete_tag": {"name": ("v1", "v2")},
    "reset": {"position": _any, "mode": ("soft", "mixed", "hard")},
    "undo": {"redo": _is},
    "reopen": {},
    "prune": {"number": _any},
    "repack": {"everything": _is, "grace_s": (0, None)},
    "gc": {"grace_s": (0, 0, 30 * DAY_S, None), "expire": (None, None, 0)},
    "grow_old": {},
}  # fmt: skip


@pytest.mark.parametrize("seed", range(bounded(3, 60)))
def test_random_walk(seed):
    random = Random(seed)
    names = random.choices(["commit_files", "commit_state", *STEPS], k=30)
    with fresh_folder() as root:
        machine = UpkeepMachine(root, seed % 8)
        try:
            walk(machine, STEPS, names, random)
            machine.check_end()
        except BaseException:
            print(*machine.trail, sep="\n")
            raise
