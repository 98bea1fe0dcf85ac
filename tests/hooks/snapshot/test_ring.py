"""The last few snapshots: bounded, sound, and never overwritten while a commit reads them."""

import signal

import pytest
import torch

from mvc import UsageError
from mvc.training import read_image
from mvc_hooks.snapshot.ring import Ring, SnapshotRing, take_snapshot
from support.committing import Rig, clone_state, make_state, train_on
from support.states import assert_same

pytestmark = pytest.mark.torch


@pytest.fixture
def state():
    return make_state()


def _steps(ring):
    return [snapshot.step for snapshot in ring._kept]


def test_the_newest_are_kept_in_reused_memory(state):
    ring, places = SnapshotRing(Ring(every=10, keep=3)), set()
    kept = {}
    for step in range(10, 80, 10):
        assert ring.is_due(step)
        assert not ring.is_due(step + 1)
        train_on(state, 1)
        kept[step] = clone_state(state)
        places.add(ring.take(state, step, None).memory.bytes.data_ptr())
    assert _steps(ring) == [50, 60, 70]
    assert len(places) == 3
    assert [ring.find(step).step for step in (50, 59, 60, 1000)] == [50, 50, 60, 70]
    assert ring.find(49) is None
    for snapshot in ring._kept:
        assert_same(read_image(snapshot.files()), kept[snapshot.step])
    ring.close()
    assert _steps(ring) == []


def test_bytes_are_bounded(state):
    size = SnapshotRing(Ring()).take(state, 1, None).memory.size_bytes
    ring = SnapshotRing(Ring(keep=100, max_bytes=2 * size))
    for step in range(1, 6):
        ring.take(state, step, None)
        assert ring.size_bytes <= 2 * size
    assert _steps(ring) == [4, 5]
    ring.close()


def test_a_state_that_grows_pushes_more_out(state):
    large = make_state(size=2**20)
    sizes = [SnapshotRing(Ring()).take(one, 1, None).memory.size_bytes for one in (state, large)]
    ring = SnapshotRing(Ring(keep=100, max_bytes=sum(sizes)))
    for step in (1, 2, 9):
        ring.take(state, step, None)
    ring.take(large, 3, None)
    assert ring.size_bytes == sum(sizes)
    assert _steps(ring) == [9, 3]
    ring.close()


def test_a_bound_below_one_state_is_told(state):
    ring = SnapshotRing(Ring(max_bytes=1000))
    with pytest.raises(UsageError, match="and max_bytes of the ring is 1,000"):
        ring.take(state, 1, None)
    assert _steps(ring) == []


def test_torn_ones_are_not_found_and_going_back_forgets_what_came_later(state):
    ring = SnapshotRing(Ring())
    for step in (1, 2, 3):
        ring.take(state, step, None)
    ring._kept[1].fence.is_torn = True
    assert ring.find(2).step == 1
    ring.forget_after(1)
    assert _steps(ring) == [1]
    ring.close()


@pytest.mark.usefixtures("real_writers")
@pytest.mark.parametrize("closes", [False, True])
def test_memory_is_not_used_while_a_commit_reads_it(tmp_path, state, closes):
    ring = SnapshotRing(Ring(keep=1))
    with Rig(tmp_path) as rig:
        rig.hold()
        kept = clone_state(state)
        snapshot = ring.take(state, 1, None)
        rig.queue.submit(snapshot.hold(), "main", "step 1")
        for step in (2, 3):
            train_on(state, 1)
            later = ring.take(state, step, None)
            assert later.memory is not snapshot.memory
        if closes:
            ring.close()
        rig.signal(signal.SIGCONT)
        (report,) = rig.queue.wait()
        rig.assert_holds(kept, report.commit)
        assert rig.pool._free == []
        assert (snapshot.memory.descriptor == -1) == closes
        assert (snapshot.memory in ring._pool._free) != closes
    ring.close()


def test_a_torn_snapshot_is_dropped_with_a_report(tmp_path, state):
    with Rig(tmp_path) as rig:
        good = rig.commit(state, 1).commit
        snapshot = take_snapshot(state, 2, rig.pool)
        watched = torch.zeros(2)
        snapshot.fence.watched = [(watched, watched._version)]
        watched.add_(1)
        rig.queue.submit(snapshot, "main", "step 2")
        assert rig.queue.depth == 0
        (report,) = rig.queue.pump()
        assert report.commit is None
        assert report.error.startswith("the state changed while it was copied")
        assert rig.repo.resolve("main") == good
        assert len(rig.pool._free) == 1
        assert rig.commit(state, 3).error is None
