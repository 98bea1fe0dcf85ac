"""The writing end of a feed: what goes in comes out, and nothing that happens to it disturbs anybody."""

import errno
import math
import os
import platform
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from mvc import NotFoundError, Repo, StorageError
from mvc.runs.feed import RunFeed, is_process_alive, this_process
from mvc.runs.reading import FeedTail
from mvc.runs.records import (
    parse_record,
)
from mvc.training import RunStore
from support import stockgit
from support.faults import OneFault
from support.feeds import Clock, records
from support.fulldisk import FullDisk


def test_a_run_as_it_is_told(repo, path):
    feed = RunStore(repo).open_feed("main")
    feed.append("start", step=0, every=100, total=1000, parts=["model"])
    for step in (1, 2, 3):
        feed.append("step", step=step, loss=4.0 / step, grad_norm=0.5, lr=1e-3)
    feed.append("snapshot", step=2, stall_s=0.25, bytes=100)
    feed.append(
        "commit", step=2, commit="a" * 40, stall_s=0.5, write_s=2, written_bytes=10,
        plain_bytes=100, queue_depth=1, subject="two",
    )  # fmt: skip
    feed.append("healthy", step=2, commit="a" * 40)
    feed.append("commit", step=3, commit="b" * 40)
    feed.append("alarm", step=3, cause="nan", reason="the loss is NaN")
    feed.append("skip", step=3, reason="the writer is behind")
    feed.append(
        "rollback", step=3, to_step=2, to_commit="a" * 40, diverged_branch="diverged/main/3",
        skipped_batches=200, seconds=1.5, reason="nan",
    )  # fmt: skip
    feed.append("error", text="the writer died")
    view = repo.runs.read("main")
    assert view == repo.runs.read()
    assert (view.branch, view.step, view.loss, view.grad_norm) == ("main", 3, 4 / 3, 0.5)
    assert (view.every, view.total, view.lr) == (100, 1000, 1e-3)
    assert view.losses == ((1, 4.0), (2, 2.0), (3, 4 / 3))
    assert (view.alive, view.pid, view.host) == (True, os.getpid(), platform.node())
    assert (view.stall_s, view.queue_depth) == (0.5, None)
    abandoned, healthy = view.commits
    assert (healthy.step, healthy.subject, healthy.written_bytes) == (2, "two", 10)
    assert (healthy.plain_bytes, healthy.write_s, healthy.queue_depth) == (100, 2.0, 1)
    assert healthy.is_healthy
    assert not healthy.is_abandoned
    assert abandoned.is_abandoned
    assert not abandoned.is_healthy
    (alarm,), (back,), (error,) = view.alarms, view.rollbacks, view.errors
    assert (alarm.step, alarm.cause, alarm.reason) == (3, "nan", "the loss is NaN")
    assert (back.step, back.to_step, back.skipped_batches) == (3, 2, 200)
    assert (back.to_commit, back.diverged_branch) == ("a" * 40, "diverged/main/3")
    assert (error.kind, error.text, error.step) == ("error", "the writer died", None)
    assert [event.kind for event in view.events] == ["skip", "start"]
    assert view.stopped is None
    assert view.damaged_lines == 0
    feed.append("stop", step=3, reason="done")
    feed.close()
    view = repo.runs.read()
    assert (view.alive, view.stopped) == (False, "done")
    assert (feed.dropped, feed.last_error) == (0, None)
    assert time.time() - 60 < view.started_s <= view.updated_s <= time.time() + 1


def test_steps_wait_for_each_other_and_events_do_not(feed, path, clock):
    feed.append("step", step=1, loss=1.0)
    assert len(records(path)) == 1  # the first after a while
    feed.append("step", step=2, loss=1.0)
    assert len(records(path)) == 1
    feed.append("alarm", step=2, cause="spike", reason="")
    assert [record["kind"] for record in records(path)] == ["step", "step", "alarm"]
    feed.append("step", step=3, loss=1.0)
    clock.now_s = 0.49
    feed.append("step", step=4, loss=1.0)
    assert len(records(path)) == 3
    clock.now_s = 0.51
    feed.append("step", step=5, loss=1.0)
    assert [record["step"] for record in records(path)[3:]] == [3, 4, 5]
    feed.append("step", step=6, loss=1.0)
    feed.flush()
    assert records(path)[-1]["step"] == 6


@pytest.mark.parametrize("count", [1, 4, 5, 8, 9, 100, 1000, 12345])
def test_thinned_steps_are_few_and_end_with_the_newest(feed, path, clock, count):
    feed.append("alarm", step=0)
    for step in range(1, count + 1):
        feed.append("step", step=step, loss=math.inf if step == count // 2 else 1.0)
    feed.flush()
    written = [record for record in records(path) if record["kind"] == "step"]
    steps = [entry["step"] for entry in written]
    assert steps == sorted(set(steps))
    assert steps[-1] == count
    assert len(steps) <= 6
    if count >= 8:
        assert len(steps) >= 3
        assert "inf" in [entry["loss"] for entry in written]
    assert feed.dropped == 0


def test_a_flood_of_events_is_cut_off(feed, path, clock):
    for step in range(1000):
        feed.append("skip", step=step, reason="behind")
    feed.append("commit", step=1000)
    assert len(records(path)) == 11
    assert feed.dropped == 990
    assert "too many" in feed.last_error
    clock.now_s = 1.0
    feed.append("skip", step=1000, reason="behind")
    assert len(records(path)) == 12


@pytest.mark.torch
def test_values_that_are_not_plain_are_left_out(feed, path):
    import torch

    loop = []
    loop.append(loop)
    feed.append(
        "step", step=np.int64(3), loss=np.float32(0.5), tensor=torch.ones(1), loop=loop, b=b"x",
        flag=True, parts=("a", "b"), deep={"a": {"b": 1}}, nan=math.nan, big=10**30, text="x" * 9999,
        kind="mine", time="mine", nothing=None,
    )  # fmt: skip
    (one,) = records(path)
    assert one["kind"] == "step"
    assert time.time() - 60 < one["time"] <= time.time() + 1
    assert (one["step"], one["loss"], one["nan"]) == (3, 0.5, "nan")
    assert (one["flag"], one["parts"], one["deep"]) == (True, ["a", "b"], {"a": {"b": 1}})
    assert one["big"] == 1e30
    assert len(one["text"]) == 2000
    assert not {"tensor", "loop", "b"} & set(one)
    assert feed.dropped == 3


def test_a_record_that_is_too_long_is_dropped(feed, path):
    feed.append("action", step=1, **{f"name{number}": "x" * 2000 for number in range(40)})
    assert feed.dropped == 1
    assert not path.exists() or path.read_bytes() == b""


def test_a_closed_feed_drops(feed, path):
    feed.append("step", step=1)
    feed.close()
    feed.close()
    feed.append("stop", step=1)
    feed.flush()
    assert len(records(path)) == 1
    assert feed.dropped == 1


# The file and what may be in its way.


def test_a_feed_begins_anew_and_keeps_what_matters(repo, path, clock):
    feed = RunFeed(path, max_bytes=8192, clock=clock)
    feed.append("start", step=0, every=7)
    feed.append("commit", step=1, commit="c" * 40)
    for step in range(2, 1000):
        clock.now_s += 1
        feed.append("step", step=step, loss=1.0)
    feed.close()
    assert feed.dropped == 0
    older = path.with_name("main.jsonl.old")
    for each in (path, older):
        assert each.stat().st_size <= 8192
        assert [record["kind"] for record in records(each)[:2]] == ["start", "commit"]
    last, first = records(older)[-1]["step"], records(path)[2]["step"]
    assert first == last + 1
    view = repo.runs.read()
    assert (view.every, view.pid, view.step) == (7, os.getpid(), 999)
    assert [commit.step for commit in view.commits] == [1]  # said three times, counted once
    assert [step for step, _ in view.losses] == list(range(records(older)[2]["step"], 1000))


def test_two_writers_begin_anew_once(path):
    clock = Clock()
    feeds = [RunFeed(path, max_bytes=4096, clock=clock) for _ in range(2)]
    for step in range(1, 400):
        clock.now_s += 1
        feeds[step % 2].append("step", step=step, loss=1.0)
    kept = [
        record["step"]
        for each in (path.with_name("main.jsonl.old"), path)
        for record in records(each)
    ]
    assert kept == list(range(kept[0], 400))
    assert [feed.dropped for feed in feeds] == [0, 0]
    for feed in feeds:
        feed.close()


def test_a_full_disk_disturbs_nobody(repo, path, root, clock):
    with FullDisk(root, 300) as disk:
        feed = RunFeed(path, clock=clock)
        for step in range(1, 50):
            clock.now_s += 1
            feed.append("step", step=step, loss=1.0)
        assert feed.dropped > 40
        assert "space" in feed.last_error or "full" in feed.last_error
        disk.free_bytes = 10_000
        feed.append("commit", step=50)
        feed.close()
    view = repo.runs.read()
    assert [commit.step for commit in view.commits] == [50]
    assert view.losses[0] == (1, 1.0)
    assert view.damaged_lines <= 1


@pytest.mark.parametrize("at", range(12))
def test_any_call_may_fail(repo, path, clock, at):
    with OneFault(OSError(errno.EIO, "Input/output error"), at):
        feed = RunFeed(path, max_bytes=200, clock=clock)
        for step in range(1, 20):
            clock.now_s += 1
            feed.append("step", step=step, loss=1.0)
        feed.close()
    assert feed.dropped <= 2
    view = repo.runs.read()
    assert view.step == 19
    assert view.damaged_lines == 0


def test_a_repository_that_is_gone_does_not_come_back(tmp_path, clock):
    feed = RunFeed(tmp_path / "work" / ".mvc" / "runs" / "main.jsonl", clock=clock)
    feed.append("start")
    feed.close()
    assert feed.dropped == 1
    assert list(tmp_path.iterdir()) == []


def test_a_removed_feed_is_made_again(feed, path):
    feed.append("commit", step=1)
    path.unlink()
    feed.append("commit", step=2)
    assert [record["step"] for record in records(path)] == [2]


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo, lambda path: os.symlink("/dev/null", path)])
def test_something_else_in_the_way(repo, path, make):
    path.parent.mkdir()
    make(path)
    with RunStore(repo).open_feed("main") as feed:
        feed.append("start")
    assert feed.dropped == 1
    with pytest.raises(NotFoundError, match="there is no training run here"):
        repo.runs.read()
    with pytest.raises(StorageError):
        FeedTail(path, limit_bytes=100).read_lines()


def test_appending_from_a_signal_handler_or_another_thread(feed, path):
    with feed._lock:  # as in the middle of an append
        feed.append("stop", step=1)
    threads = [
        threading.Thread(target=lambda: [feed.append("step", step=n) for n in range(2000)])
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    feed.flush()
    assert feed.dropped == 0
    assert all(parse_record(line) for line in path.read_bytes().splitlines())


def test_a_step_costs_nothing_that_could_be_felt(feed, path):
    """Counted in calls of the system, not in time: nearly none of many steps makes one."""
    with OneFault() as calls:
        for step in range(10_000):
            feed.append("step", step=step, loss=1.0)
    assert calls.calls <= 3


def test_alive_is_this_process_only():
    me = this_process()
    pid, host, began = me["pid"], me["host"], me["began"]
    assert is_process_alive(pid, host, began) is True
    assert is_process_alive(pid, host, "1") is False  # the id was used again
    assert is_process_alive(pid, host, "") is True
    assert is_process_alive(pid, "elsewhere", began) is None
    assert is_process_alive(None, host, began) is None
    assert is_process_alive(2**60, host, began) is False


def test_a_process_that_was_killed_is_gone(repo):
    script = (
        "import sys, mvc.training; feed = mvc.training.RunStore(mvc.Repo.open(sys.argv[1])).open_feed('main');"
        "feed.append('start'); feed.append('step', step=1, loss=1.0); print(flush=True); input()"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", script, str(repo.worktree)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with child:
        child.stdout.readline()
        assert repo.runs.read().alive is True
        child.kill()
        child.stdin.close()
    view = repo.runs.read()
    assert (view.alive, view.stopped, view.pid) == (False, None, child.pid)


# Nobody else minds.


def test_the_folder_is_no_part_of_the_repository(repo):
    repo.commit_state({"model": {"w": np.arange(9.0)}}, message="one", step=1)
    with RunStore(repo).open_feed("main") as feed:
        feed.append("start")
    report = repo.upkeep.fsck(data=True)
    assert report.ok
    assert report.notices == ()
    plan = repo.upkeep.plan_gc(grace_s=0)
    repo.upkeep.gc(plan)
    repo.upkeep.doctor()
    assert repo.status().files == ()
    assert repo.runs.read().started_s is not None
    stockgit.git(repo.git_dir, "fsck", "--strict")
    assert Repo.open(repo.worktree).runs.read().branch == "main"
