"""The only module that renames, syncs or locks files: durability is decided here.

Order of a durable write: a temporary file in the target's own folder, write, length check, fsync,
rename over the target, fsync of the folder. After a crash the target holds its old or its new
bytes, never a mixture, and a stray ``*.mvc-tmp`` file at worst.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import os
import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mvc.errors import ConflictError, CorruptionError, StorageError, translate_os_errors

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path
    from typing import BinaryIO, Self

TEMP_SUFFIX = ".mvc-tmp"
WRITEBACK_BYTES = 4 << 20
"""Each time so much is written at offsets, the disk begins with it: the sync at the end waits less."""
_WRITEV_LIMIT = 512  # below IOV_MAX (1024) on every system we know

Buffer = bytes | bytearray | memoryview

KINDS = {
    stat.S_IFREG: "a file",
    stat.S_IFDIR: "a folder",
    stat.S_IFLNK: "a link",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}
"""What a path may be, by the type bits of its mode."""


@dataclass(frozen=True, slots=True)
class FileStat:
    """What tells whether a file changed without reading it (Git's stat data)."""

    size_bytes: int  # length (of the link text for a symlink)
    mtime_ns: int  # time of the last change of the content
    ctime_ns: int  # time of the last change of content or metadata
    inode: int
    device: int
    mode: int  # st_mode with type and permission bits

    @property
    def identity(self) -> tuple[int, int]:
        """What no other file has while this one exists."""
        return self.device, self.inode

    @property
    def is_regular(self) -> bool:
        """Whether this is an ordinary file."""
        return stat.S_ISREG(self.mode)

    @property
    def is_symlink(self) -> bool:
        """Whether this is a symbolic link."""
        return stat.S_ISLNK(self.mode)

    @property
    def is_directory(self) -> bool:
        """Whether this is a folder."""
        return stat.S_ISDIR(self.mode)

    @property
    def is_executable(self) -> bool:
        """Whether the owner may execute it."""
        return bool(self.mode & stat.S_IXUSR)


def _from_os(result: os.stat_result) -> FileStat:
    return FileStat(
        size_bytes=result.st_size,
        mtime_ns=result.st_mtime_ns,
        ctime_ns=result.st_ctime_ns,
        inode=result.st_ino,
        device=result.st_dev,
        mode=result.st_mode,
    )


def find_stat(path: Path | str) -> FileStat | None:
    """Return the stat of a path itself (links are not followed), or None if there is nothing."""
    try:
        return _from_os(os.lstat(path))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError:
        with translate_os_errors(f"look at {path}"):
            raise


def folder_bytes(folder: Path) -> int:
    """Return the length of all files in a folder and below it that stay where they are meanwhile."""
    places = (os.path.join(place, name) for place, _, names in os.walk(folder) for name in names)
    return sum(stat.size_bytes for stat in map(find_stat, places) if stat is not None)


class RealFolders:
    """Which folders below a root are reached without following a link.

    For one pass over a worktree: each folder is looked at once, however many files are in it, and
    what changes during the pass is not seen.
    """

    def __init__(self, root: Path) -> None:
        self._root = f"{root}{os.sep}"
        self._known = {"": True}

    def __contains__(self, folder: str) -> bool:
        missing = []
        while folder not in self._known:
            missing.append(folder)
            folder = folder.rpartition("/")[0]
        is_real = self._known[folder]
        for inner in reversed(missing):
            if is_real:
                stat = find_stat(self._root + inner)
                is_real = stat is not None and stat.is_directory
            self._known[inner] = is_real
        return is_real


def stat_descriptor(descriptor: int) -> FileStat:
    """Return the stat of an open file."""
    return _from_os(os.fstat(descriptor))


def fsync_dir(folder: Path | str) -> None:
    """Make the names in a folder durable."""
    with translate_os_errors(f"sync folder {folder}"):
        _fsync(folder, os.O_RDONLY | os.O_DIRECTORY)


def fsync_file(path: Path | str) -> None:
    """Make the bytes of an existing file durable (not its name)."""
    with translate_os_errors(f"sync {path}"):
        _fsync(path, os.O_RDONLY)


def _fsync(path: Path | str, flags: int) -> None:
    with _opened(path, flags) as descriptor:
        os.fsync(descriptor)


@contextlib.contextmanager
def _opened(path: Path | str, flags: int, mode: int = 0o644) -> Iterator[int]:
    descriptor = os.open(path, flags | os.O_CLOEXEC, mode)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def open_file(path: Path | str) -> BinaryIO:
    """Open a file for reading, links followed; never waits, as opening a pipe would.

    A folder is an IsADirectoryError, anything else that holds no bytes a CorruptionError.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno != errno.ENXIO:  # a socket
            raise
        kind = stat.S_IFSOCK
    else:
        kind = stat.S_IFMT(os.fstat(descriptor).st_mode)
        if kind == stat.S_IFREG:
            return os.fdopen(descriptor, "rb")
        os.close(descriptor)
    if kind == stat.S_IFDIR:
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    raise CorruptionError(f"{path} is {KINDS[kind]}, not a file", hint=f"remove {path}")


def reserve_space(path: Path, size_bytes: int) -> None:
    """Fill a scratch file with zeros: once it is removed, that much space is there to use.

    If there is less, the file is gone again.
    """
    with translate_os_errors(f"reserve {size_bytes:,} bytes in {path.parent}"):
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
        with _opened(path, flags, 0o600) as descriptor:
            try:
                write_at(descriptor, memoryview(bytes(size_bytes)), 0)
            except BaseException:
                path.unlink()
                raise


def make_dirs(folder: Path, *, durable: bool = True) -> None:
    """Create a folder and its parents; each new name is synced into its parent."""
    missing: list[Path] = []
    probe = folder
    while not probe.is_dir():
        missing.append(probe)
        probe = probe.parent
    for path in reversed(missing):
        with translate_os_errors(f"create folder {path}"), contextlib.suppress(FileExistsError):
            path.mkdir()
        if durable:
            fsync_dir(path.parent)


def write_all(descriptor: int, buffers: Sequence[Buffer]) -> int:
    """Write all buffers at the descriptor's position; return the bytes written."""
    views = [memoryview(buffer).cast("B") for buffer in buffers if len(buffer)]
    total = sum(len(view) for view in views)
    while views:
        written = os.writev(descriptor, views[:_WRITEV_LIMIT])
        while views and written >= len(views[0]):
            written -= len(views.pop(0))
        if views and written:
            views[0] = views[0][written:]
    return total


def write_at(descriptor: int, buffer: memoryview, offset: int) -> None:
    """Write a whole buffer at an offset (any thread, any order)."""
    while buffer:
        written = os.pwrite(descriptor, buffer, offset)
        buffer = buffer[written:]
        offset += written


def read_at(descriptor: int, buffer: memoryview, offset: int) -> int:
    """Fill the buffer from an offset; return the bytes read, fewer only at the end of file."""
    done = 0
    while done < len(buffer):
        count = os.preadv(descriptor, [buffer[done:]], offset + done)
        if count == 0:
            break
        done += count
    return done


@functools.cache
def _find_writeback() -> Callable[[int, int, int, int], object] | None:
    import ctypes  # noqa: PLC0415  import cost

    call = getattr(ctypes.CDLL(None), "sync_file_range", None)  # Linux
    if call is not None:
        call.argtypes = ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint
    return call


def start_writeback(descriptor: int) -> None:
    """Ask the kernel to begin writing a file out, if it can be asked; promises nothing."""
    begin = _find_writeback()
    if begin is not None:
        begin(descriptor, 0, 0, 2)  # SYNC_FILE_RANGE_WRITE, to the end


class DurableFile:
    """A file being written next to its target; visible and durable only after ``publish``.

    A writer that failed once refuses everything but ``abort``. Leaving the ``with`` block
    without ``publish`` removes the temporary file.
    """

    def __init__(self, folder: Path, *, mode: int = 0o644, name: str | None = None) -> None:
        """Open a temporary file in ``folder``, the folder of the later target.

        ``name`` is for a file that others look for, such as a lock; one that exists already is a
        FileExistsError.
        """
        self.folder = folder
        self.path = folder / (name or f"{os.urandom(8).hex()}{TEMP_SUFFIX}")
        self.size_bytes = 0
        self._dirty_bytes = 0
        self._failed = False
        self._published = False
        with translate_os_errors(f"create a file in {folder}"):
            flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            self.descriptor = os.open(self.path, flags, mode)
        with contextlib.suppress(OSError):  # no locks on this file system: its age must do
            fcntl.flock(self.descriptor, fcntl.LOCK_EX)  # tells that its writer lives

    def _check_usable(self) -> None:
        if self._failed or self._published or self.descriptor < 0:
            raise StorageError(f"writer of {self.path} is closed or failed before")

    @contextlib.contextmanager
    def _trying_to(self, what: str) -> Iterator[None]:
        self._check_usable()
        try:
            with translate_os_errors(f"{what} {self.path}"):
                yield
        except BaseException:
            self._failed = True
            raise

    def write(self, buffers: Sequence[Buffer]) -> None:
        """Append buffers."""
        with self._trying_to("write"):
            self.size_bytes += write_all(self.descriptor, buffers)

    def write_at(self, buffer: memoryview, offset: int) -> None:
        """Write a buffer at an offset; callable from many threads."""
        with self._trying_to("write"):
            write_at(self.descriptor, buffer, offset)
        self._dirty_bytes += len(buffer)  # threads may lose a count, which only delays a hint
        if self._dirty_bytes >= WRITEBACK_BYTES:
            self._dirty_bytes = 0
            start_writeback(self.descriptor)

    def sync(self) -> None:
        """Make the bytes durable (not yet the name)."""
        with self._trying_to("sync"):
            os.fsync(self.descriptor)

    def publish(
        self,
        target: Path,
        *,
        expected_bytes: int | None = None,
        read_only: bool = False,
        sync_folder: bool = True,
    ) -> FileStat:
        """Check the length, sync, rename onto ``target``, sync the folder; return the stat.

        ``target`` is in the folder the file was created in; its length must be
        ``expected_bytes``, by default the bytes appended. A caller that puts many files into a
        folder passes ``sync_folder=False``, and syncs it itself once they are there.
        """
        self._check_usable()
        expected_bytes = self.size_bytes if expected_bytes is None else expected_bytes
        self._failed = True  # until everything below went well
        with translate_os_errors(f"publish {target}"):
            actual_bytes = os.fstat(self.descriptor).st_size
            if actual_bytes != expected_bytes:
                raise StorageError(
                    f"{self.path} has {actual_bytes:,} bytes after writing {expected_bytes:,}"
                )
            if read_only:
                os.fchmod(self.descriptor, 0o444)
            os.fsync(self.descriptor)
            os.replace(self.path, target)
            self._published = True
            if sync_folder:
                fsync_dir(self.folder)
            result = stat_descriptor(self.descriptor)
        self._failed = False
        self.close()
        return result

    def keep(self, *, synced: bool = True) -> Path:
        """Make the bytes durable and leave the file under its temporary name, which is returned.

        For a caller that renames several files together later (``replace_staged``); the name is
        durable once the folder is synced. With ``synced=False`` the caller syncs the file, too.
        """
        if synced:
            self.sync()
        self._published = True
        self.close()
        return self.path

    def abort(self) -> None:
        """Remove the temporary file; harmless after ``publish``."""
        if not self._published:
            with contextlib.suppress(OSError):
                self.path.unlink()
        self.close()

    def close(self) -> None:
        """Close the descriptor."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.abort()


def replace_staged(staged: Path, target: Path) -> None:
    """Rename a durable staged file onto its target; the caller syncs the folders afterwards."""
    with translate_os_errors(f"replace {target}"):
        os.replace(staged, target)


def write_durable(target: Path, buffers: Sequence[Buffer]) -> FileStat:
    """Write a whole file durably in one go, replacing what is there."""
    with DurableFile(target.parent) as file:
        file.write(buffers)
        return file.publish(target)


def write_symlink(target: Path, text: bytes) -> FileStat:
    """Make ``target`` a symbolic link with that text, replacing what is there, durably."""
    temporary = target.parent / f"{os.urandom(8).hex()}{TEMP_SUFFIX}"
    with translate_os_errors(f"create link {target}"):
        os.symlink(text, os.fsencode(temporary))
        try:
            os.replace(temporary, target)
        except BaseException:
            temporary.unlink()
            raise
    fsync_dir(target.parent)
    return _from_os(os.lstat(target))


def remove_file(*paths: Path) -> None:
    """Remove files or links durably, in any order; one that is not there is not an error."""
    folders: set[Path] = set()
    for path in paths:
        with (
            translate_os_errors(f"remove {path}"),
            contextlib.suppress(FileNotFoundError, NotADirectoryError),
        ):
            path.unlink()
            folders.add(path.parent)
    for folder in folders:
        fsync_dir(folder)


def remove_empty_dirs(folder: Path, stop: Path) -> None:
    """Remove ``folder`` and its parents below ``stop`` as long as they are empty."""
    while folder != stop and stop in folder.parents:
        try:
            folder.rmdir()
        except OSError:
            return
        folder = folder.parent


def append_line(path: Path, line: bytes) -> int:
    """Append one line, with its line feed, to a log durably; return the log's length before it.

    A torn last line, left by a crash, is cut off first: its writer never returned. Callers take
    turns under a lock of theirs.
    """
    make_dirs(path.parent)
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW
    with translate_os_errors(f"append to {path}"), _opened(path, flags) as descriptor:
        end = _end_of_last_line(descriptor)
        os.ftruncate(descriptor, end)
        write_at(descriptor, memoryview(line), end)
        os.fsync(descriptor)
    if end == 0:
        fsync_dir(path.parent)
    return end


def _end_of_last_line(descriptor: int) -> int:
    position = os.fstat(descriptor).st_size
    while position:
        start = max(0, position - 65536)
        buffer = bytearray(position - start)
        read_at(descriptor, memoryview(buffer), start)
        found = buffer.rfind(b"\n")
        if found >= 0:
            return start + found + 1
        position = start
    return 0


def truncate_file(path: Path, size_bytes: int) -> None:
    """Cut a file to a length durably; a shorter one, or none at all, is not an error."""
    with (
        translate_os_errors(f"truncate {path}"),
        contextlib.suppress(FileNotFoundError, IsADirectoryError, NotADirectoryError),
        _opened(path, os.O_RDWR | os.O_NOFOLLOW) as descriptor,
    ):
        if os.fstat(descriptor).st_size > size_bytes:
            os.ftruncate(descriptor, size_bytes)
            os.fsync(descriptor)


def exclusive_lock(path: Path, *, wait: bool = True) -> AbstractContextManager[int]:
    """Hold an advisory lock on a file, whose descriptor is yielded.

    The kernel drops it when the process dies. A lock that another process holds is a ConflictError
    unless ``wait``.
    """
    return _locked(path, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))


def is_locked(path: Path) -> bool:
    """Tell whether a process holds an advisory lock on a file; nothing is written."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
    with contextlib.suppress(OSError), _opened(path, flags) as descriptor:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def shared_lock(path: Path) -> AbstractContextManager[int]:
    """Hold an advisory lock on a file together with others; waits for an exclusive one to end."""
    return _locked(path, fcntl.LOCK_SH)


@contextlib.contextmanager
def _locked(path: Path, how: int) -> Iterator[int]:
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    with translate_os_errors(f"lock {path}"):
        try:
            descriptor = os.open(path, flags, 0o644)
        except IsADirectoryError as error:
            raise StorageError(f"cannot lock {path}: it is a folder", hint="remove it") from error
    try:
        try:
            fcntl.flock(descriptor, how)
        except BlockingIOError:
            raise ConflictError(
                f"{path} is locked by another mvc process", hint="wait for it to end and try again"
            ) from None
        yield descriptor
    finally:
        # A child forked meanwhile shares the lock and would keep it alive: drop it, then close.
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)
