"""A disk with a known number of free bytes, made by patching ``os``: runs everywhere, at every level.

Writes below the watched folder take from what is free and fail with ENOSPC beyond it, after having
written what still fits, as real file systems do. Removing or replacing a file gives its bytes back.
Names, folders and inodes cost nothing: a real small file system is tested beside this one.
"""

from __future__ import annotations

import errno
import fcntl
import os
import threading
from pathlib import Path


class FullDisk:
    def __init__(self, root: Path, free_bytes: int) -> None:
        self.root = str(root)
        self.free_bytes = free_bytes
        self.used_bytes = 0
        self._lock = threading.RLock()
        self._originals = {}

    def __enter__(self):
        for name in ("write", "writev", "pwrite", "unlink", "remove", "replace", "rename"):
            self._originals[name] = getattr(os, name)
            setattr(os, name, getattr(self, f"_{name}"))
        return self

    def __exit__(self, *exc_info):
        for name, original in self._originals.items():
            setattr(os, name, original)
        return False

    def _is_here(self, descriptor):
        return os.readlink(f"/proc/self/fd/{descriptor}").startswith(self.root)

    def _take(self, descriptor, end, wanted):
        """Return how many bytes may be written up to ``end``; what overwrites is free."""
        growth = max(0, end - os.fstat(descriptor).st_size)
        with self._lock:
            given = min(growth, self.free_bytes)
            if wanted and growth > given and wanted - (growth - given) <= 0:
                raise OSError(errno.ENOSPC, "No space left on device")
            self.free_bytes -= given
            self.used_bytes += given
        return wanted - (growth - given)

    def _write(self, descriptor, data):
        if not self._is_here(descriptor):
            return self._originals["write"](descriptor, data)
        appends = fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_APPEND
        position = os.lseek(descriptor, 0, os.SEEK_END if appends else os.SEEK_CUR)
        count = self._take(descriptor, position + len(data), len(data))
        return self._originals["write"](descriptor, memoryview(data)[:count])

    def _writev(self, descriptor, buffers):
        if not self._is_here(descriptor):
            return self._originals["writev"](descriptor, buffers)
        return self._write(descriptor, b"".join(buffers))

    def _pwrite(self, descriptor, data, offset):
        if not self._is_here(descriptor):
            return self._originals["pwrite"](descriptor, data, offset)
        count = self._take(descriptor, offset + len(data), len(data))
        return self._originals["pwrite"](descriptor, memoryview(data)[:count], offset)

    def _give_back(self, path):
        try:
            found = os.lstat(path)
        except OSError:
            return
        if str(path).startswith(self.root) and not os.path.isdir(path):
            with self._lock:
                self.free_bytes += found.st_size

    def _unlink(self, path, *args, **kwargs):
        self._give_back(path)
        return self._originals["unlink"](path, *args, **kwargs)

    _remove = _unlink

    def _replace(self, source, target, *args, **kwargs):
        self._give_back(target)
        return self._originals["replace"](source, target, *args, **kwargs)

    def _rename(self, source, target, *args, **kwargs):
        self._give_back(target)
        return self._originals["rename"](source, target, *args, **kwargs)
