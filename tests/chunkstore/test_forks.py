"""Arithmetic in forked processes: everything once, errors and ends as in threads, nothing left behind."""

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="forks only on Linux")

SETTING = """
import os, signal, sys, threading
from mvc.chunkstore.forks import FORK_BYTES, compute_each
HERE = os.getpid()

def run(compute, take=lambda item, found: 1, size_bytes=FORK_BYTES, count=40):
    told, taken = [], {}
    def keep(item, found):
        taken[item] = found
        return take(item, found)
    compute_each(
        range(count), compute, keep, size_bytes=size_bytes, threads=3, progress=told.append
    )
    assert sorted(taken) == list(range(count)), taken
    assert sum(told) == count
    try:
        os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return taken
    raise AssertionError("a child is left")
"""


def run(script):
    """Run a script in a process of one thread; return when all that have its output have ended."""
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", SETTING + script],
        capture_output=True,
        text=True,
        timeout=60,
        start_new_session=True,
        check=False,
        env=os.environ | {"OPENBLAS_NUM_THREADS": "1"},
    )


def assert_passes(script):
    done = run(script)
    assert (done.returncode, done.stderr) == (0, "")


def test_children_answer_every_item_once():
    assert_passes("""
taken = run(lambda item: (item * item, os.getpid()))
assert [taken[item][0] for item in range(40)] == [item * item for item in range(40)]
workers = {worker for _, worker in taken.values()}
assert HERE not in workers and 1 <= len(workers) <= 3, workers
""")


@pytest.mark.parametrize(
    "script",
    [
        "size_bytes, count = FORK_BYTES - 1, 40",
        "size_bytes, count = FORK_BYTES, 1",
        "size_bytes, count = FORK_BYTES, 0",
        """
threading.Thread(target=threading.Event().wait, daemon=True).start()
size_bytes, count = FORK_BYTES, 40
""",
    ],
)
def test_little_work_or_a_process_with_threads_is_not_forked(script):
    assert_passes(f"""{script}
taken = run(lambda item: os.getpid(), size_bytes=size_bytes, count=count)
assert set(taken.values()) <= {{HERE}}
""")


def test_what_fails_in_a_child_is_raised_here_as_it_is():
    assert_passes("""
class Wrong(Exception):  # cannot be unpickled
    def __init__(self, *, item):
        self.item = item

def fail(item):
    if item == 5:
        raise Wrong(item=item)
    return os.getpid()

try:
    run(fail)
except Wrong as error:
    assert error.item == 5
else:
    raise AssertionError("no error")
""")


def test_what_a_killed_child_leaves_is_done_here():
    assert_passes("""
def die(item):
    if os.getpid() != HERE:
        os.kill(os.getpid(), signal.SIGKILL)
    return os.getpid()

assert set(run(die).values()) == {HERE}
""")


def test_children_end_with_their_parent():
    done = run("run(lambda item: item + 1, take=lambda *_: os.kill(HERE, signal.SIGKILL))")
    assert done.returncode == -9


def test_an_interrupt_is_told_once():
    done = run("""
first = threading.Lock()
def take(item, found):
    if first.acquire(blocking=False):
        os.killpg(0, signal.SIGINT)
    return 1

run(lambda item: item + 1, take=take)
""")
    assert done.stderr.count("Traceback") == 1
    assert done.stderr.rstrip().endswith("KeyboardInterrupt")
