"""One checkpointer per branch, told at once and by name; free when run and writer are gone."""

import gc
import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading

import pytest

from mvc import ConflictError, StorageError
from mvc_hooks.commits.branchlock import BranchLock

_HOLD = """
import os, sys
from pathlib import Path
from mvc_hooks.commits.branchlock import BranchLock
lock = BranchLock(Path(sys.argv[1]), "main")
print("held", flush=True)
sys.stdin.read()
"""

# A run that leaves its lock to a child, as it leaves it to its writer, and dies.
_LEAVE = """
import os, signal, subprocess, sys
from pathlib import Path
from mvc_hooks.commits.branchlock import BranchLock
lock = BranchLock(Path(sys.argv[1]), "main")
code = "import sys; print('writing', flush=True); sys.stdin.read()"
child = subprocess.Popen([sys.executable, "-c", code], pass_fds=[lock.descriptor])
print(child.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def _start(code, folder):
    return subprocess.Popen(
        [sys.executable, "-c", code, folder],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def test_two_in_one_process(tmp_path):
    lock = BranchLock(tmp_path, "main")
    with pytest.raises(ConflictError) as caught:
        BranchLock(tmp_path, "main")
    host = socket.gethostname()
    assert caught.value.message == (
        f"branch 'main' is being written by process {os.getpid()} on {host} (this process)"
    )
    assert "pass branch=..." in caught.value.hint
    lock.release()
    lock.release()
    BranchLock(tmp_path, "main").release()


def test_processes_that_do_not_know_each_other_yet_are_told(tmp_path, monkeypatch):
    lock = BranchLock(tmp_path, "main")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConflictError) as caught:
        BranchLock(tmp_path, "main")
    assert "init_process_group() before the checkpointer is made" in caught.value.hint
    lock.release()


def test_another_branch_is_fine(tmp_path):
    names = ["main", "Main/../x", "a/b", "a%2Fb", "\N{SNOWMAN}"]
    locks = [BranchLock(tmp_path, name) for name in names]
    assert len(os.listdir(tmp_path / "runs")) == len(names)
    for lock in locks:
        lock.release()


@pytest.mark.parametrize("killed", [False, True])
def test_a_live_run_is_named_at_once(tmp_path, killed):
    with _start(_HOLD, tmp_path) as run:
        assert run.stdout.readline() == "held\n"
        with pytest.raises(ConflictError, match=f"by process {run.pid} on "):
            BranchLock(tmp_path, "main", patience_s=3600.0)
        run.kill() if killed else run.stdin.close()
        run.wait()
    BranchLock(tmp_path, "main").release()


@pytest.mark.slow
@pytest.mark.parametrize("reaped", [True, False])
def test_a_dead_runs_writer_is_waited_for(tmp_path, reaped):
    with _start(_LEAVE, tmp_path) as run:
        child = int(run.stdout.readline())
        assert run.stdout.readline() == "writing\n"
        if reaped:
            run.wait()
        else:
            os.waitid(os.P_PID, run.pid, os.WEXITED | os.WNOWAIT)
        with pytest.raises(ConflictError, match=f"by process {run.pid} on "):
            BranchLock(tmp_path, "main", patience_s=0.0)
        killer = threading.Timer(0.2, os.kill, (child, signal.SIGKILL))
        killer.start()
        BranchLock(tmp_path, "main", patience_s=3600.0).release()
        killer.join()


def test_an_id_that_is_used_again_is_another_process(tmp_path):
    lock = BranchLock(tmp_path, "main")
    path = tmp_path / "runs" / "main.lock"
    holder = json.loads(path.read_text())
    path.write_text(json.dumps({**holder, "began": "1"}))
    with pytest.raises(ConflictError):  # after its patience
        BranchLock(tmp_path, "main", patience_s=0.1)
    lock.release()


_GARBAGE = [
    b"",
    b"\0" * 100,
    b"[" * 5000,
    b"{}",
    b"[1, 2]",
    b'"text"',
    b"\xff\xfe\xfd",
    b'{"pid": 1e400}',
    b'{"pid": true}',
    b'{"pid": -1}',
    b'{"pid": 0, "host": "%s"}' % socket.gethostname().encode(),
    b'{"pid": 99999999999999999999999, "host": "%s"}' % socket.gethostname().encode(),
    b'{"pid": "7", "host": ["x"]}',
    b'{"pid": 7, "host": {"a": "' + b"x" * 9000,
    random.Random(1).randbytes(600),
]


@pytest.mark.parametrize("garbage", _GARBAGE)
def test_garbage_in_a_lock_that_is_free_and_then_held(tmp_path, garbage):
    path = tmp_path / "runs" / "main.lock"
    path.parent.mkdir()
    path.write_bytes(garbage)
    lock = BranchLock(tmp_path, "main")
    with pytest.raises(ConflictError, match="this process"):
        BranchLock(tmp_path, "main")
    path.write_bytes(garbage)
    with pytest.raises(ConflictError, match="branch 'main' is being written by"):
        BranchLock(tmp_path, "main", patience_s=0.1)
    lock.release()


def test_no_folder_to_lock_in(tmp_path):
    with pytest.raises(StorageError, match=r"cannot open .*main\.lock: No such file"):
        BranchLock(tmp_path / "nothing", "main")
    (tmp_path / "runs").write_text("a file")
    with pytest.raises(StorageError, match=r"cannot open .*main\.lock"):
        BranchLock(tmp_path, "main")


def test_failed_ones_leave_no_descriptor(tmp_path):
    lock = BranchLock(tmp_path, "main")
    gc.collect()  # what other tests have left
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        with pytest.raises(ConflictError):
            BranchLock(tmp_path, "main")
    assert len(os.listdir("/proc/self/fd")) == before
    lock.release()


def test_a_forked_worker_does_not_keep_it(tmp_path):
    lock = BranchLock(tmp_path, "main")
    down, up = os.pipe()
    ready, tell = os.pipe()
    child = os.fork()
    if not child:
        os.close(up)
        os.write(tell, b"1")
        os.read(down, 1)  # as long as the parent wants
        os._exit(0)
    assert os.read(ready, 1) == b"1"
    lock.release()
    BranchLock(tmp_path, "main").release()
    os.close(up)
    os.waitpid(child, 0)
    for descriptor in (down, ready, tell):
        os.close(descriptor)
