"""A repository and a queue of commits, as a checkpointer puts them together; no training."""

from __future__ import annotations

import contextlib
import os
import select
import signal
from pathlib import Path

import torch

from mvc import Identity, NotFoundError, Repo
from mvc_hooks.commits.queue import CommitQueue
from mvc_hooks.snapshot.ring import take_snapshot
from mvc_hooks.writer.messages import Open

WHO = Identity("Test", "test@example.org")


class Rig:
    """Commits states of a run to a branch."""

    def __init__(self, root, *, branch="main", held=()):
        self.repo = Repo.init(root)
        self.repo.identity = WHO
        self.branch = branch
        opening = Open(str(self.repo.worktree), WHO.name, WHO.email, 2)
        self.queue = CommitQueue(opening, held=held)
        self.queue.tips[branch] = ""
        self.queue.start_writer()

    def __enter__(self):
        return self

    def __exit__(self, *exc_info):
        if self.is_alive:
            self.signal(signal.SIGCONT)
        self.queue.close()

    @property
    def pool(self):
        return self.queue.pool

    @property
    def writer(self):
        return self.queue._writer

    @property
    def pid(self):
        return self.writer._process.pid

    @property
    def is_alive(self):
        return self.writer._process.poll() is None

    def signal(self, number):
        os.kill(self.pid, number)

    def hold(self):
        """Stop the writer, for certain."""
        self.signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.pid, os.WSTOPPED)

    def kill(self):
        self.signal(signal.SIGKILL)
        os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)

    def submit(self, state, step, **meta):
        snapshot = take_snapshot(state, step, self.pool)
        self.queue.submit(snapshot, self.branch, f"step {step}", facts=meta)
        return snapshot

    def commit(self, state, step):
        """Commit a state, wait for it, and return its report."""
        self.submit(state, step)
        (report,) = self.queue.wait()
        return report

    def wait_for_tip(self, old):
        """Wait until the branch has moved; the writer's answer is not read."""
        for _ in range(3000):
            with contextlib.suppress(NotFoundError):
                tip = self.repo.resolve(f"refs/heads/{self.branch}")
                if tip != old:
                    return tip
            select.select([], [], [], 0.005)
        raise AssertionError("the branch did not move")

    def forget_answer(self):
        """Read what the writer said and throw it away, as if it had died before."""
        self.writer._channel.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            self.writer._channel.recv(2**16)
        self.writer._channel.setblocking(True)

    def assert_holds(self, state, commit):
        """Check that a commit holds a state, bit by bit, both ways of looking."""
        assert self.repo.verify_state(state, commit).differences == ()
        assert self.repo.upkeep.fsck(data=True).problems == ()


def make_state(seed=1, size=2**16):
    """Return a small training state: ties, a transposed tensor, scalars."""
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(size, generator=generator)
    return {
        "model": {
            "embed": weight,
            "head": weight,
            "wide": torch.randn(64, 33, generator=generator).t(),
            "half": torch.randn(777, generator=generator).bfloat16(),
        },
        "optimizer": {"state": {0: {"step": torch.tensor(float(seed)), "m": weight * 0.5}}},
        "run": {"step": seed, "loss": 0.25},
    }


def clone_state(state):
    """Return a deep copy that keeps ties."""
    copies = {}

    def clone(value):
        if isinstance(value, dict):
            return {key: clone(one) for key, one in value.items()}
        if isinstance(value, torch.Tensor):
            return copies.setdefault(id(value), value.clone())
        return value

    return clone(state)


def train_on(state, steps):
    """Change every tensor in place, as an optimizer does."""
    for _ in range(steps):
        for tensor in {id(one): one for one in _tensors(state)}.values():
            tensor.add_(1)


def _tensors(value):
    if isinstance(value, dict):
        for one in value.values():
            yield from _tensors(one)
    elif isinstance(value, torch.Tensor):
        yield value


def read_links(pid):
    """Return what the descriptors of a process are open on."""
    found = []
    for name in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(FileNotFoundError):
            found.append(os.readlink(f"/proc/{pid}/fd/{name}"))
    return found


def process_counts(pid):
    """Return descriptors, threads and most resident bytes; not packs, kept open up to a limit.

    What is resident at one moment says little: malloc gives back megabytes at one commit and not at the next.
    """
    status = dict(
        line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines()
    )
    return {
        "descriptors": sum(not link.endswith(".pack") for link in read_links(pid)),
        "threads": int(status["Threads"]),
        "peak": int(status["VmHWM"].split()[0]) * 1024,
    }
