import os
import signal
import subprocess
import sys
import threading

import pytest

from mvc import fs
from mvc.errors import ConflictError, NotFoundError, StorageError, UsageError
from mvc.history.git import GitHistory
from mvc.history.locks import SWEEP_GATE_NAME as GATE_NAME
from mvc.history.locks import SWEEP_LOCK_NAME as LOCK_NAME
from support.stockgit import at, commit_on_head, create_ref

# A process that holds the lock until its input ends, or until it is killed.
HOLDER = """
import sys
from pathlib import Path
from mvc.history.git import GitHistory

history = GitHistory.open(Path(sys.argv[1]))
with history.no_sweep() if sys.argv[2] == "shared" else history.sweep_alone():
    print("held", flush=True)
    sys.stdin.read()
print("over", flush=True)
"""


@pytest.fixture
def hold(history):
    """Start a process that holds the lock; it has it when the call returns."""
    children = []

    def start(how):
        child = subprocess.Popen(
            [sys.executable, "-c", HOLDER, str(history.git_dir), how],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        children.append(child)
        assert child.stdout.readline() == b"held\n"
        return child

    yield start
    for child in children:
        child.stdin.close()
        child.wait()
        child.stdout.close()


def wait_until_closed(history):
    """Return once somebody holds the gate: a sweeper has come and waits, or works."""
    while True:
        try:
            with fs.exclusive_lock(history.git_dir / GATE_NAME, wait=False):
                os.sched_yield()
        except ConflictError:
            return


def test_writers_do_not_wait_for_each_other(history, hold):
    hold("shared")
    hold("shared")
    with history.no_sweep():
        pass


def test_a_sweeper_waits_for_writers_of_other_processes(history, hold):
    child = hold("shared")
    with pytest.raises(ConflictError, match=LOCK_NAME), history.sweep_alone(wait=False):
        pass
    child.stdin.close()
    assert child.stdout.read() == b"over\n"
    with history.sweep_alone(wait=False):
        pass


def test_a_writer_waits_for_a_sweeper_of_another_process(history, hold):
    child = hold("sweep")
    order = []

    def write():
        with history.no_sweep():
            order.append("written")

    writer = threading.Thread(target=write)
    writer.start()
    with pytest.raises(ConflictError), history.sweep_alone(wait=False):
        pass
    order.append("swept")
    child.stdin.close()
    writer.join()
    assert order == ["swept", "written"]


@pytest.mark.parametrize("how", ["shared", "sweep"])
def test_a_killed_process_holds_nothing(history, hold, how):
    child = hold(how)
    child.send_signal(signal.SIGKILL)
    child.wait()
    with history.sweep_alone(wait=False):
        pass


def test_new_writers_cannot_keep_a_sweeper_waiting(history, hold):
    child = hold("shared")
    order = []

    def sweep():
        with history.sweep_alone():
            order.append("swept")

    def write():
        with GitHistory.open(history.git_dir).no_sweep():
            order.append("written")

    sweeper, writer = threading.Thread(target=sweep), threading.Thread(target=write)
    sweeper.start()
    wait_until_closed(history)
    writer.start()
    child.stdin.close()  # only now: the writer that came last stands behind the sweeper
    sweeper.join()
    writer.join()
    assert order == ["swept", "written"]


def test_a_writer_may_begin_again_while_a_sweeper_waits_for_it(history):
    order = []

    def sweep():
        with history.sweep_alone():
            order.append("swept")

    sweeper = threading.Thread(target=sweep)
    with history.no_sweep():
        sweeper.start()
        wait_until_closed(history)
        with history.no_sweep(), GitHistory.open(history.git_dir).no_sweep():
            order.append("written")
        order.append("still written")
    sweeper.join()
    assert order == ["written", "still written", "swept"]


def test_a_sweeper_may_write_and_sweep_within(history, hold):
    with history.sweep_alone():
        with history.no_sweep(), history.no_sweep():
            pass
        with history.sweep_alone():
            pass
        assert history._sweep_lock.is_alone
        other = GitHistory.open(history.git_dir)
        with pytest.raises(ConflictError), fs.exclusive_lock(other.git_dir / LOCK_NAME, wait=False):
            pass
    assert not history._sweep_lock.is_held


def test_a_writer_cannot_sweep(history):
    with (
        history.no_sweep(),
        pytest.raises(UsageError, match="at the same time"),
        history.sweep_alone(),
    ):
        pass
    with history.sweep_alone(wait=False):
        pass


@pytest.mark.parametrize("how", ["no_sweep", "sweep_alone"])
def test_it_is_never_taken_under_the_repositorys_lock(history, how):
    with history.lock(), pytest.raises(UsageError, match="before"), getattr(history, how)():
        pass
    with getattr(history, how)(), history.lock(), history.no_sweep():
        pass


def test_an_error_within_gives_it_back(history):
    with pytest.raises(ZeroDivisionError), history.no_sweep():
        1 / 0  # noqa: B018  the error is the point
    with history.sweep_alone(wait=False):
        pass


def test_a_folder_in_its_place_is_named(history):
    (history.git_dir / GATE_NAME).mkdir()
    with pytest.raises(StorageError, match=GATE_NAME), history.no_sweep():
        pass
    assert not history._sweep_lock.is_held


@pytest.mark.parametrize("action", ["update_ref", "update_head", "detach_head", "create_tag"])
def test_what_a_ref_gets_is_looked_at_under_the_lock(history, monkeypatch, action):
    commit = commit_on_head(history, "one")
    missing = "0" * 39 + "1"
    held = []
    find_header, has = history.objects.find_header, history.objects.has

    def look(wanted, real):
        held.append(history._lock.is_held)
        return real(wanted)

    monkeypatch.setattr(history.objects, "find_header", lambda one: look(one, find_header))
    monkeypatch.setattr(history.objects, "has", lambda one: look(one, has))
    calls = {
        "update_ref": lambda new: create_ref(history, "refs/heads/new", new),
        "update_head": lambda new: history.update_head(
            new, expected=commit, message="m", stamp=at()
        ),
        "detach_head": lambda new: history.detach_head(new, stamp=at()),
        "create_tag": lambda new: history.create_tag("v1", new, message=None, stamp=at()),
    }
    calls[action](commit)
    assert held[-1]
    with pytest.raises(NotFoundError):
        calls[action](missing)
