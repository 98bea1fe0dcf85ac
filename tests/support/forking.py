"""Commands of Python that begin at once: forked from a process that has everything imported.

Importing torch costs more than most of what a test has a process do with it. So a *server* is started once,
which imports what its module of preparations says, and forks a child for every command: a process like any
other, with a group, an environment and descriptors of its own, and the exit status that Python would give.

    python -m support.forking SOCKET PREPARATIONS

A server ends with the process that started it.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
from pathlib import Path

_MOST_BYTES = 2**17
_MOST_DESCRIPTORS = 64
_FREE = 512
"""Descriptors from here on are nobody's."""


@contextlib.contextmanager
def forking(preparations):
    """Start a server, and end it with the block; give the path of its socket."""
    with tempfile.TemporaryDirectory(prefix="mvc-forking-") as folder:
        path = str(Path(folder, "socket"))
        environment = dict(os.environ, PYTHONPATH=str(Path(__file__).parents[1]))
        with subprocess.Popen(
            [sys.executable, "-m", "support.forking", path, preparations],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment,
        ) as process:  # fmt: skip
            assert process.stdout.readline(), "it did not start"
            try:
                yield path
            finally:
                process.stdin.write(b"end")  # a process that a test has left may hold the pipe open
                process.stdin.close()


class Forked:
    """What ``subprocess.Popen`` is to a command, forked by the server of a socket.

    Args:
        path: that of the socket.
        command: what follows ``python``: ``-c CODE`` or a file, and its arguments.
        descriptors: number in the child → descriptor here. Others of 0, 1 and 2 are ``/dev/null``.
        environment: the whole of it.
        imports: modules that the server imports first, if it has not yet.
    """

    def __init__(self, path, command, descriptors, environment, imports=()):
        self._link = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._link.connect(path)
        told = [command, list(descriptors), os.getcwd(), environment, imports]
        socket.send_fds(self._link, [json.dumps(told).encode()], list(descriptors.values()))
        self.pid, self.returncode = int(self._link.recv(_MOST_BYTES)), None

    def fileno(self):
        """Return a descriptor that can be read once the process has ended."""
        return self._link.fileno()

    def poll(self):
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout=None):
        if self.returncode is None:
            if not select.select([self._link], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired("forked", timeout)
            told = self._link.recv(_MOST_BYTES)
            self.returncode = int(told) if told else -signal.SIGKILL
            self._link.close()
        return self.returncode

    def kill(self):
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)


# The process that forks.


def import_for(task):
    """Import what a process has imported once it has done a task, which is given a folder."""
    down, up = os.pipe()
    child = os.fork()
    if not child:
        try:
            with tempfile.TemporaryDirectory() as folder:
                task(folder)
            os.write(up, " ".join(sys.modules).encode())
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    os.close(up)
    with os.fdopen(down) as names:
        found = names.read().split()
    assert os.waitpid(child, 0)[1] == 0
    for name in found:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


def _serve(path, preparations):
    importlib.import_module(preparations).prepare()
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


def _tell_ends(links):
    while links:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            return
        link = links.pop(pid)
        with contextlib.suppress(OSError):  # who asked for it is gone
            link.send(str(os.waitstatus_to_exitcode(status)).encode())
        link.close()


def _fork(link):
    told, descriptors, _, _ = socket.recv_fds(link, _MOST_BYTES, _MOST_DESCRIPTORS)
    command, numbers, folder, environment, imports = json.loads(told)
    if not sys.modules.keys() >= set(imports):
        for name in imports:
            importlib.import_module(name)
        gc.freeze()
    pid = os.fork()
    if not pid:
        _move_descriptors(numbers, descriptors)
        os._exit(_run(command, folder, environment))
    for descriptor in descriptors:
        os.close(descriptor)
    link.send(str(pid).encode())
    return pid


def _move_descriptors(numbers, descriptors):
    """Have the descriptors under the numbers that the command knows, and no others."""
    signal.set_wakeup_fd(-1)
    nothing = os.open(os.devnull, os.O_RDWR)
    moved = [fcntl.fcntl(one, fcntl.F_DUPFD, _FREE) for one in (*[nothing] * 3, *descriptors)]
    os.closerange(0, _FREE)
    for descriptor, number in zip(moved, (0, 1, 2, *numbers), strict=True):
        os.dup2(descriptor, number)
    os.closerange(_FREE, _FREE + len(moved))


def _run(command, folder, environment):
    """Run a command as Python does, to its end; return its exit status."""
    os.setpgid(0, 0)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    status = 0
    try:
        _execute(command)
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException as error:
        traceback.print_exc()
        status = 1
        if isinstance(error, KeyboardInterrupt):
            sys.stderr.flush()
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGINT)
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    return status


def _execute(command):
    if command[0] == "-c":
        sys.argv[:] = ["-c", *command[2:]]
        exec(command[1], {"__name__": "__main__"})
    else:
        sys.argv[:] = command
        sys.path.insert(0, str(Path(command[0]).parent))
        runpy.run_path(command[0], run_name="__main__")


if __name__ == "__main__":
    _serve(*sys.argv[1:])
