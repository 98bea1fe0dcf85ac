"""The writer as a process: fresh, without torch, stepping back, deaf to signals, not growing."""

import gc
import os
import select
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from mvc_hooks.writer.messages import Bye, Open
from mvc_hooks.writer.process import WriterProcess
from support.committing import Rig, make_state, process_counts, read_links, train_on

pytestmark = pytest.mark.torch


def test_it_is_fresh_and_without_torch(tmp_path):
    with Rig(tmp_path) as rig:
        assert rig.commit(make_state(), 1).error is None
        maps = Path(f"/proc/{rig.pid}/maps").read_text()
        assert "libtorch" not in maps
        assert "libpython" in maps or "python" in maps
        command = Path(f"/proc/{rig.pid}/cmdline").read_bytes().split(b"\0")
        assert command[1:3] == [b"-P", b"-c"]
        assert b"mvc_hooks.writer" in command[3]
        assert os.getpgid(rig.pid) == rig.pid
        assert os.getsid(rig.pid) == os.getsid(0), "it gets its share of what the training gets"


def test_it_maps_no_image_and_holds_the_newest(tmp_path):
    with Rig(tmp_path) as rig:
        for step in (1, 2):
            rig.commit(make_state(step), step)
        assert "mvc-snapshot" not in Path(f"/proc/{rig.pid}/maps").read_text()
        links = read_links(rig.pid)
        assert sum("mvc-snapshot" in link for link in links) == 1


_SEE_NICENESS = """
import os, sys, threading
if sys.argv[:1] == ["-c"]:
    from mvc.chunkstore.writer import ChunkWriter
    encode = ChunkWriter._encode
    def see(*values):
        if threading.current_thread() is not threading.main_thread():  # which does what is small
            with open({log!r}, "a") as file:
                file.write(f"{{os.getpriority(os.PRIO_PROCESS, 0)}}\\n")
        return encode(*values)
    ChunkWriter._encode = see
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="only there has a thread its own priority")
def test_its_workers_step_back_unless_somebody_waits(tmp_path, monkeypatch):
    log = tmp_path / "log"
    (tmp_path / "sitecustomize.py").write_text(_SEE_NICENESS.format(log=str(log)))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    ours = os.getpriority(os.PRIO_PROCESS, 0)
    with Rig(tmp_path / "run") as rig:
        for step, is_awaited in ((1, False), (2, True), (3, False)):
            rig.submit(make_state(step, size=2**22), step)
            while not is_awaited and rig.queue.depth:
                rig.queue.pump()
                select.select([rig.writer._channel], [], [], 1.0)
            rig.queue.wait()
            seen = [int(line) for line in log.read_text().split()]
            assert len(seen) > 2
            if is_awaited:  # what had begun before goes on as it was
                assert ours in seen
            else:
                assert set(seen) == {min(19, ours + 10)}
            log.write_text("")
        assert os.getpriority(os.PRIO_PROCESS, rig.pid) == ours


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals_do_not_stop_it(tmp_path, number):
    with Rig(tmp_path) as rig:
        rig.signal(number)  # before it could say that it does not listen
        assert rig.commit(make_state(1), 1).error is None
        os.killpg(rig.pid, number)
        assert rig.commit(make_state(2), 2).error is None


def test_files_beside_the_script_do_not_keep_python_from_starting(tmp_path, monkeypatch):
    for name in ("encodings", "types", "site"):  # the training has loaded Python's long ago
        (tmp_path / f"{name}.py").write_text("raise SystemExit(7)")
    monkeypatch.syspath_prepend(tmp_path)
    with Rig(tmp_path / "run") as rig:
        assert rig.commit(make_state(), 1).error is None


def test_files_in_the_current_folder_are_not_imported(tmp_path, monkeypatch):
    (tmp_path / "types.py").write_text("raise SystemExit(7)")
    (tmp_path / "msgspec.py").write_text("raise SystemExit(7)")
    monkeypatch.chdir(tmp_path)
    with Rig(tmp_path / "run") as rig:
        assert rig.commit(make_state(), 1).error is None


def test_nothing_is_left_behind(tmp_path):
    def look():
        names = {path for folder in ("/dev/shm", "/tmp") for path in os.listdir(folder)}
        return {name for name in names if "mvc-snapshot" in name}

    gc.collect()  # what other tests have left
    before, descriptors = look(), len(os.listdir("/proc/self/fd"))
    with Rig(tmp_path) as rig:
        pid = rig.pid
        rig.commit(make_state(), 1)
        assert look() == before
        assert len(read_links(os.getpid())) > descriptors
    assert look() == before
    gc.collect()
    assert not any("mvc-snapshot" in link for link in read_links(os.getpid()))
    assert len(os.listdir("/proc/self/fd")) == descriptors
    assert "mvc-snapshot" not in Path("/proc/self/maps").read_text()
    assert not Path(f"/proc/{pid}").exists()


def _counts(rig):
    gc.collect()
    return process_counts(os.getpid()), process_counts(rig.pid)


@pytest.mark.slow
def test_200_commits_take_no_more_than_50(tmp_path):
    _assert_steady(tmp_path, make_state(size=2**16), 50, 200, 32 * 2**20)


def _assert_steady(root, state, warm, total, most_bytes):
    """Check that nothing grows but the writer's index of the store, a few dozen kB per commit."""
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak of other tests
    with Rig(root) as rig:
        seen = {}
        for step in range(1, total + 1):
            train_on(state, 1)
            assert rig.commit(state, step).error is None
            if step in (warm, total):
                seen[step] = _counts(rig)
        for early, late in zip(seen[warm], seen[total], strict=True):
            assert late["descriptors"] == early["descriptors"]
            assert late["threads"] == early["threads"]
            assert late["peak"] - early["peak"] < most_bytes


@pytest.mark.slow
def test_an_end_of_the_run_ends_it(tmp_path):
    with Rig(tmp_path) as rig:
        rig.commit(make_state(), 1)
        rig.writer._send(Bye())
        rig.writer._channel.shutdown(socket.SHUT_RDWR)
        assert rig.writer._process.wait(300) == 0


def test_forked_children_keep_nothing(tmp_path):
    """A worker of a data loader lives on; lock, channel and memory do not live on with it."""
    with Rig(tmp_path) as rig:
        rig.commit(make_state(), 1)
        rig.pool.prepare({"a": 1})
        down, up = os.pipe()
        child = os.fork()
        if not child:
            links = read_links(os.getpid())
            maps = Path("/proc/self/maps").read_text()
            found = any("mvc-snapshot" in link for link in links) or "mvc-snapshot" in maps
            channel = rig.writer._channel.fileno() >= 0
            os.write(up, b"kept" if found or channel else b"free")
            os._exit(0)
        assert os.read(down, 4) == b"free"
        os.waitpid(child, 0)
        os.close(down)
        os.close(up)
        assert rig.commit(make_state(2), 2).error is None


_KILLED_RUN = """
import os, signal, sys
from support.committing import Rig, make_state
from mvc_hooks.commits.branchlock import BranchLock
from mvc import Repo
repo = Repo.init(sys.argv[1])
lock = BranchLock(repo.git_dir, "main")
rig = Rig(sys.argv[1], held=(lock.descriptor,))
rig.hold()
rig.submit(make_state(7), 7)
print(rig.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.slow
def test_a_killed_run_leaves_its_last_commit(tmp_path):
    from mvc_hooks.commits.branchlock import BranchLock

    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(
        [sys.executable, "-c", _KILLED_RUN, tmp_path / "run"],
        env=env,
        stdout=subprocess.PIPE,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL
    with Rig(tmp_path / "other") as rig:  # not yet: the lock is the writer's
        with pytest.raises(Exception, match="is being written by process"):
            BranchLock(tmp_path / "run" / ".mvc", "main", patience_s=0.0)
        os.kill(int(done.stdout), signal.SIGCONT)
        lock = BranchLock(tmp_path / "run" / ".mvc", "main")
        lock.release()
        repo = type(rig.repo).open(tmp_path / "run")
        assert repo.verify_state(make_state(7), "main@7").is_exact
        assert repo.upkeep.fsck(data=True).problems == ()


def test_a_channel_that_closes_is_not_waited_for(tmp_path):
    writer = WriterProcess(Open(str(tmp_path)))
    assert writer.wait() == []
    assert writer.close() == []
