"""``python -m mvc_hooks.lingering``: what is left of a writer whose training was killed.

It holds the memory that the newest commit was made of, and copies of what other machines had of it, and
hands that to the run that goes on from there, which so reads nothing from the disk. It costs that memory
and nothing else: the writer has become a small process that waits at a socket. It ends when the next run
has what it wants, after ten minutes, when the repository is gone, when another one took its place, or when
the machine needs the memory.

Nobody has to trust it: every chunk that is read from there is hashed against the id that the commit
names. Sockets are in a folder that only this user can enter.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import select
import signal
import socket
import stat
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import msgspec

from mvc.interpreter import module_command

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

HELD, DONE = b"held", b"done"
MOST_IMAGES = 200  # descriptors that go in one message: the kernel allows 253
_LINGER_S = 600.0
_LOOK_S = 2.0
_MAX_BYTES = 2**26
_LEAST_FREE = 20  # this part of the machine's memory has to stay free: a twentieth
_MEMINFO = Path("/proc/meminfo")


class Held(msgspec.Struct, frozen=True):
    """What memory holds: the image of a rank that a commit was made of."""

    git_dir: str  # of the repository of the writer that holds it
    branch: str
    commit: str
    rank: int
    size_bytes: int
    # Where in the memory the form of a share is; (0, 0) if one process has it all.
    form: tuple[int, int]
    # Path → offset and length of each file, if one process has it all.
    places: dict[str, tuple[int, int]]


_parse = msgspec.json.Decoder(list[Held]).decode


# The side of the writer.


def linger(images: Sequence[tuple[Held, int]]) -> NoReturn:
    """Become a process that holds memory, by its descriptors, and nothing else of what this one has."""
    listing = os.memfd_create("mvc-held", 0)
    os.write(listing, msgspec.json.encode([held for held, _ in images]))
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in range(3):
        os.dup2(nothing, number)
    descriptors = [listing, *(descriptor for _, descriptor in images)]
    kept = [
        fcntl.fcntl(descriptor, fcntl.F_DUPFD, 3) for descriptor in descriptors
    ]  # an exec leaves them
    for name in os.listdir("/proc/self/fd"):  # locks, sockets: the next run must not wait for them
        if int(name) not in (0, 1, 2, *kept):
            with contextlib.suppress(OSError):
                os.close(int(name))
    command = module_command("mvc_hooks.lingering", *map(str, kept))
    os.execv(command[0], command)  # noqa: S606  our own interpreter and module


def hold(descriptors: Sequence[int], *, patience_s: float = _LINGER_S) -> None:
    """Hand out descriptors, of the listing and of all the memory, until no run can want them any more."""
    (first, *_), folder = read_listing(descriptors[0]), find_folder()
    if folder is None:
        return
    path = folder / f"{name_branch(first.git_dir, first.branch)}-{first.rank}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        path.unlink(missing_ok=True)  # of one before, which notices
        with short_name(path) as name:
            listener.bind(name)
        listener.listen(64)
        mine = _find_inode(path)
        deadline_s = time.monotonic() + patience_s
        links: list[socket.socket] = []
        while (
            _find_inode(path) == mine
            and has_room(0)
            and os.path.isdir(first.git_dir)
            and time.monotonic() < deadline_s
        ):
            if _serve(listener, links, descriptors):
                break
        if _find_inode(path) == mine:
            path.unlink(missing_ok=True)


def _serve(listener: socket.socket, links: list[socket.socket], descriptors: Sequence[int]) -> bool:
    """Answer who comes, for a while; return whether one of them says that it is done."""
    ready, _, _ = select.select([listener, *links], [], [], _LOOK_S)
    for channel in ready:
        if channel is listener:
            link, _ = listener.accept()
            links.append(link)
            with contextlib.suppress(OSError):
                socket.send_fds(link, [HELD], descriptors)
        else:
            with contextlib.suppress(OSError):  # it was killed before it took what was sent
                if channel.recv(len(DONE)) == DONE:
                    return True
            links.remove(channel)
            channel.close()
    return False


# What both sides know.


def find_folder() -> Path | None:
    """Return the folder of the sockets, made if missing; None if others could enter it."""
    home = os.environ.get("XDG_RUNTIME_DIR")
    folder = Path(home, "mvc") if home else Path(tempfile.gettempdir(), f"mvc-{os.getuid()}")
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        status = folder.lstat()
    except OSError:
        return None
    is_private = stat.S_ISDIR(status.st_mode) and not status.st_mode & 0o077
    return folder if is_private and status.st_uid == os.getuid() else None


def has_room(size_bytes: int) -> bool:
    """Return whether the machine could do without so much memory."""
    numbers = dict.fromkeys(("MemTotal:", "MemAvailable:"), 0)
    with contextlib.suppress(OSError):
        for line in _MEMINFO.read_text().split("\n"):
            words = line.split()
            if words and words[0] in numbers:
                numbers[words[0]] = int(words[1]) * 1024
    return numbers["MemAvailable:"] - size_bytes >= numbers["MemTotal:"] / _LEAST_FREE


@contextlib.contextmanager
def short_name(path: Path) -> Iterator[str]:
    """Give a name of a socket that is short enough, however long its path is."""
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


def name_branch(git_dir: str, branch: str) -> str:
    """Return how the names of the sockets of a branch begin."""
    return hashlib.sha256(f"{git_dir}\0{branch}".encode()).hexdigest()[:32]


def _find_inode(path: Path) -> int | None:
    try:
        return path.lstat().st_ino
    except OSError:
        return None


def read_listing(listing: int) -> list[Held]:
    """Return what the descriptor of a text says that is held.

    Raises:
        OSError, ValueError: it is not such a text.
    """
    held = _parse(os.pread(listing, _MAX_BYTES, 0))
    if not held:
        raise ValueError("nothing is held")
    return held


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # its writer ignored it, for the training
    hold([int(number) for number in sys.argv[1:]])
