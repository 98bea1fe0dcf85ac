"""Whatever happens to the writer or the disk is told, costs one commit, and is over after it."""

import logging
import os
import resource
import signal

import pytest
import torch

from mvc import Repo, StorageError
from mvc_hooks.snapshot.ring import MemoryPool
from mvc_hooks.writer.messages import Open
from mvc_hooks.writer.process import WriterProcess
from support.committing import WHO, Rig, clone_state, make_state, train_on

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("real_writers")]


def _assert_works(rig, state, step, parent):
    """Check that the next commit is made, on top of the last good one."""
    report = rig.commit(state, step)
    assert report.error is None
    assert rig.repo.show(report.commit).info.parents == ((parent,) if parent else ())
    rig.assert_holds(state, report.commit)


@pytest.mark.parametrize("is_ready", [False, True])
def test_killed_while_it_had_nothing_to_do(tmp_path, is_ready):
    state = make_state()
    with Rig(tmp_path) as rig:
        good = rig.commit(state, 1).commit if is_ready else None
        old = rig.pid
        rig.kill()
        _assert_works(rig, state, 2, good)
        assert rig.pid != old


def test_killed_with_a_commit_in_its_hands(tmp_path, caplog):
    state = make_state()
    with Rig(tmp_path) as rig:
        good = rig.commit(state, 1).commit
        rig.hold()
        train_on(state, 1)
        kept = clone_state(state)
        rig.submit(state, 2)
        train_on(state, 1)
        rig.kill()
        (report,) = rig.queue.wait()
        assert report.error is None
        (record,) = caplog.records
        assert record.getMessage() == (
            "commit of step 2 failed: the writer process ended (killed by signal 9); "
            "a new writer tries again"
        )
        assert len(rig.pool._free) == 1
        assert rig.repo.show(report.commit).info.parents == (good,)
        rig.assert_holds(kept, report.commit)
        _assert_works(rig, state, 3, report.commit)


def test_killed_with_several_in_flight(tmp_path):
    state = make_state()
    with Rig(tmp_path) as rig:
        good, kept = rig.commit(state, 1).commit, []
        rig.hold()
        for step in (2, 3, 4):
            train_on(state, 1)
            kept.append(clone_state(state))
            rig.submit(state, step)
        rig.queue.mark_healthy(good, "calm")
        rig.kill()
        reports = rig.queue.wait(with_marks=True)
        assert [(report.step, report.error) for report in reports] == [
            (2, None),
            (3, None),
            (4, None),
        ]
        assert len(rig.pool._free) == 3
        assert rig.repo.show(good).is_healthy
        for report, one in zip(reports, kept, strict=True):
            assert rig.repo.verify_state(one, report.commit).is_exact
        _assert_works(rig, state, 5, reports[-1].commit)


def test_three_in_a_row_are_too_many(tmp_path, monkeypatch, caplog):
    """Writers that die while they start; the run hears of the third, and the next commit may work."""
    patch = tmp_path / "patch"
    patch.mkdir()
    state = make_state()
    with Rig(tmp_path / "run") as rig:
        good = rig.commit(state, 1).commit
        (patch / "sitecustomize.py").write_text(
            "import os, sys\nif sys.argv[:1] == ['-c']: os.kill(os.getpid(), 9)"
        )
        monkeypatch.setenv("PYTHONPATH", str(patch))
        rig.kill()
        report = rig.commit(state, 2)
        assert report.commit is None
        assert "(killed by signal 9), number 3 in a row without a commit" in report.error
        assert "\n" not in str(report)
        assert [record.levelname for record in caplog.records] == ["WARNING"] * 2
        assert rig.repo.resolve("main") == good
        (patch / "sitecustomize.py").write_text("")
        _assert_works(rig, state, 3, good)
        caplog.clear()
        rig.hold()
        rig.submit(state, 4)
        rig.kill()
        assert [one.error for one in rig.queue.wait()] == [None], "a commit ends the row"


def test_killed_between_the_commit_and_its_answer(tmp_path):
    state = make_state()
    with Rig(tmp_path) as rig:
        good = rig.commit(state, 1).commit
        train_on(state, 1)
        rig.submit(state, 2)
        tip = rig.wait_for_tip(good)
        rig.kill()
        rig.forget_answer()
        (report,) = rig.queue.wait()
        assert report.error is None
        assert report.commit == tip
        assert report.written_bytes > 0
        assert report.plain_bytes > 0
        train_on(state, 1)
        _assert_works(rig, state, 3, tip)


def test_a_killed_writers_last_answer_still_counts(tmp_path):
    state = make_state()
    with Rig(tmp_path) as rig:
        rig.submit(state, 1)
        tip = rig.wait_for_tip("")
        rig.kill()
        rig.submit(state, 2)
        first, second = rig.queue.wait()
        assert first.commit == tip
        assert rig.repo.show(second.commit).info.parents == (tip,)
        _assert_works(rig, state, 3, second.commit)


@pytest.mark.parametrize(
    "moment",
    [pytest.param(one, marks=[pytest.mark.nightly] if one != 6 else []) for one in range(13)],
)
def test_killed_at_any_moment(tmp_path, moment):
    state = make_state(size=2**19)
    with Rig(tmp_path) as rig:
        good, kept = rig.commit(state, 1).commit, clone_state(state)
        train_on(state, 1)
        rig.submit(state, 2)
        in_time = rig.writer.wait(timeout_s=moment * 0.003)
        rig.queue._settle(in_time)
        rig.kill()
        (report,) = rig.queue.wait()
        rig.assert_holds(kept, good)
        rig.assert_holds(state, report.commit)
        assert rig.repo.show(report.commit).info.parents == (good,)
        assert rig.repo.resolve("main") == report.commit
        train_on(state, 1)
        _assert_works(rig, state, 3, report.commit)


_END_WITH_A_HINT = """
import atexit, sys
if sys.argv[:1] == ["-c"]:
    atexit.register(lambda: print("hint: try again", file=sys.stderr))
"""


@pytest.mark.parametrize("ends_with_hint", [False, True])
def test_stopped_with_a_message_of_its_own(tmp_path, caplog, monkeypatch, ends_with_hint):
    """A writer that fails by itself says why in its last words, of which a hint is not the one to repeat."""
    state = make_state()
    if ends_with_hint:
        (tmp_path / "sitecustomize.py").write_text(_END_WITH_A_HINT)
        monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    with Rig(tmp_path) as rig:
        rig.commit(state, 1)
        rig.writer._channel.sendall(b"nonsense\n")
        rig.submit(state, 2)
        (report,) = rig.queue.wait()
        assert report.error is None
        assert "exit status 1" in caplog.text
        assert "JSON is malformed" in caplog.text
        assert rig.commit(state, 3).error is None


def test_repository_moved_away_and_back(tmp_path):
    state = make_state()
    with Rig(tmp_path / "run") as rig:
        good = rig.commit(state, 1).commit
        os.rename(tmp_path / "run", tmp_path / "elsewhere")
        train_on(state, 1)
        report = rig.commit(state, 2)
        assert report.commit is None
        assert report.error
        assert not (tmp_path / "run").exists()
        os.rename(tmp_path / "elsewhere", tmp_path / "run")
        _assert_works(rig, state, 3, good)


def test_files_that_may_not_grow(tmp_path):
    state = make_state(size=2**20)
    with Rig(tmp_path) as rig:
        good, kept = rig.commit(state, 1).commit, clone_state(state)
        limits = resource.prlimit(rig.pid, resource.RLIMIT_FSIZE, (2**18, -1))
        train_on(state, 1)
        report = rig.commit(state, 2)
        assert report.commit is None
        assert "file too large" in report.error
        assert rig.is_alive
        rig.assert_holds(kept, good)
        resource.prlimit(rig.pid, resource.RLIMIT_FSIZE, limits)
        _assert_works(rig, state, 3, good)


_FULL_DISK = """
import sys
if sys.argv[:1] == ["-c"]:
    sys.path.append({support!r})
    from support.fulldisk import FullDisk
    FullDisk({root!r}, {free}).__enter__()
"""


def test_full_disk(tmp_path, monkeypatch):
    root, patch = tmp_path / "run", tmp_path / "patch"
    patch.mkdir()
    tests = os.path.dirname(os.path.dirname(os.path.dirname(__file__)))
    text = _FULL_DISK.format(support=tests, root=str(root), free=3 * 2**20)
    (patch / "sitecustomize.py").write_text(text)
    monkeypatch.setenv("PYTHONPATH", str(patch))
    state = make_state(size=2**18)
    with Rig(root) as rig:
        good, kept = rig.commit(state, 1).commit, clone_state(state)
        for step in (2, 3):
            state = make_state(step, size=2**18)
            report = rig.commit(state, step)
            assert report.commit is None
            assert "no space left" in report.error
            rig.assert_holds(kept, good)
        assert len(rig.pool._free) == 1
        (patch / "sitecustomize.py").write_text("")
        rig.kill()
        _assert_works(rig, state, 4, good)


def test_branch_moved_by_somebody_else(tmp_path):
    state = make_state()
    with Rig(tmp_path) as rig:
        rig.commit(state, 1)
        other = Repo.open(tmp_path, identity=WHO)
        theirs = other.commit_state({"a": torch.zeros(3)}, message="theirs").commit
        train_on(state, 1)
        report = rig.commit(state, 2)
        assert report.commit is None
        assert "where this run left it" in report.error
        assert rig.repo.resolve("main") == theirs
        assert len(rig.pool._free) == 1
        rig.queue.tips["main"] = theirs
        _assert_works(rig, state, 3, theirs)


def test_theirs_is_not_taken_for_a_lost_commit(tmp_path):
    state = make_state()
    with Rig(tmp_path) as rig:
        good = rig.commit(state, 1).commit
        rig.hold()
        rig.submit(state, 2)
        rig.kill()
        rig.repo.commit_state({"a": torch.zeros(3)}, message="step 2", step=2, parent=good)
        (report,) = rig.queue.wait()
        assert report.commit is None


def test_a_failed_commit_does_not_take_the_next_one_along(tmp_path):
    """The second is sent before the first has failed."""
    state = make_state(size=2**20)
    with Rig(tmp_path) as rig:
        good = rig.commit(state, 1).commit
        rig.hold()
        resource.prlimit(rig.pid, resource.RLIMIT_FSIZE, (2**18, -1))
        train_on(state, 1)
        rig.submit(state, 2)
        rig.submit(make_state(size=8), 3)
        rig.signal(signal.SIGCONT)
        first, second = rig.queue.wait()
        assert first.commit is None
        assert second.error is None
        assert rig.repo.show(second.commit).info.parents == (good,)


def test_no_writer_can_be_started(tmp_path, monkeypatch):
    state = make_state()
    with Rig(tmp_path) as rig:
        good = rig.commit(state, 1).commit
        rig.kill()
        with monkeypatch.context() as patch:
            patch.setattr("sys.executable", str(tmp_path / "nothing"))
            report = rig.commit(state, 2)
            assert report.commit is None
            assert "cannot start the writer process: No such file" in report.error
            with pytest.raises(StorageError, match="cannot start"):
                WriterProcess(Open(str(tmp_path)))
        _assert_works(rig, state, 3, good)


def test_a_mark_that_cannot_be_made_is_told(tmp_path, caplog):
    with Rig(tmp_path) as rig:
        rig.commit(make_state(), 1)
        with caplog.at_level(logging.WARNING, "mvc_hooks"):
            rig.queue.mark_healthy("0" * 40, "calm")
            rig.queue.wait(with_marks=True)
        assert "is not marked as healthy" in caplog.text


def test_close_makes_everything_durable(tmp_path):
    state = make_state()
    with Rig(tmp_path) as rig:
        rig.hold()
        for step in (1, 2, 3):
            rig.submit(state, step)
        rig.signal(signal.SIGCONT)
        assert [report.error for report in rig.queue.close()] == [None] * 3
        assert rig.repo.upkeep.fsck(data=True).problems == ()
        assert not rig.is_alive


def test_a_closed_pool_gives_memory_back(tmp_path):
    pool = MemoryPool()
    memory = pool.take(100)
    descriptor = memory.descriptor
    pool.give_back(memory)
    pool.close()
    with pytest.raises(OSError):
        os.fstat(descriptor)
