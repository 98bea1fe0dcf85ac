"""A rank that waits for one that is dead: real processes, real signals, real sockets."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import textwrap

import msgspec
import pytest

from mvc_hooks.run import signals
from mvc_hooks.run.signals import WatchedRanks
from mvc_hooks.writer.messages import RankCrew
from mvc_hooks.writer.place import open_listeners

pytestmark = pytest.mark.torch


@pytest.fixture
def places():
    with contextlib.ExitStack() as stack:
        yield [
            stack.enter_context(contextlib.closing(open_listeners("127.0.0.1"))) for _ in range(3)
        ]


def _look(places, rank=0):
    return contextlib.closing(WatchedRanks(RankCrew(rank, tuple(one.address for one in places))))


def test_ranks_that_are_there_are_not_gone(places):
    with _look(places) as peers:
        assert peers.find_gone() is None


@pytest.mark.parametrize("rank", [1, 2])
def test_a_rank_that_goes_while_it_is_watched(places, rank):
    with _look(places) as peers:
        assert peers.find_gone() is None
        places[rank].close()
        assert peers.find_gone() == rank


def test_a_rank_that_was_gone_before(places):
    places[2].close()
    with _look(places) as peers:
        assert peers.find_gone() == 2


def test_a_writer_that_lives_on_does_not_count(places):
    """It has the sockets of the mesh, as if it had inherited them; the training's own is closed."""
    kept = [os.dup(one) for one in places[1].descriptors]
    places[1].close()
    with _look(places) as peers:
        assert peers.find_gone() == 1
    for one in kept:
        os.close(one)


def test_a_machine_that_does_not_answer_is_gone_after_a_while(places, monkeypatch):
    """Its queue of connections is full, so it says nothing at all."""
    with socket.socket() as full, contextlib.ExitStack() as stack:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        for _ in range(3):
            filling = stack.enter_context(socket.socket())
            filling.setblocking(False)
            filling.connect_ex(full.getsockname())
        silent = msgspec.structs.replace(places[1].address, presence=full.getsockname()[1])
        with contextlib.closing(WatchedRanks(RankCrew(0, (places[0].address, silent)))) as peers:
            assert peers.find_gone() is None
            monkeypatch.setattr(signals, "_SILENT_S", 0)
            assert peers.find_gone() == 1


_HUNG = """
import ctypes, msgspec, sys
from mvc_hooks.run.signals import SignalWatch
from mvc_hooks.writer.messages import Address, RankCrew
watch = SignalWatch()
watch.start(RankCrew(0, tuple(msgspec.json.decode(one, type=Address) for one in sys.argv[1:])))
print("ready", flush=True)
libc, mutex = ctypes.CDLL(None), ctypes.create_string_buffer(64)
while True:
    libc.pthread_mutex_lock(mutex)
"""


def test_a_process_that_hangs_in_c_dies_by_the_signal_once_a_rank_is_gone(places):
    addresses = [msgspec.json.encode(one.address).decode() for one in places]
    command = [sys.executable, "-c", textwrap.dedent(_HUNG), *addresses]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as hung:
        assert hung.stdout.readline() == b"ready\n"
        hung.send_signal(signal.SIGTERM)
        with pytest.raises(subprocess.TimeoutExpired):
            hung.wait(2)  # all are there: the step may still end
        places[2].close()
        assert hung.wait(60) == -signal.SIGTERM
        assert b"rank 2 is gone" in hung.stderr.read()


def test_a_forked_child_leaves_the_watch_to_its_parent(places):
    watch = signals.PeerWatch(RankCrew(0, tuple(one.address for one in places)), lambda: True)
    child = os.fork()
    if not child:
        os._exit(signal.set_wakeup_fd(-1) != -1)
    assert os.waitpid(child, 0)[1] == 0
    watch.stop()
    watch.stop()  # nothing is left to do
    assert signal.set_wakeup_fd(-1) == -1
