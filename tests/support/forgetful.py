"""A disk that forgets: what a folder looks like after the power went at a chosen moment.

``ForgetfulDisk`` watches a folder. It counts every call that changes names or syncs (fsync,
rename, unlink, mkdir, ...) and raises ``PowerLoss`` in place of call number ``stop_at``; from then
on every call that would change the disk raises too, so no cleanup code can tidy up a machine that
has no power. ``survivors`` then builds what a pessimistic file system would hold after reboot:

- a file has the bytes it had at its last fsync; never synced means empty;
- a folder has the names it had at its last fsync; never synced means empty.

``lose_power`` does all that for a verb at one step after another.

It patches the ``os`` module, so dulwich's writes are seen as well as ours. Inodes are kept open for
as long as the disk lives: a number that is used twice would mix up two files.
"""

from __future__ import annotations

import os
import shutil
import stat
import threading
from pathlib import Path

import pytest

_NAME_CALLS = ("rename", "replace", "unlink", "remove", "mkdir", "rmdir", "symlink", "link")
_WRITE_CALLS = ("write", "writev", "pwrite", "pwritev", "truncate", "ftruncate")


class PowerLoss(BaseException):
    """The machine is off."""


class ForgetfulDisk:
    def __init__(self, root: Path, stop_at: int | None = None) -> None:
        self.root = root
        self.stop_at = stop_at
        self.steps = 0
        self.is_off = False
        self._lock = threading.RLock()
        self._originals = {}
        self._kept = []
        self._files = {}  # inode -> (bytes, mtime) at the last fsync
        self._folders = {}  # inode -> {name: (inode, mode, link text, mtime)} at the last fsync

    def __enter__(self):
        for folder, _, names in os.walk(self.root):
            self._remember_folder(folder)
            for name in names:
                path = os.path.join(folder, name)
                if not os.path.islink(path):
                    self._remember_file(path)
        self._patch("fsync", self._fsync)
        self._patch("fdatasync", self._fsync)
        for name in _NAME_CALLS:
            self._patch(name, self._counted(getattr(os, name)))
        for name in _WRITE_CALLS:
            self._patch(name, self._powered(getattr(os, name)))
        self._patch("open", self._open)
        return self

    def __exit__(self, *exc_info):
        for name, original in self._originals.items():
            setattr(os, name, original)
        return False

    def close(self):
        for descriptor in self._kept:
            os.close(descriptor)
        self._kept = []

    def _patch(self, name, replacement):
        self._originals[name] = getattr(os, name)
        setattr(os, name, replacement)

    def _step(self):
        with self._lock:
            if self.is_off:
                raise PowerLoss
            if self.stop_at is not None and self.steps == self.stop_at:
                self.is_off = True
                raise PowerLoss
            self.steps += 1

    def _counted(self, original):
        def call(*args, **kwargs):
            with self._lock:
                self._step()
                return original(*args, **kwargs)

        return call

    def _powered(self, original):
        def call(*args, **kwargs):
            if self.is_off:
                raise PowerLoss
            return original(*args, **kwargs)

        return call

    def _open(self, path, flags, *args, **kwargs):
        if self.is_off and flags & (os.O_CREAT | os.O_WRONLY | os.O_RDWR | os.O_TRUNC):
            raise PowerLoss
        return self._originals["open"](path, flags, *args, **kwargs)

    def _fsync(self, target):
        descriptor = target if isinstance(target, int) else target.fileno()
        with self._lock:
            self._step()
            if stat.S_ISDIR(os.fstat(descriptor).st_mode):
                self._remember_folder(f"/proc/self/fd/{descriptor}")
            else:
                self._remember_file(f"/proc/self/fd/{descriptor}")

    def _remember_file(self, path):
        descriptor = self._keep(path, os.O_RDONLY)
        found = os.fstat(descriptor)
        self._files[found.st_ino] = (os.pread(descriptor, found.st_size, 0), found.st_mtime_ns)

    def _remember_folder(self, path):
        descriptor = self._keep(path, os.O_RDONLY | os.O_DIRECTORY)
        names = {}
        for name in os.listdir(descriptor):
            found = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
            text = os.readlink(name, dir_fd=descriptor) if stat.S_ISLNK(found.st_mode) else None
            names[name] = (found.st_ino, found.st_mode, text, found.st_mtime_ns)
        self._folders[os.fstat(descriptor).st_ino] = names

    def _keep(self, path, flags):
        opener = self._originals.get("open", os.open)
        descriptor = opener(path, flags)
        self._kept.append(descriptor)
        return descriptor

    def survivors(self, target: Path) -> None:
        """Build in ``target`` what the disk holds after the power came back."""
        self._build(os.stat(self.root).st_ino, target)

    def _build(self, inode, target):
        target.mkdir()
        for name, (child, mode, text, link_mtime_ns) in self._folders.get(inode, {}).items():
            path = target / name
            if stat.S_ISDIR(mode):
                self._build(child, path)
            elif stat.S_ISLNK(mode):
                path.symlink_to(text)
                os.utime(path, ns=(link_mtime_ns, link_mtime_ns), follow_symlinks=False)
            else:
                data, mtime_ns = self._files.get(child, (b"", 0))
                path.write_bytes(data)
                path.chmod(stat.S_IMODE(mode))
                os.utime(path, ns=(mtime_ns, mtime_ns))


def count_steps(verb, root):
    """Run a verb to its end; return at how many steps the power can go."""
    with ForgetfulDisk(root) as disk:
        verb(root)
    disk.close()
    return disk.steps


def lose_power(verb, origin, folder, steps):
    """Run a verb on copies of a folder, each stopped at one of the steps; yield (where, what is left).

    That is looked at twice: the pessimist's disk forgot all that was not synced, and ``work`` kept
    everything up to the stop, as after the death of the process.
    """
    work, pessimist = folder / "work", folder / "pessimist"
    for step in steps:
        shutil.copytree(origin, work, symlinks=True)
        with ForgetfulDisk(work, stop_at=step) as disk, pytest.raises(PowerLoss):
            verb(work)
        disk.survivors(pessimist)
        disk.close()
        for survivor in (pessimist, work):
            yield f"step {step}, {survivor.name}", survivor
            shutil.rmtree(survivor)
