"""The images of the last run of a branch that its processes still hold on this machine, by commit."""

from __future__ import annotations

import contextlib
import mmap
import os
import socket
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mvc import FormatError
from mvc.training import RunStore
from mvc_hooks.lingering import (
    DONE,
    HELD,
    MOST_IMAGES,
    Held,
    find_folder,
    name_branch,
    read_listing,
    short_name,
)

if TYPE_CHECKING:
    from pathlib import Path

    from mvc import Repo
    from mvc.training import Share

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
        """Let go of it; ``is_done``: no run will want it any more, nor what else is held there."""
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
    all_held: list[Remembered] = []
    for name in sorted(os.listdir(folder)):
        if name.startswith(prefix):
            with contextlib.suppress(OSError, ValueError):  # those of msgspec, too
                all_held += _ask(folder / name)
    wanted, names = [], (str(git_dir), branch)
    for image in all_held:
        if (image.held.git_dir, image.held.branch) == names:
            wanted.append(image)
        else:  # of another branch, whose name has the same hash: that never happens by chance
            image.close(is_done=False)
    return sorted(wanted, key=lambda image: image.held.rank)


def _ask(path: Path) -> list[Remembered]:
    link = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        link.settimeout(_ANSWER_S)
        with short_name(path) as name:
            link.connect(name)
        _, descriptors, _, _ = socket.recv_fds(link, len(HELD), 1 + MOST_IMAGES)
        try:
            listing, *memories = descriptors
            pairs = zip(read_listing(listing), memories, strict=True)
            return [
                Remembered(
                    held, memoryview(mmap.mmap(memory, held.size_bytes, prot=mmap.PROT_READ)), link
                )
                for held, memory in pairs
            ]
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
    except BaseException:
        link.close()
        raise


class Images:
    """What is held; shares may be asked for by several threads."""

    def __init__(self, repo: Repo, branch: str) -> None:
        self._repo = repo
        self._found = find_remembered(repo.git_dir, branch)
        self._shares: dict[str, dict[int, Share]] = {}
        self._lock = threading.Lock()

    def list_shares(self) -> list[tuple[str, int]]:
        """Return (commit, rank of the last run) of everything that several ranks had."""
        return sorted(
            {(image.held.commit, image.held.rank) for image in self._found if image.is_share}
        )

    def find_files(self, commit: str) -> dict[str, memoryview]:
        """Return path → content of the files of a commit that are held whole."""
        files: dict[str, memoryview] = {}
        for image in self._found:
            if image.held.commit == commit and not image.is_share:
                files |= image.files
        for share in self.open_shares(commit).values():
            files |= share.own_files()
        return files

    def find_form(self, commit: str, rank: int) -> bytes | None:
        """Return the form of the share that a rank had."""
        for image in self._find(commit):
            if image.held.rank == rank:
                return image.form
        return None

    def open_shares(self, commit: str) -> dict[int, Share]:
        """Return rank → its share of a commit; what is not the share that it should be is left out."""
        with self._lock:
            if commit not in self._shares:
                shares: dict[int, Share] = {}
                first: Share | None = None
                for image in self._find(commit):
                    with contextlib.suppress(FormatError):
                        share = RunStore(self._repo).open_share(image.image, image.form, first)
                        first = first or share
                        if share.rank == image.held.rank and share.digest == first.digest:
                            shares[share.rank] = share
                self._shares[commit] = shares
            return self._shares[commit]

    def _find(self, commit: str) -> list[Remembered]:
        return [image for image in self._found if image.is_share and image.held.commit == commit]

    def close(self, *, is_done: bool) -> None:
        """Let go of it; ``is_done``: no later run will want what is held."""
        self._shares.clear()
        for image in self._found:
            image.close(is_done=is_done)
        self._found.clear()
