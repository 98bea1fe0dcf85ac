"""Processes that can be killed by the hundred: forked from one that has everything imported.

Starting Python costs more than the verb that is to be killed, so a *zygote* is started once and
forks a child for every command. The child is a process like any other: its own locks, its own
memory, and ``SIGKILL`` ends it wherever it is. Only the zygote reaps its children, so the id that
it kills can never be somebody else's.

    with Zygote() as zygote:
        outcome = zygote.run("checkout", root, kill_after_s=0.004, revision="HEAD~1")
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path


@dataclass
class Outcome:
    """What became of a child: killed, or done after some seconds, with an error or without."""

    killed: bool
    seconds: float
    error: str | None = None
    kind: str | None = None
    hint: str | None = None
    result: object = None


class Zygote:
    def __init__(self, verbs="support.verbs"):
        """Start it; ``verbs`` names the module whose functions its children run."""
        environment = dict(os.environ, PYTHONPATH=str(Path(__file__).parents[1]))
        self._process = subprocess.Popen(
            [sys.executable, "-m", "support.zygote", verbs],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            text=True,
        )

    def __enter__(self):
        return self

    def __exit__(self, *exc_info):
        # Processes that a test has left, as of a loader, may hold the pipe open.
        self._process.stdin.write("\n")
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()

    def run(self, verb, root, *, kill_after_s=None, uid=None, **arguments):
        """Run a verb in a child; wait until it has ended, by itself or by the kill."""
        return self.run_all([(verb, root, arguments)], kill_after_s=kill_after_s, uid=uid)[0]

    def run_all(self, commands, *, kill_after_s=None, victims=None, uid=None):
        """Run several verbs at once, each in a child of its own; return their outcomes.

        Of those that are killed there are as many as ``victims``, the first ones, or all. With
        ``uid`` the children become that user first: root may read and write everything.
        """
        lines = [(verb, str(root), arguments) for verb, root, arguments in commands]
        self._process.stdin.write(json.dumps([lines, kill_after_s, victims, uid]) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, "the zygote died"
        return [Outcome(**fields) for fields in json.loads(answer)]


def _serve():
    verbs = importlib.import_module(sys.argv[1])
    verbs.warm_up()
    gc.freeze()  # children need not look through, and so copy, what was made before them
    for line in sys.stdin:
        if line == "\n":
            return
        outcomes = _run_children(verbs, *json.loads(line))
        sys.stdout.write(json.dumps(outcomes) + "\n")
        sys.stdout.flush()


def _run_children(verbs, commands, kill_after_s, victims, uid):
    gate_read, gate_write = os.pipe()
    children = [_fork(verbs, command, (gate_read, gate_write), uid) for command in commands]
    os.close(gate_read)
    started_s = time.perf_counter()
    os.close(gate_write)  # all begin now
    if kill_after_s is not None:
        time.sleep(kill_after_s)
        for process, _ in children[:victims]:
            os.kill(process, signal.SIGKILL)
    return [_collect(process, pipe, started_s) for process, pipe in children]


def _fork(verbs, command, gate, uid):
    verb, root, arguments = command
    answer_read, answer_write = os.pipe()
    process = os.fork()
    if process == 0:
        os.close(gate[1])
        os.read(gate[0], 1)
        if uid is not None:
            os.setgroups([])
            os.setgid(uid)
            os.setuid(uid)
        answer = {}
        try:
            answer["result"] = getattr(verbs, verb)(Path(root), **arguments)
        except Exception as error:
            answer["kind"] = type(error).__name__
            answer["error"] = f"{answer['kind']}: {getattr(error, 'message', error)}"
            answer["hint"] = getattr(error, "hint", None)
        os.write(answer_write, json.dumps(answer).encode())
        os._exit(0)
    os.close(answer_write)
    return process, answer_read


def _collect(process, pipe, started_s):
    with os.fdopen(pipe, "rb") as answer:
        text = answer.read()
    _, status = os.waitpid(process, 0)
    seconds = time.perf_counter() - started_s
    killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
    told = json.loads(text) if text and not killed else {}
    return {"killed": killed, "seconds": seconds, **told}


if __name__ == "__main__":
    _serve()
