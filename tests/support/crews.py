"""The ranks of a sharded run, each with its queue and a writer process; no training."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time

import msgspec
import torch
from torch.distributed.tensor import Shard

from mvc import Repo
from mvc.formats.manifest import DEFAULT_CHUNK_BYTES
from mvc.states.cross_check import CHECK_ROUNDS, list_due
from mvc_hooks.commits.queue import CommitQueue
from mvc_hooks.snapshot.ring import take_snapshot
from mvc_hooks.writer.messages import Open, RankCrew
from mvc_hooks.writer.place import open_listeners
from support.committing import WHO
from support.sharded import as_rank, shard

END_S = 60.0
_VARIABLES = ("PYTHONPATH", "MVC_TEST_STAGE", "XDG_RUNTIME_DIR")
GRACE_S = 10.0
STAGES = """
import os, signal, sys

stage = os.environ.get("MVC_TEST_STAGE")
if stage and sys.argv[:1] == ["-c"]:
    import threading
    from mvc.training import RunStore
    from mvc_hooks.writer import dialing, mesh, sides, turns

    def die(*values, **names):
        os.kill(os.getpid(), signal.SIGKILL)
        threading.Event().wait()

    def stop():
        os.kill(os.getpid(), signal.SIGSTOP)

    def after(function, then=die):
        def call(*values, **names):
            result = function(*values, **names)
            then()
            return result
        return call

    def second(function):
        calls = []
        def call(link, message):
            if type(message).__name__ == "Settled":
                calls.append(message)
                if len(calls) == 2:
                    die()
            return function(link, message)
        return call

    if stage == "start":
        mesh.Mesh.turn = die
    if stage == "offer":
        mesh.Mesh.bring = die
    if stage == "join":
        mesh.Mesh.bring = after(mesh.Mesh.bring)
    if stage == "silent":  # in the second commit: by then rank 0 hears of it before it stops
        stops = iter((lambda: None, stop))
        mesh.Mesh.bring = after(mesh.Mesh.bring, lambda: next(stops)())
    if stage == "read":
        dialing.TurnPeers.find_image = die
    if stage == "fetch":
        dialing.TurnPeers.find_image = lambda *values: None
        dialing.TurnPeers.fetch_part = after(dialing.TurnPeers.fetch_part)
    if stage == "serve":
        turns.Turns.hold = die
    if stage == "check":
        from mvc.states import assembling
        assembling.hash_chunk = die
    if stage == "stored":
        sides.FollowingRank.finish = sides.LeadingRank.collect = die
    if stage == "told":
        sides.FollowingRank._say = after(sides.FollowingRank._say)
    if stage == "decided":
        RunStore.commit_shares = die
    if stage == "committed":
        RunStore.commit_shares = after(RunStore.commit_shares)
    if stage == "telling":
        sides._send = second(sides._send)
    if stage == "heard":
        sides.FollowingRank._take = die
"""


class RankRig:
    """One rank: its queue, and what it has reported."""

    def __init__(self, root, rank, place, crew, *, replicates=False):
        self.rank, self.crew, self.place, self.check_round = rank, crew, place, None
        opening = Open(str(root), WHO.name, WHO.email, 1, replicates=replicates)
        self.queue = CommitQueue(opening, place=place, crew=crew)
        self.queue.tips["main"] = ""
        self.reports = []

    @property
    def writer(self):
        return self.queue._writer

    @property
    def pid(self):
        return self.writer._process.pid

    def signal(self, number):
        os.kill(self.pid, number)

    def freeze(self, state, step):
        """Return a snapshot of what this rank keeps of a whole state."""
        ranks = self.crew.ranks
        with as_rank(self.rank, (ranks,), ("all",)) as mesh:
            live, terms = shard(state, mesh, PLACEMENTS), {}
            if self.check_round is not None:
                live, terms = state, {"check": (self.check_round, DEFAULT_CHUNK_BYTES)}
            return take_snapshot(live, step, self.queue.pool, rank=self.rank, ranks=ranks, **terms)

    def submit(self, state, step):
        snapshot = self.freeze(state, step)
        self.queue.submit(snapshot, "main", f"step {step}", {"loss": 1.0 / step}, {"lr": "0.1"})

    def kill(self):
        self.signal(signal.SIGKILL)
        self.wait_for_death()

    def wait_for_death(self):
        os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)


class CrewRig:
    """All ranks, in one process; their writers are processes.

    Those on a machine of ``nodes`` have a folder of that name under ``runtime`` for the sockets of what
    they hold.
    """

    def __init__(
        self,
        root,
        count,
        *,
        stages=None,
        grace_s=GRACE_S,
        nodes=None,
        replicates=False,
        runtime=None,
    ):
        self.repo = Repo.init(root)
        self.repo.identity = WHO
        places = [open_listeners("127.0.0.1") for _ in range(count)]
        table = [place.address for place in places]
        if nodes is not None:
            table = [msgspec.structs.replace(a, node=n) for a, n in zip(table, nodes, strict=True)]
        self._root, self._runtime, self.ranks = root, runtime, []
        for rank, place in enumerate(places):
            crew = RankCrew(rank, tuple(table), grace_s=grace_s)
            rig = RankRig(self.repo.worktree, rank, place, crew, replicates=replicates)
            self.ranks.append(rig)
            self.start(rank, (stages or {}).get(rank))

    def start(self, rank, stage=None):
        """Start the writer of a rank anew, to die at a stage."""
        rig = self.ranks[rank]
        if rig.writer is not None:
            rig.kill()
        node = rig.crew.addresses[rank].node
        runtime = None if self._runtime is None else make_runtime(self._runtime, node)
        with _at_stage(self._root, stage, runtime):
            rig.queue.start_writer()

    def __enter__(self):
        return self

    def __exit__(self, kind, *exc_info):
        for rig in self.ranks:
            if kind is not None:  # those that are there would wait for the others
                rig.kill()
                rig.place.close()
                continue
            if rig.writer is not None and rig.writer._process.poll() is None:
                rig.signal(signal.SIGCONT)
        for rig in self.ranks if kind is None else ():
            rig.queue.close()

    def check(self, array):
        """Have the next commits be of replicas, which check the first chunk of an array."""
        for rig in self.ranks:
            rig.check_round = next(
                one for one in range(CHECK_ROUNDS) if list_due(array, range(1), one)
            )

    def submit(self, state, step, others=None):
        """Hand a state, of which each rank has its part, to all writers; ``others`` are those of some ranks."""
        for rig in self.ranks:
            rig.submit((others or {}).get(rig.rank, state), step)

    def commit(self, state, step, others=None):
        """Commit a state; return the report of every rank."""
        self.submit(state, step, others)
        return self.settle()

    def settle(self, ranks=None):
        """Go on as training loops do until every rank has its reports; return the last of each."""
        ranks = self.ranks if ranks is None else ranks
        end_s = time.monotonic() + END_S
        while any(rig.queue.depth for rig in ranks):
            for rig in ranks:
                rig.reports += rig.queue.pump()
            waiting = [rig.writer._channel for rig in ranks if rig.queue.depth and rig.writer]
            with contextlib.suppress(ValueError):  # one was closed
                select.select(waiting, [], [], 0.02)
            assert time.monotonic() < end_s, "somebody waits without end"
        for rig in ranks:
            rig.reports += rig.queue.pump()
        return [rig.reports[-1] for rig in ranks]


def make_runtime(folder, node):
    """Return the folder that a machine has for its sockets."""
    runtime = folder / node
    runtime.mkdir(exist_ok=True)
    return runtime


@contextlib.contextmanager
def _at_stage(root, stage, runtime=None):
    """Have the writer that is started meanwhile die at a stage."""
    folder = root / "stages"
    folder.mkdir(exist_ok=True)
    (folder / "sitecustomize.py").write_text(STAGES)
    before = {name: os.environ.get(name) for name in _VARIABLES}
    try:
        if stage is not None:
            paths = [str(folder), before["PYTHONPATH"]]
            os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
            os.environ["MVC_TEST_STAGE"] = stage
        if runtime is not None:
            os.environ["XDG_RUNTIME_DIR"] = str(runtime)
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


def make_whole(seed):
    """Return a state as one process has it."""
    generator = torch.Generator().manual_seed(seed)
    model = {name: torch.randn(1000, 6, generator=generator) for name in "qkv"}
    model["bias"] = torch.randn(777, generator=generator)
    return {
        "model": model,
        "optimizer": {"state": {0: {"m": model["q"] * 0.5}}},
        "run": {"step": seed},
    }


PLACEMENTS = {name: ("all", [Shard(1)]) for name in "qkvm"}
"""Columns: every chunk needs all ranks, and each of two or three owns one at least."""
