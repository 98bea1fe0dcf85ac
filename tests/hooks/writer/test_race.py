"""A state of step s never holds a value of step s+1, however late the writer comes to it."""

import signal

import pytest
import torch

from mvc_hooks.snapshot.ring import take_snapshot
from support.committing import Rig, clone_state, make_state, train_on

pytestmark = pytest.mark.torch


def test_training_goes_on_while_the_writer_is_held(tmp_path):
    state = make_state()
    with Rig(tmp_path) as rig:
        rig.hold()
        kept = clone_state(state)
        rig.submit(state, 1)
        train_on(state, 50)
        assert rig.queue.pump() == []
        rig.signal(signal.SIGCONT)
        (report,) = rig.queue.wait()
        assert report.error is None
        rig.assert_holds(kept, report.commit)
        assert not rig.repo.verify_state(state, report.commit).is_exact


def test_every_state_of_a_raced_run_is_its_own(tmp_path):
    state, kept, reports = make_state(), {}, []
    with Rig(tmp_path) as rig:
        for step in range(1, 13):
            train_on(state, 1)
            if rig.queue.depth >= 2:
                reports += rig.queue.wait(1)
            kept[step] = clone_state(state)
            rig.submit(state, step)
            train_on(state, 3)
            reports += rig.queue.pump()
        reports += rig.queue.wait()
        assert [report.step for report in reports] == list(range(1, 13))
        for report in reports:
            assert rig.repo.verify_state(kept[report.step], report.commit).is_exact
            assert rig.repo.resolve(f"main@{report.step}") == report.commit
        assert rig.repo.upkeep.fsck(data=True).problems == ()
        loaded = rig.repo.load_state("main@5")
        assert torch.equal(loaded["model"]["embed"], kept[5]["model"]["embed"])
        assert loaded["model"]["embed"].data_ptr() == loaded["model"]["head"].data_ptr()


def test_memory_is_not_handed_out_while_the_writer_reads(tmp_path):
    state = make_state()
    with Rig(tmp_path) as rig:
        rig.hold()
        first, second = rig.submit(state, 1), rig.submit(state, 2)
        third = take_snapshot(state, 3, rig.pool)
        assert len({one.memory.bytes.data_ptr() for one in (first, second, third)}) == 3
        rig.pool.give_back(third.memory)
        rig.signal(signal.SIGCONT)
        assert [report.error for report in rig.queue.wait()] == [None, None]


def test_reports_and_trailers_say_what_it_cost(tmp_path):
    with Rig(tmp_path) as rig:
        rig.hold()
        rig.submit(make_state(1), 1)
        rig.submit(make_state(2), 2, lr="0.1")
        rig.signal(signal.SIGCONT)
        first, second = rig.queue.wait()
        assert (first.queue_depth, second.queue_depth) == (1, 2)
        assert first.stall_s > 0
        assert first.write_s > 0
        assert first.written_bytes > 0
        assert first.plain_bytes > 2**18
        entry = rig.repo.show(second.commit)
        assert entry.annotations.step == 2
        assert entry.annotations.meta["queue_depth"] == "2"
        assert entry.annotations.meta["lr"] == "0.1"
        assert float(entry.annotations.meta["stall_ms"]) == pytest.approx(
            second.stall_s * 1e3, abs=0.06
        )
        assert float(entry.annotations.meta["write_s"]) > 0
        assert entry.annotations.meta["written_bytes"] == str(second.written_bytes)
        assert entry.info.parents == (first.commit,)
        assert str(first).startswith(f"commit {first.commit[:10]} step 1: stall ")
