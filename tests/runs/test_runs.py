"""The feed of a run: what goes in comes out; nothing that happens to it disturbs anybody."""

from __future__ import annotations

import errno
import json
import math
import os
import platform
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mvc import NotFoundError, Repo, StorageError, UsageError
from mvc.operations.watch import READ_BYTES
from mvc.runs.feed import RunFeed, feed_path, is_process_alive, this_process
from mvc.runs.reading import FeedTail, RunTotals
from mvc.runs.records import (
    MAX_LINE_BYTES,
    encode_record,
    feed_name,
    find_branch,
    find_number,
    parse_record,
)
from support import stockgit
from support.faults import OneFault
from support.fulldisk import FullDisk


class Clock:
    """Time that passes when it is told to."""

    def __init__(self):
        self.now_s = 0.0

    def __call__(self):
        return self.now_s


@pytest.fixture
def path(repo):
    return feed_path(repo.git_dir, "main")


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def feed(path, clock):
    with RunFeed(path, clock=clock) as made:
        yield made


def records(path):
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def test_a_run_as_it_is_told(repo, path):
    feed = repo.open_feed("main")
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
    view = repo.read_run("main")
    assert view == repo.read_run()
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
    view = repo.read_run()
    assert (view.alive, view.stopped) == (False, "done")
    assert (feed.dropped, feed.last_error) == (0, None)
    assert time.time() - 60 < view.started_s <= view.updated_s <= time.time() + 1


def test_steps_wait_for_each_other_and_events_do_not(feed, path, clock):
    feed.append("step", step=1, loss=1.0)
    assert len(records(path)) == 1  # the first after a while
    feed.append("step", step=2, loss=1.0)
    assert len(records(path)) == 1
    feed.append("alarm", step=2, cause="spike", reason="")
    assert [one["kind"] for one in records(path)] == ["step", "step", "alarm"]
    feed.append("step", step=3, loss=1.0)
    clock.now_s = 0.49
    feed.append("step", step=4, loss=1.0)
    assert len(records(path)) == 3
    clock.now_s = 0.51
    feed.append("step", step=5, loss=1.0)
    assert [one["step"] for one in records(path)[3:]] == [3, 4, 5]
    feed.append("step", step=6, loss=1.0)
    feed.flush()
    assert records(path)[-1]["step"] == 6


@pytest.mark.parametrize("count", [1, 4, 5, 8, 9, 100, 1000, 12345])
def test_thinned_steps_are_few_and_end_with_the_newest(feed, path, clock, count):
    feed.append("alarm", step=0)
    for step in range(1, count + 1):
        feed.append("step", step=step, loss=math.inf if step == count // 2 else 1.0)
    feed.flush()
    written = [one for one in records(path) if one["kind"] == "step"]
    steps = [one["step"] for one in written]
    assert steps == sorted(set(steps))
    assert steps[-1] == count
    assert len(steps) <= 6
    if count >= 8:
        assert len(steps) >= 3
        assert "inf" in [one["loss"] for one in written]
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
        assert [one["kind"] for one in records(each)[:2]] == ["start", "commit"]
    last, first = records(older)[-1]["step"], records(path)[2]["step"]
    assert first == last + 1
    view = repo.read_run()
    assert (view.every, view.pid, view.step) == (7, os.getpid(), 999)
    assert [one.step for one in view.commits] == [1]  # said three times, counted once
    assert [step for step, _ in view.losses] == list(range(records(older)[2]["step"], 1000))


def test_a_follower_misses_nothing_while_the_feed_begins_anew(repo, path, clock):
    feed = RunFeed(path, max_bytes=4096, clock=clock)
    feed.append("start", step=0)
    follower = repo.follow_run("main")
    for step in range(1, 500):
        clock.now_s += 1
        feed.append("step", step=step, loss=float(step))
        if step % 10 == 0:
            assert follower.read().step == step
    assert [step for step, _ in follower.read().losses] == list(range(1, 500))
    assert follower.read().damaged_lines == 0
    feed.close()


def test_two_writers_begin_anew_once(path):
    clock = Clock()
    feeds = [RunFeed(path, max_bytes=4096, clock=clock) for _ in range(2)]
    for step in range(1, 400):
        clock.now_s += 1
        feeds[step % 2].append("step", step=step, loss=1.0)
    kept = [
        one["step"] for each in (path.with_name("main.jsonl.old"), path) for one in records(each)
    ]
    assert kept == list(range(kept[0], 400))
    assert [feed.dropped for feed in feeds] == [0, 0]
    for feed in feeds:
        feed.close()


def test_a_writer_and_a_reader_at_once(repo, path):
    steps = 20_000

    def write():
        with RunFeed(path, max_bytes=64 * 1024, interval_s=0) as feed:
            feed.append("start", step=0)
            for step in range(1, steps + 1):
                feed.append("step", step=step, loss=1.0)

    path.parent.mkdir()
    path.touch()
    follower = repo.follow_run("main")
    writer = threading.Thread(target=write)
    writer.start()
    seen = [0]
    while writer.is_alive():
        view = follower.read()
        assert view.damaged_lines == 0
        seen.append(view.step or 0)
    writer.join()
    view = follower.read()
    assert seen == sorted(seen)
    assert view.step == steps
    assert view.damaged_lines == 0
    assert [step for step, _ in view.losses][-10:] == list(range(steps - 9, steps + 1))


def test_a_torn_line_costs_that_line_only(repo, path):
    with repo.open_feed("main") as feed:
        feed.append("commit", step=1)
    with path.open("ab") as file:
        file.write(b'{"kind":"commit","ti')  # a crash in the middle
    assert repo.read_run().damaged_lines == 0  # it may still be being written
    with repo.open_feed("main") as feed:
        feed.append("commit", step=2)
    view = repo.read_run()
    assert [one.step for one in view.commits] == [2, 1]
    assert view.damaged_lines == 1


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
    view = repo.read_run()
    assert [one.step for one in view.commits] == [50]
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
    view = repo.read_run()
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
    assert [one["step"] for one in records(path)] == [2]


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo, lambda path: os.symlink("/dev/null", path)])
def test_something_else_in_the_way(repo, path, make):
    path.parent.mkdir()
    make(path)
    with repo.open_feed("main") as feed:
        feed.append("start")
    assert feed.dropped == 1
    with pytest.raises(NotFoundError, match="there is no training run here"):
        repo.read_run()
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


# Which run.


def test_no_run(repo):
    with pytest.raises(NotFoundError, match="no training run here") as caught:
        repo.read_run()
    assert "Checkpointer" in caught.value.hint
    repo.open_feed("side").append("start")
    assert repo.read_run().branch == "side"  # the only one
    with pytest.raises(NotFoundError, match="on branch 'other'") as caught:
        repo.read_run("other")
    assert caught.value.hint == "there are runs on side"
    for name in ("", "a b", "..", "-x"):
        with pytest.raises(UsageError):
            repo.open_feed(name)
    with pytest.raises(UsageError):
        repo.read_run("../../etc/passwd..")


def test_the_current_branch_comes_first_then_the_latest(repo):
    for number, branch in enumerate(("main", "a", "b")):
        with repo.open_feed(branch) as feed:
            feed.append("start")
        os.utime(feed_path(repo.git_dir, branch), ns=(number, number))
    assert repo.read_run().branch == "main"
    repo.commit_state({"a": 1}, message="one")
    repo.checkout("HEAD", detach=True)
    assert repo.read_run().branch == "b"


LONG = "/".join(["täglich" * 20] * 5)


@pytest.mark.parametrize("branch", ["feature/a-b", "feature%2Fa-b", "模型", "x.jsonl", "a~", LONG])
def test_branches_are_told_apart(repo, branch):
    if branch != "a~":  # no branch may be called so; its feed would be its own even then
        repo.commit_state({"a": 1}, message="one", branch=branch)
        with repo.open_feed(branch) as feed:
            feed.append("commit", step=5)
        assert [one.step for one in repo.read_run(branch).commits] == [5]
        assert repo.read_run().branch == branch
    name = feed_name(branch)
    assert len(name) < 200
    assert "/" not in name
    assert find_branch(name) in (branch, None)


@given(st.lists(st.text(st.characters(codec="utf-8"), min_size=1, max_size=90), max_size=8))
def test_names_of_feeds(branches):
    names = [feed_name(branch) for branch in branches]
    assert len(set(names)) == len(set(branches))
    for name, branch in zip(names, branches, strict=True):
        assert len(os.fsencode(name)) <= 200
        assert not set("/\0 ") & set(name)
        assert not name.startswith(".")
        assert find_branch(name) in (None, branch)


# What is read is hostile.

JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3)
    ),
    max_leaves=8,
)
KINDS = st.sampled_from(
    [
        "start",
        "resume",
        "step",
        "snapshot",
        "commit",
        "skip",
        "alarm",
        "action",
        "rollback",
        "healthy",
        "error",
        "stop",
        "other",
    ]
)
FIELDS = st.sampled_from(
    [
        "step",
        "loss",
        "grad_norm",
        "lr",
        "pid",
        "host",
        "began",
        "every",
        "total",
        "commit",
        "to_step",
        "to_commit",
        "stall_s",
        "write_s",
        "written_bytes",
        "plain_bytes",
        "queue_depth",
        "subject",
        "cause",
        "reason",
        "text",
        "seconds",
        "skipped_batches",
    ]
)
RECORDS = st.builds(
    lambda kind, time_s, fields: {**fields, "kind": kind, "time": time_s},
    KINDS | JSON,
    st.floats(0, 3e9) | JSON,
    st.dictionaries(
        FIELDS, JSON | st.integers(0, 99) | st.sampled_from(["nan", "inf"]), max_size=6
    ),
)


@given(st.lists(RECORDS | JSON, max_size=20))
def test_any_json_gives_a_view(values):
    totals = RunTotals(losses=5, events=3)
    for value in values:
        totals.take(json.dumps(value).encode())
    view = totals.view("main")
    assert len(view.losses) <= 5
    assert max(map(len, (view.commits, view.alarms, view.rollbacks, view.events, view.errors))) <= 3
    assert 0 <= view.damaged_lines <= len(values)
    for commit in view.commits:
        assert commit.step >= 0
        assert commit.stall_s is None or 0 <= commit.stall_s < math.inf


@given(st.binary(max_size=300))
def test_any_bytes_are_read(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("runs") / "main.jsonl"
    path.write_bytes(data)
    totals = RunTotals(losses=5, events=3)
    for line in FeedTail(path, limit_bytes=200).read_lines():
        totals.take(line)
    totals.view("main")


@pytest.mark.parametrize(
    "line",
    [
        b"[" * 60_000,
        b'{"kind":' * 7000,
        b'{"kind":"step","time":1,"step":' + b"9" * 60_000 + b"}",
        b'{"kind":"step","time":NaN,"step":1}',
        b'{"kind":"step","time":Infinity,"step":1}',
        b'{"kind":"step","time":"nan","step":1}',
        b'{"kind":"step","time":-1,"step":1}',
        b'{"kind":"step","time":1e300,"step":1}',
        b'{"kind":"step","time":true,"step":1}',
        b'{"kind":"step","time":1,"step":-1}',
        b'{"kind":"step","time":1,"step":1.5}',
        b'{"kind":"step","time":1,"step":true}',
        b'{"kind":"step","time":1,"step":99999999999999999999}',
        b'{"kind":"step","time":1}',
        b'{"kind":"commit","time":1,"step":"1"}',
        b'{"kind":"rollback","time":1,"step":1}',
        b'{"kind":["step"],"time":1}',
        b'{"kind":"st\xff","time":1}',
        b'"step"',
        b"\x00" * 100,
        b'{"kind":"other","time":1,"x":"' + b"x" * MAX_LINE_BYTES + b'"}',
    ],
)
def test_a_damaged_line_is_counted(line):
    totals = RunTotals(losses=5, events=5)
    totals.take(b'{"kind":"step","time":1,"step":7,"loss":2}')
    totals.take(line)
    view = totals.view("main")
    assert (view.step, view.damaged_lines) == (7, 1)


def test_what_is_not_known_is_passed_over():
    totals = RunTotals(losses=5, events=5)
    totals.take(b'{"kind":"weather","time":1,"sun":true}')
    totals.take(b'{"kind":"step","time":1,"step":1,"loss":NaN,"sun":[{}],"lr":"high"}')
    view = totals.view("main")
    assert (view.step, view.lr, view.damaged_lines) == (1, None, 0)
    assert math.isnan(view.losses[0][1])


def test_a_huge_feed_is_read_from_its_end(repo, path):
    path.parent.mkdir()
    with path.open("wb") as file:
        file.truncate(10 * 2**30)  # one line of 10 GiB, which takes no room on the disk
        file.seek(0, os.SEEK_END)
        file.write(b'\n{"kind":"step","time":1,"step":3,"loss":1}\n')
        file.write(b"x" * (2 * MAX_LINE_BYTES))
    follower = repo.follow_run("main")
    assert follower.read().step == 3
    with path.open("ab") as file:
        file.write(b'\n{"kind":"step","time":1,"step":4,"loss":1}\n')
    assert follower.read().step == 4
    assert READ_BYTES < 2**23


@given(st.lists(st.sampled_from([b"", b"x" * 300, b'{"a":1}']), max_size=12), st.data())
def test_a_tail_gives_whole_lines_only(tmp_path_factory, lines, data):
    """However the bytes arrive, what comes out are lines that went in, in order."""
    path = tmp_path_factory.mktemp("runs") / "main.jsonl"
    path.touch()
    numbered = [b"%d:" % number + line for number, line in enumerate(lines)]
    whole = b"".join(line + b"\n" for line in numbered)
    tail, got, at = FeedTail(path, limit_bytes=700), [], 0
    while at < len(whole):
        size = data.draw(st.integers(1, 400))
        with path.open("ab") as file:
            file.write(whole[at : at + size])
        at += size
        got += tail.read_lines()
    assert got == numbered


@given(st.floats(), st.integers(-(2**63), 2**63))
def test_numbers_come_back(number, whole):
    line, lost = encode_record("step", 1.0, {"loss": number, "step": whole})
    record = parse_record(line)
    assert lost == 0
    back = find_number(record, "loss")
    assert back == number or (math.isnan(back) and math.isnan(number))
    assert float(record["step"]) == float(whole)


# The process.


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
        "import sys, mvc; feed = mvc.Repo.open(sys.argv[1]).open_feed('main');"
        "feed.append('start'); feed.append('step', step=1, loss=1.0); print(flush=True); input()"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", script, str(repo.worktree)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with child:
        child.stdout.readline()
        assert repo.read_run().alive is True
        child.kill()
        child.stdin.close()
    view = repo.read_run()
    assert (view.alive, view.stopped, view.pid) == (False, None, child.pid)


def test_speed_is_that_of_the_last_steps():
    def speed(*paces):
        totals = RunTotals(losses=5, events=5)
        for time_s, step in paces:
            totals.take(b'{"kind":"step","time":%f,"step":%d}' % (time_s, step))
        return totals.view("main").steps_per_s

    assert speed() is None
    assert speed((1, 1)) is None
    assert speed((1, 1), (2, 11), (3, 21)) == pytest.approx(10)
    assert speed((1, 1), (1000, 2), (1001, 12)) == pytest.approx(10)  # after a long pause
    assert speed((1, 1), (501, 2)) == pytest.approx(1 / 500)
    assert speed((1, 500), (2, 510), (3, 100), (4, 105)) == pytest.approx(5)  # it went back
    assert speed((5, 1), (5, 2)) < 1000


# Nobody else minds.


def test_the_folder_is_no_part_of_the_repository(repo):
    repo.commit_state({"model": {"w": np.arange(9.0)}}, message="one", step=1)
    with repo.open_feed("main") as feed:
        feed.append("start")
    report = repo.fsck(data=True)
    assert report.ok
    assert report.notices == ()
    plan = repo.plan_gc(grace_s=0)
    repo.gc(plan)
    repo.doctor()
    assert repo.status().files == ()
    assert repo.read_run().started_s is not None
    stockgit.git(repo.git_dir, "fsck", "--strict")
    assert Repo.open(repo.worktree).read_run().branch == "main"
