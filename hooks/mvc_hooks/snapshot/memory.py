"""Memory that another process can map through a descriptor; it has no name anywhere.

It is anonymous (``memfd``): it does not count against the size of ``/dev/shm``, which is 64 MiB in
many containers, and it is not left over when the run is killed, since the kernel frees it with the
last process that holds it. A system without ``memfd`` gets an unlinked temporary file. All pages
are allocated when the memory is made: a machine without room fails there, and not by a bus error in
the middle of a copy.

Children that the training forks do not inherit it, so they can neither write to it nor keep it from
being freed. Nor do they keep the branch's lock or the writer's channel: a worker of a data loader
that outlives the run would keep the branch locked and the writer waiting.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import tempfile
import threading
import weakref
from pathlib import Path
from typing import Protocol

import torch

from mvc import StorageError, UsageError

_POPULATE_WRITE = 23  # MADV_POPULATE_WRITE of Linux 5.14; older kernels refuse it harmlessly
_ROUND_BYTES = 2**21
_MEMINFO = Path("/proc/meminfo")
_OWN_GROUP = Path("/proc/self/cgroup")
_GROUPS = Path("/sys/fs/cgroup")

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [
    *(ctypes.c_void_p, ctypes.c_size_t),
    *(ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int64),
]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_FAILED = ctypes.c_void_p(-1).value


class Inherited(Protocol):
    """Something with a descriptor."""

    def drop_in_child(self) -> None:
        """Close it in a forked child, without telling the other side."""


_held: weakref.WeakSet[Inherited] = weakref.WeakSet()


def keep_from_children(thing: Inherited) -> None:
    """Drop a thing in every child that is forked while it exists."""
    _held.add(thing)


def _drop_all() -> None:
    for thing in list(_held):
        thing.drop_in_child()
    _held.clear()


os.register_at_fork(after_in_child=_drop_all)


class SharedMemory:
    """Bytes that this process writes and another one reads; the descriptor is -1 once closed."""

    def __init__(self, size_bytes: int, folder: str | None = None) -> None:
        """Allocate at least that many bytes, or in a folder an unlinked file."""
        self.size_bytes = -(-max(size_bytes, 1) // _ROUND_BYTES) * _ROUND_BYTES
        room = measure_room() if folder is None else None
        if room is not None and self.size_bytes > room:
            raise _no_room(self.size_bytes, f"{room:,} are free")
        self.descriptor = _open_nameless(folder)
        try:
            # Takes the pages now: a sparse file would end the run by SIGBUS when they run out.
            os.posix_fallocate(self.descriptor, 0, self.size_bytes)
            self._map = _map_pages(self.descriptor, self.size_bytes)
        except (OSError, ValueError, OverflowError) as error:
            os.close(self.descriptor)
            raise _no_room(
                self.size_bytes, getattr(error, "strerror", None) or str(error)
            ) from error
        self.bytes = torch.frombuffer(self._map, dtype=torch.uint8)
        self._is_pinned = False
        # Not at exit: then the kernel closes it anyway, after everything that may still use it.
        self._free = weakref.finalize(self, os.close, self.descriptor)
        self._free.atexit = False
        keep_from_children(self)
        self._touching = threading.Thread(target=self._touch, daemon=True)
        self._touching.start()

    def _touch(self) -> None:
        """Map all pages, so that the first copy is as fast as the others."""
        _libc.madvise(self.bytes.data_ptr(), self.size_bytes, _POPULATE_WRITE)

    def view(self, start: int = 0, size_bytes: int | None = None) -> memoryview:
        """Return a range of it."""
        stop = self.size_bytes if size_bytes is None else start + size_bytes
        return memoryview(self._map).cast("B")[start:stop]

    def wait_ready(self) -> None:
        """Wait until all of it is mapped."""
        if self.descriptor < 0:
            raise UsageError("the memory of this snapshot is closed, or another process's")
        self._touching.join()

    def pin(self) -> None:
        """Pin it for CUDA devices, so that copies are asynchronous; if CUDA refuses, they are slower."""
        self.wait_ready()
        if not self._is_pinned and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]  # torch has no types
            result = torch.cuda.cudart().cudaHostRegister(  # type: ignore[no-untyped-call]  # torch has no types
                self.bytes.data_ptr(), self.size_bytes, 0
            )
            self._is_pinned = int(result) == 0

    def close(self) -> None:
        """Free it; what another process mapped stays mapped there."""
        if self.descriptor < 0:
            return
        self.wait_ready()
        if self._is_pinned:
            torch.cuda.cudart().cudaHostUnregister(self.bytes.data_ptr())  # type: ignore[no-untyped-call]  # torch has no types
            self._is_pinned = False
        self.drop_in_child()

    def drop_in_child(self) -> None:
        """Close the descriptor; a forked child does not inherit the mapping."""
        self._free()
        self.descriptor = -1


def _map_pages(descriptor: int, size_bytes: int) -> ctypes.Array[ctypes.c_uint8]:
    """Map a file, for this process only; the mapping lives as long as anything that views it.

    ``mmap.mmap`` would keep a second descriptor, which forked children inherit.
    """

    class Pages(ctypes.c_uint8 * size_bytes):  # type: ignore[misc]  # the length is not a constant
        """The bytes; plain arrays would not allow weak references."""

    prot = mmap.PROT_READ | mmap.PROT_WRITE
    address = _libc.mmap(None, size_bytes, prot, mmap.MAP_SHARED, descriptor, 0)
    if address == _FAILED:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    pages: ctypes.Array[ctypes.c_uint8] = Pages.from_address(address)
    # Views may outlive the SharedMemory, so the mapping lives as long as the array under them.
    weakref.finalize(pages, _libc.munmap, address, size_bytes).atexit = False
    if hasattr(mmap, "MADV_DONTFORK"):
        _libc.madvise(address, size_bytes, mmap.MADV_DONTFORK)
    return pages


def _no_room(size_bytes: int, why: str) -> StorageError:
    return StorageError(
        f"there is no room for a snapshot of {size_bytes:,} bytes: {why}",
        hint="give the machine more memory, or set ring=None or in_flight=1",
    )


def _open_nameless(folder: str | None) -> int:
    try:
        if folder is None and hasattr(os, "memfd_create"):
            return os.memfd_create("mvc-snapshot", os.MFD_CLOEXEC)
        with tempfile.TemporaryFile(dir=folder) as file:
            return os.dup(file.fileno())
    except OSError as error:
        where = "in memory" if folder is None else f"in {folder}"
        raise StorageError(f"cannot make a file {where}: {error.strerror}") from error


def measure_room() -> int | None:
    """Return the bytes that machine and control group of this process have left, if known.

    The kernel promises more memory than it has, and kills a process when the pages are used.
    """
    rooms, numbers = [_group_room()], _read_numbers(_MEMINFO)
    if "MemAvailable:" in numbers:
        rooms.append((numbers["MemAvailable:"] + numbers.get("SwapFree:", 0)) * 1024)
    return min((room for room in rooms if room is not None), default=None)


def _group_room() -> int | None:
    """Return what is left of the limit of this process's own group (cgroup v2)."""
    with contextlib.suppress(OSError, ValueError, StopIteration):
        line = next(text for text in _OWN_GROUP.read_text().split("\n") if text.startswith("0::"))
        group = _GROUPS / line[3:].lstrip("/")
        limit = int((group / "memory.max").read_text())  # fails for "max", which means no limit
        used = int((group / "memory.current").read_text())
        cache = _read_numbers(group / "memory.stat")
        # The page cache counts as used, but the kernel drops it before it kills anything.
        dropped = cache.get("inactive_file", 0) + cache.get("active_file", 0)
        return max(0, limit - used + dropped)
    return None


def _read_numbers(path: Path) -> dict[str, int]:
    numbers = {}
    with contextlib.suppress(OSError):
        for line in path.read_text().split("\n"):
            words = line.split()
            if len(words) > 1 and words[1].isdigit():
                numbers[words[0]] = int(words[1])
    return numbers
