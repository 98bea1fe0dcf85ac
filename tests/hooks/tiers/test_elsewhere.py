"""A machine is lost: what its ranks had comes from the memory of the next one, over the network."""

from __future__ import annotations

import os
import sys
import threading
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from mvc import Repo  # noqa: E402
from mvc_hooks.tiers import images, memory  # noqa: E402
from mvc_hooks.tiers.memory import MemoryTier, name_lies, name_tiers  # noqa: E402
from support.crews import CrewRig, make_runtime, make_whole  # noqa: E402
from support.meshes import run_all  # noqa: E402

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(sys.platform != "linux", reason="elsewhere memory does not outlive a run"),
]


class Meeting:
    """What the ranks of a new run tell each other, threads of this process."""

    def __init__(self, size):
        self._barrier, self._said = threading.Barrier(size), [None] * size
        self.size = size

    def exchange(self, rank, value):
        self._said[rank] = value
        self._barrier.wait(60)
        said = list(self._said)
        self._barrier.wait(60)
        return said

    def join(self, rank):
        return SimpleNamespace(rank=rank, exchange=lambda value: self.exchange(rank, value))


class LostMachine:
    """A run on machines a and b, of which a is lost after a commit; the next one begins on c and b."""

    def __init__(self, tmp_path, monkeypatch):
        self.worktree, self.whole, self.here = tmp_path / "run", make_whole(1), threading.local()
        self._runtime = tmp_path
        rig = CrewRig(self.worktree, 2, nodes="ab", replicates=True, runtime=tmp_path)
        with rig:
            self.commit = rig.commit(self.whole, 1)[0].commit
            for one in rig.ranks:
                one.queue.wait_copied()
                one.queue.has_ended = False
            rig.ranks[0].kill()
            self.left = rig.ranks[1].writer._process
        monkeypatch.setattr(images, "find_folder", lambda: self.here.folder)

    def stand_on(self, node):
        """Be a process of a machine, from here on in this thread."""
        self.here.folder = make_runtime(self._runtime, node) / "mvc"
        self.here.folder.mkdir(mode=0o700, exist_ok=True)

    def open(self):
        return Repo.open(self.worktree)

    def wait_held(self):
        """Return what b holds, once its writer has become what holds it."""
        self.stand_on("b")
        git_dir = self.open().git_dir
        while not (found := images.find_remembered(git_dir, "main")):
            os.sched_yield()  # ended by the timeout of the test run, if it never comes
        return found

    def lose_packs(self):
        for path in (self.worktree / ".mvc/chunks").rglob("*"):
            if path.is_file():
                path.unlink()

    def resume(self, node, ranks, check):
        """Load the commit as a rank of the next run; return what came from memory."""
        self.stand_on(node)
        repo = self.open()
        memory = MemoryTier(repo, "main")
        memory.look(ranks)
        with memory.reading(self.commit):
            check(repo, memory, ranks.rank)
        ranks.exchange(None)
        given = memory.tell()
        memory.close(is_done=ranks.rank == 0)
        return given

    def check(self, repo, *_):
        assert_same(repo.load_state(), self.whole)

    def resume_on(self, nodes, check):
        meeting = Meeting(len(nodes))
        return run_all(
            *(
                lambda rank=rank, node=node: self.resume(node, meeting.join(rank), check)
                for rank, node in enumerate(nodes)
            )
        )


@pytest.fixture
def lost(tmp_path, monkeypatch, real_writers):
    lost = LostMachine(tmp_path, monkeypatch)
    yield lost
    lost.left.kill()
    lost.left.wait()


def assert_same(loaded, expected):
    for name, one in expected["model"].items():
        assert torch.equal(loaded["model"][name], one), name


def test_the_next_machine_has_it(lost):
    held = lost.wait_held()
    assert [(one.held.commit, one.held.rank) for one in held] == [
        (lost.commit, 0),
        (lost.commit, 1),
    ]
    for one in held:
        one.close(is_done=False)
    lost.lose_packs()
    given = lost.resume_on("cb", lost.check)
    assert [one.is_whole for one in given] == [True, True]
    assert given[0].away_bytes > 0, "c holds nothing"
    assert given[1].away_bytes == 0, "b holds everything"
    assert name_tiers(given) == "the memory of several machines"
    assert name_lies(given) == []


def test_ranks_that_see_the_same_do_not_meet(lost):
    for one in lost.wait_held():
        one.close(is_done=False)
    given = lost.resume_on("bb", lost.check)
    assert name_tiers(given) == "memory"


def test_one_that_dies_meanwhile_leaves_the_store(lost, monkeypatch):
    monkeypatch.setattr(memory, "_GRACE_S", 0.2)
    for one in lost.wait_held():
        one.close(is_done=False)
    dead = threading.Event()

    def check(repo, memory, rank):
        if rank == 1:
            memory._elsewhere.close()
            dead.set()
        assert dead.wait(60)
        assert_same(repo.load_state(), lost.whole)

    given = lost.resume_on("cb", check)
    assert name_tiers(given) == "memory and the local store"
