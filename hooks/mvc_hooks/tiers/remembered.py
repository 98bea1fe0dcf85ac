"""What processes of the last run of a branch still hold in memory, on this machine."""

from __future__ import annotations

import contextlib
import mmap
import os
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mvc_hooks.lingering import (
    DONE,
    HELD,
    MOST_IMAGES,
    Held,
    find_folder,
    name_branch,
    read_choices,
    short_name,
)

if TYPE_CHECKING:
    from pathlib import Path

_ANSWER_S = 5.0


@dataclass(frozen=True, slots=True, eq=False)
class Remembered:
    """The memory of a rank of the last run; ``link`` leads to the process that holds it."""

    held: Held
    memory: memoryview
    link: socket.socket

    @property
    def is_share(self) -> bool:
        """Whether several ranks had the state, and this is what one of them kept of it."""
        return self.held.form != (0, 0)

    @property
    def image(self) -> memoryview:
        """The image of a share, without its form."""
        return self.memory[: self.held.form[0]]

    @property
    def form(self) -> bytes:
        """The form of the share."""
        start, size_bytes = self.held.form
        return bytes(self.memory[start : start + size_bytes])

    @property
    def files(self) -> dict[str, memoryview]:
        """Path → bytes of the files of a run of one process."""
        places = self.held.places.items()
        return {path: self.memory[start : start + size] for path, (start, size) in places}

    def close(self, *, is_done: bool) -> None:
        """Let go of it; ``is_done``: nobody will want it any more, nor what else is held there."""
        with contextlib.suppress(OSError):
            if is_done:
                self.link.send(DONE)
            self.link.close()


def find_remembered(git_dir: Path, branch: str) -> list[Remembered]:
    """Return what processes of the last run of a branch hold on this machine, by rank."""
    folder = find_folder()
    if folder is None:
        return []
    prefix = f"{name_branch(str(git_dir), branch)}-"
    found: list[Remembered] = []
    for name in sorted(os.listdir(folder)):
        if name.startswith(prefix):
            with contextlib.suppress(OSError, ValueError):  # those of msgspec, too
                found += _ask(folder / name)
    wanted, names = [], (str(git_dir), branch)
    for one in found:
        if (one.held.git_dir, one.held.branch) == names:
            wanted.append(one)
        else:  # of another branch, whose name has the same hash: nobody does that by chance
            one.close(is_done=False)
    return sorted(wanted, key=lambda one: one.held.rank)


def _ask(path: Path) -> list[Remembered]:
    link = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        link.settimeout(_ANSWER_S)
        with short_name(path) as name:
            link.connect(name)
        _, descriptors, _, _ = socket.recv_fds(link, len(HELD), 1 + MOST_IMAGES)
        try:
            told, *memories = descriptors
            pairs = zip(read_choices(told), memories, strict=True)
            return [Remembered(held, _map(memory, held), link) for held, memory in pairs]
        finally:
            for one in descriptors:
                os.close(one)
    except BaseException:
        link.close()
        raise


def _map(memory: int, held: Held) -> memoryview:
    return memoryview(mmap.mmap(memory, held.size_bytes, prot=mmap.PROT_READ))
