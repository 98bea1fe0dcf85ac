"""Work over a few threads: everything once, a failure at once, nothing left running."""

import os
import sys
import threading

import pytest

from mvc.chunkstore.parallel import NiceThreads, for_each


@pytest.mark.parametrize("threads", [1, 2, 8])
@pytest.mark.parametrize("count", [0, 1, 50])
def test_every_item_once(threads, count):
    done, told = [], []
    for_each(
        range(count),
        lambda: None,
        lambda item, _: done.append(item) or item,
        threads=threads,
        progress=lambda size: told.append((size, threading.current_thread())),
    )
    assert sorted(done) == list(range(count))
    assert sorted(size for size, _ in told) == list(range(count))
    assert {thread for _, thread in told} <= {threading.current_thread()}


def test_each_thread_has_its_own_state():
    meet = threading.Barrier(3)
    states, seen = [], set()

    def make():
        states.append(object())
        return states[-1]

    def work(_, state):
        meet.wait(60)
        seen.add((id(state), threading.get_ident()))
        return 0

    for_each(range(3), make, work, threads=3)
    assert len(states) == len(seen) == 3


@pytest.mark.parametrize("threads", [1, 4])
def test_a_failure_ends_it_and_all_threads(threads):
    done = []

    def work(item, _):
        if item == 5:
            raise ValueError("five")
        done.append(item)
        return 0

    with pytest.raises(ValueError, match="five"):
        for_each(range(10_000), lambda: None, work, threads=threads)
    assert 5 not in done
    assert not [one for one in threading.enumerate() if one.name == "mvc-read"]


def test_a_state_that_cannot_be_made():
    def make():
        raise OSError("no memory")

    with pytest.raises(OSError, match="no memory"):
        for_each(range(4), make, lambda item, _: item, threads=2)


def test_a_failure_of_the_progress_ends_it():
    def progress(_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        for_each(range(1000), lambda: None, lambda item, _: item, threads=2, progress=progress)
    assert not [one for one in threading.enumerate() if one.name == "mvc-read"]


@pytest.mark.skipif(sys.platform != "linux", reason="only there has a thread its own priority")
def test_a_crew_is_as_nice_as_is_wanted():
    ours, wanted = os.getpriority(os.PRIO_PROCESS, 0), 7
    crew = NiceThreads(2, "test", lambda: wanted)

    def look():
        return [crew.submit(os.getpriority, os.PRIO_PROCESS, 0).result() for _ in range(5)]

    assert look() == [min(19, ours + 7)] * 5
    wanted = 0
    assert look() == [ours] * 5
    assert os.getpriority(os.PRIO_PROCESS, 0) == ours
    crew.close()
    for thread in threading.enumerate():  # nobody waited for the nice ones
        if thread.name.startswith("test"):
            thread.join(60)
            assert not thread.is_alive()
