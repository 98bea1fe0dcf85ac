"""Writers that begin at once: forked from a process that has everything imported.

A short run is over before its writer has imported what it needs, which costs more than all that it writes. So
where a test is about the run, its writers are forked, as the children of ``support.zygote`` are, and only then
run the command that would have started them. From there on all is as ever: a process with a group of its own,
which has of the run what it was handed and nothing else. ``real_writers`` are for tests of what a start or an
end has to do with its parent.

The process that forks lives as long as the fixture that started it; ``VARIABLE`` leads the children of the
tests to it.
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path
from types import SimpleNamespace

VARIABLE = "MVC_TEST_WRITERS"
_MOST_BYTES = 2**17
_MOST_DESCRIPTORS = 64
_FREE = 512
"""Descriptors from here on are nobody's."""


@contextlib.contextmanager
def forked_writers():
    """Have the writers of this process, and of zygotes that it starts, forked within the block."""
    if sys.platform != "linux":  # elsewhere sockets like these do not exist
        yield
        return
    with tempfile.TemporaryDirectory(prefix="mvc-writers-") as folder:
        path = str(Path(folder, "socket"))
        environment = dict(os.environ, PYTHONPATH=str(Path(__file__).parents[1]))
        with subprocess.Popen(
            [sys.executable, "-m", "support.writers", path],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment,
        ) as process:  # fmt: skip
            assert process.stdout.readline(), "it did not start"
            os.environ[VARIABLE] = path
            use_forked()
            try:
                yield
            finally:
                use_real()
                del os.environ[VARIABLE]
                process.stdin.write(b"end")  # a process that a test has left may hold the pipe open
                process.stdin.close()


def use_forked():
    """Have the writers of this process forked, if there is a process to fork them."""
    if VARIABLE in os.environ:
        from mvc_hooks.writer import process

        process.subprocess = SimpleNamespace(**{**vars(subprocess), "Popen": Forked})


def use_real():
    """Have the writers of this process started as those of users are."""
    from mvc_hooks.writer import process

    process.subprocess = subprocess


class Forked:
    """What ``subprocess.Popen`` is to a run, of as much of it as a run asks of its writer."""

    def __init__(self, command, *, pass_fds, stderr, process_group, **_):
        assert process_group == 0
        self._link = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._link.connect(os.environ[VARIABLE])
        told = [command[command.index("-c") :], pass_fds, os.getcwd(), dict(os.environ)]
        socket.send_fds(self._link, [json.dumps(told).encode()], [stderr.fileno(), *pass_fds])
        self.pid, self.returncode = int(self._link.recv(_MOST_BYTES)), None

    def poll(self):
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout=None):
        if self.returncode is None:
            if not select.select([self._link], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired("writer", timeout)
            told = self._link.recv(_MOST_BYTES)
            self.returncode = int(told) if told else -signal.SIGKILL
            self._link.close()
        return self.returncode

    def kill(self):
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)


# The process that forks.


def _serve(path):
    from mvc_hooks.writer.messages import GROUP_SIGNALS

    # As in the process of a run while it starts a writer, which inherits that.
    signal.pthread_sigmask(signal.SIG_BLOCK, GROUP_SIGNALS)
    for name in _list_modules():
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    gc.freeze()
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(path)
    listener.listen(64)
    ended, ends = os.pipe()
    os.set_blocking(ends, False)
    signal.set_wakeup_fd(ends)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    print("ready", flush=True)
    links = {}
    while True:
        ready, _, _ = select.select([listener, ended, sys.stdin], [], [])
        if ended in ready:
            os.read(ended, 4096)
            _tell_ends(links)
        if listener in ready:
            link, _ = listener.accept()
            links[_fork(link)] = link
        if sys.stdin in ready:
            return


def _list_modules():
    """Return the names of all modules that a process has imported once it has committed."""
    down, up = os.pipe()
    child = os.fork()
    if not child:
        with tempfile.TemporaryDirectory() as folder:
            _commit(folder)
        os.write(up, " ".join(sys.modules).encode())
        os._exit(0)
    os.close(up)
    with os.fdopen(down) as names:
        found = names.read().split()
    assert os.waitpid(child, 0)[1] == 0
    return found


def _commit(folder):
    import numpy as np

    import mvc

    repo = mvc.Repo.init(folder)
    repo.identity = mvc.Identity("Test", "test@example.org")
    layout = mvc.layout_state({"a": np.arange(9.0), "b": [1, "x"]})
    image = memoryview(bytearray(layout.size_bytes))
    for part in layout.parts:
        part.copy_into(image)
    files = {one.path: image[one.offset :][: one.size_bytes] for one in layout.files}
    for step in (1, 2):
        done = repo.commit_image(files, message="x", step=step, metrics={"loss": 1.0})
        repo.mark_healthy(done.commit)


def _tell_ends(links):
    while links:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            return
        link = links.pop(pid)
        with contextlib.suppress(OSError):  # the run is gone
            link.send(str(os.waitstatus_to_exitcode(status)).encode())
        link.close()


def _fork(link):
    told, descriptors, _, _ = socket.recv_fds(link, _MOST_BYTES, _MOST_DESCRIPTORS)
    pid = os.fork()
    if not pid:
        status = 1
        try:
            _become_writer(*json.loads(told), descriptors)
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    for descriptor in descriptors:
        os.close(descriptor)
    link.send(str(pid).encode())
    return pid


def _become_writer(command, numbers, folder, environment, descriptors):
    """Run ``-c CODE ARGUMENTS`` with the descriptors under the numbers that they had in the run."""
    os.setpgid(0, 0)
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    nothing = os.open(os.devnull, os.O_RDWR)
    moved = [fcntl.fcntl(one, fcntl.F_DUPFD, _FREE) for one in (nothing, nothing, *descriptors)]
    os.closerange(0, _FREE)
    for descriptor, number in zip(moved, (0, 1, 2, *numbers), strict=True):
        os.dup2(descriptor, number)
    os.closerange(_FREE, _FREE + len(moved))
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    sys.argv[:] = [command[0], *command[2:]]
    exec(command[1], {"__name__": "__main__"})


if __name__ == "__main__":
    _serve(sys.argv[1])
