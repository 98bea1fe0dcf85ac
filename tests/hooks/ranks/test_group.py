"""The ranks of a run talk, and end."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("torch")

pytestmark = pytest.mark.torch
_ENDING = """
import os, sys
from torch import distributed
from mvc_hooks.ranks.group import Ranks

sys.setswitchinterval(10)  # so nobody gets the interpreter who is not given it
rank = None
for number in range(int(sys.argv[2])):
    children = []
    for one in range(2):
        child = os.fork()
        if not child:
            rank = one
            break
        children.append(child)
    if rank is not None:
        break
    print([os.waitpid(child, 0)[1] for child in children], flush=True)
if rank is not None:
    store = distributed.FileStore(f"{sys.argv[1]}/{number}", 2)
    distributed.init_process_group("gloo", store=store, rank=rank, world_size=2)
    ranks = Ranks()
    for _ in range(3):
        ranks.share(1)
"""
_WORKING = """
import ctypes, hashlib, threading
from mvc_hooks.ranks import group

stopped = threading.Event()

def work():
    ctypes.CDLL(None).prctl(15, b"pt_gloo_runloop", 0, 0, 0)  # PR_SET_NAME
    data = bytes(2**20)
    while not stopped.is_set():
        hashlib.sha256(data).digest()  # without the interpreter's lock

said = ["running" if group._is_gloo_running() else "idle"]
thread = threading.Thread(target=work, daemon=True)
thread.start()
while not group._is_gloo_running():
    pass
said.append("running")
stopped.set()
thread.join()
while group._is_gloo_running():
    pass  # Python says that it ended a moment before the system does
said.append("idle")
print(*said, sep=", ")
"""


@pytest.mark.slow
def test_the_end_comes_without_an_abort(tmp_path):
    rounds = 12
    command = [sys.executable, "-W", "ignore", "-c", _ENDING, tmp_path, str(rounds)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    said = [line for line in done.stdout.splitlines() if line.startswith("[")]
    assert said == ["[0, 0]"] * rounds, done.stderr[-500:]


@pytest.mark.skipif(sys.platform != "linux", reason="only there is it told")
def test_a_thread_of_gloo_that_has_work_left_is_seen():
    """At its end the process waits for it: a busy machine may give it no processor for a while."""
    # In a process of its own: other tests leave threads of gloo in this one.
    command = [sys.executable, "-W", "ignore", "-c", _WORKING]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (0, "idle, running, idle\n"), done.stderr[-500:]
