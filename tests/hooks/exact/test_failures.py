"""What breaks under a run: the disk, the writer, the repository. The last good commit stays good."""

from __future__ import annotations

import os
import resource
import signal

import pytest

from mvc import Repo
from mvc_hooks import CommitFailedError, rollback, stop
from support.damage import flip
from support.training_runs import find_writer

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("real_writers")]

_NO_LIMIT = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)


def _fill_disk(run):
    """Have the writer's files end behind a few bytes, as on a full disk."""
    run.ckpt.wait()
    resource.prlimit(find_writer(run.ckpt), resource.RLIMIT_FSIZE, (64, resource.RLIM_INFINITY))


def _empty_disk(run):
    resource.prlimit(find_writer(run.ckpt), resource.RLIMIT_FSIZE, _NO_LIMIT)


def _kill_writer(run):
    """Kill the writer, and wait until it is gone; it stays to be collected."""
    writer = find_writer(run.ckpt)
    os.kill(writer, signal.SIGKILL)
    os.waitid(os.P_PID, writer, os.WEXITED | os.WNOWAIT)


def test_a_full_disk_stops_the_run_where_that_is_wanted(keep, plain, tmp_path):
    run = keep(every=3).steps(3)
    _fill_disk(run)
    with pytest.raises(CommitFailedError, match="step 6"):
        run.steps(20)
    with pytest.raises(CommitFailedError):
        run.ckpt.commit("still full")
        run.ckpt.wait()
    run.ckpt.close()
    assert not Repo.open(tmp_path / "run").upkeep.fsck().problems
    again = keep(seed=8)
    assert again.ckpt.step_count == 3
    assert again.steps(6).now() == plain(9).now()


def test_a_last_commit_that_failed_is_made_at_the_end(keep, tmp_path):
    run = keep(every=2, on_failure="continue").steps(1)
    _fill_disk(run)
    run.steps(1)
    run.ckpt.wait()
    _empty_disk(run)
    run.ckpt.close(last="end")
    assert [one.annotations.step for one in Repo.open(tmp_path / "run").log("main")] == [2, 0]


@pytest.mark.slow
def test_a_run_goes_on_over_a_full_disk_and_a_killed_writer(keep, plain, tmp_path):
    run = keep(every=2, on_failure="continue").steps(2)
    _fill_disk(run)
    run.steps(4)
    run.ckpt.wait()
    _empty_disk(run)
    run.steps(2)
    run.ckpt.wait()
    _kill_writer(run)
    run.steps(3)
    run.ckpt.close()
    made = {one.step: one.commit is not None for one in run.ckpt.commits}
    assert made == {0: True, 2: True, 4: False, 6: False, 8: True, 10: True}
    assert [one.annotations.step for one in Repo.open(tmp_path / "run").log("main")] == [
        10,
        8,
        2,
        0,
    ]
    assert all(one.error for one in run.ckpt.commits if one.commit is None)
    assert run.now() == plain(11).now()
    assert keep(seed=8).steps(1).now() == run.now()


@pytest.mark.slow
def test_gc_and_prune_beside_a_run(keep, plain, tmp_path):
    run = keep(every=2).steps(6)
    run.ckpt.wait()
    other = Repo.open(tmp_path / "run")
    other.upkeep.prune(other.upkeep.plan_prune(keep_last=1))
    other.upkeep.gc(grace_s=0)
    run.steps(2)
    other.upkeep.gc(grace_s=0)
    run.steps(3)
    run.ckpt.close()
    assert not Repo.open(tmp_path / "run").upkeep.fsck().problems
    again = keep(seed=8)
    assert again.ckpt.step_count == 10
    assert again.steps(2).now() == plain(12).now()


def test_a_rollback_onto_a_damaged_commit_takes_the_one_before(keep, plain, tmp_path):
    ladder = [rollback(to="last", min_steps_back=1, skip_batches=0), stop(after=3)]
    run = keep(every=2, ladder=ladder).steps(4)
    run.ckpt.wait()
    packs = tmp_path / "run" / ".mvc"
    before = {path for path in packs.rglob("*") if path.is_file()}
    run.steps(3)
    run.ckpt.wait()
    fresh = [path for path in packs.rglob("*.pack") if path not in before]
    assert fresh
    for pack in fresh:
        flip(pack)
    report = run.step(loss=float("nan"))
    assert report.to_step == 4
    assert run.ckpt.step_count == 4
    run.steps(2)
    assert run.now() == plain(6).now()
