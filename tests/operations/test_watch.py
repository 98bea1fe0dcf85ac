"""watch: which run is followed, and a follower misses nothing."""

import os
import threading

import pytest

from mvc import NotFoundError, UsageError
from mvc.operations.watch import READ_BYTES
from mvc.runs.feed import RunFeed, feed_path
from mvc.runs.records import MAX_LINE_BYTES
from mvc.training import RunStore
from support.feeds import Clock


@pytest.fixture
def path(repo):
    return feed_path(repo.git_dir, "main")


def test_a_follower_misses_nothing_while_the_feed_begins_anew(repo, path):
    clock = Clock()
    feed = RunFeed(path, max_bytes=4096, clock=clock)
    feed.append("start", step=0)
    follower = repo.runs.follow("main")
    for step in range(1, 500):
        clock.now_s += 1
        feed.append("step", step=step, loss=float(step))
        if step % 10 == 0:
            assert follower.read().step == step
    assert [step for step, _ in follower.read().losses] == list(range(1, 500))
    assert follower.read().damaged_lines == 0
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
    follower = repo.runs.follow("main")
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


def test_no_run(repo):
    with pytest.raises(NotFoundError, match="no training run here") as caught:
        repo.runs.read()
    assert "Checkpointer" in caught.value.hint
    RunStore(repo).open_feed("side").append("start")
    assert repo.runs.read().branch == "side"  # the only one
    with pytest.raises(NotFoundError, match="on branch 'other'") as caught:
        repo.runs.read("other")
    assert caught.value.hint == "there are runs on side"
    for name in ("", "a b", "..", "-x"):
        with pytest.raises(UsageError):
            RunStore(repo).open_feed(name)
    with pytest.raises(UsageError):
        repo.runs.read("../../etc/passwd..")


def test_the_current_branch_comes_first_then_the_latest(repo):
    for number, branch in enumerate(("main", "a", "b")):
        with RunStore(repo).open_feed(branch) as feed:
            feed.append("start")
        os.utime(feed_path(repo.git_dir, branch), ns=(number, number))
    assert repo.runs.read().branch == "main"
    repo.commit_state({"a": 1}, message="one")
    repo.checkout("HEAD", detach=True)
    assert repo.runs.read().branch == "b"


def test_a_huge_feed_is_read_from_its_end(repo, path):
    path.parent.mkdir()
    with path.open("wb") as file:
        file.truncate(10 * 2**30)  # one line of 10 GiB, which takes no room on the disk
        file.seek(0, os.SEEK_END)
        file.write(b'\n{"kind":"step","time":1,"step":3,"loss":1}\n')
        file.write(b"x" * (2 * MAX_LINE_BYTES))
    follower = repo.runs.follow("main")
    assert follower.read().step == 3
    with path.open("ab") as file:
        file.write(b'\n{"kind":"step","time":1,"step":4,"loss":1}\n')
    assert follower.read().step == 4
    assert READ_BYTES < 2**23
