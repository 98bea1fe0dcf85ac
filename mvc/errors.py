"""The errors of mvc, grouped by what a caller can do about them.

    MvcError
    ├── UsageError              the call itself is wrong: change the call              exit 2
    ├── NotFoundError           what was named does not exist: name another            exit 3
    │   └── RepositoryNotFoundError  there is no repository here: run ``mvc init``     exit 10
    ├── ConflictError           the world moved or would be overwritten: look, retry   exit 4
    ├── FormatError             bytes are not what their format says                   exit 5
    │   └── CorruptionError     bytes of *our* store are damaged: fsck, restore        exit 5
    ├── StorageError            the machine said no: disk full, permission, I/O        exit 6
    ├── UnsupportedError        a value mvc refuses to store or cannot restore         exit 7
    ├── ReleasedError           content that a retention policy released: take another   exit 9
    └── GateError               what was to be committed fails a gate: mend it, or insist   exit 1

Each class carries a stable ``kind`` (append-only, for ``--json``) and the exit code of the
command line. Messages are lower case, name the thing and the fact, and end without a period;
``hint`` says what to do next; it names parameters in backquotes (`force`), which the command
line shows as its options.
"""

from __future__ import annotations

import errno
from contextlib import contextmanager
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence


class MvcError(Exception):
    """Base of every error that mvc raises on purpose: ``message`` and perhaps a ``hint``; ``str`` has both."""

    kind: ClassVar[str] = "error"
    exit_code: ClassVar[int] = 8

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return self.message if self.hint is None else f"{self.message}\nhint: {self.hint}"


class UsageError(MvcError):
    """The call is wrong, whatever the repository holds."""

    kind = "usage"
    exit_code = 2


class NotFoundError(MvcError):
    """A revision, path, tensor or object that was named does not exist."""

    kind = "not-found"
    exit_code = 3


class RepositoryNotFoundError(NotFoundError):
    """No repository at the given place or above it."""

    kind = "no-repository"
    exit_code = 10


class ConflictError(MvcError):
    """Another process moved a ref, a file changed while we read it, or work would be overwritten."""

    kind = "conflict"
    exit_code = 4


class FormatError(MvcError):
    """Bytes that are not what their format demands: the only answer to hostile input."""

    kind = "format"
    exit_code = 5


class CorruptionError(FormatError):
    """Bytes in the store that no longer match their id, or that are missing."""

    kind = "corruption"
    exit_code = 5


class StorageError(MvcError):
    """The file system or object store refused: full, read-only, not permitted, failing."""

    kind = "storage"
    exit_code = 6


class UnsupportedError(MvcError):
    """A value that mvc refuses to store, or stored data that needs a newer mvc."""

    kind = "unsupported"
    exit_code = 7


class ReleasedError(MvcError):
    """Content that a retention policy released (``mvc prune``) and that is no longer stored."""

    kind = "released"
    exit_code = 9

    def __init__(
        self,
        message: str,
        *,
        hint: str | None = None,
        commit: str | None = None,
        policy: str | None = None,
        time_s: int | None = None,
        nearest: str | None = None,
    ) -> None:
        super().__init__(message, hint=hint)
        self.commit = commit  # whose content is gone, if it is known
        self.policy = policy  # as on the command line
        self.time_s = time_s  # when it was released, in seconds since 1970
        self.nearest = nearest  # the nearest commit that still has its content


class GateError(MvcError):
    """A commit was refused: its checkpoints are beyond a limit that the repository sets."""

    kind = "gate"
    exit_code = 1

    def __init__(
        self,
        message: str,
        *,
        hint: str | None = None,
        failures: Sequence[Mapping[str, object]] = (),
    ) -> None:
        super().__init__(message, hint=hint)
        self.failures = failures  # gate, value, limit, path and tensor of each


_OS_HINTS = {
    errno.ENOSPC: "free some space; what was written so far is garbage that gc removes",
    errno.EDQUOT: "free some quota; what was written so far is garbage that gc removes",
    errno.EACCES: "check the permissions of the file and its folder",
    errno.EPERM: "check the permissions of the file and its folder",
    errno.EROFS: "the file system is mounted read-only",
}


@contextmanager
def translate_os_errors(action: str) -> Iterator[None]:
    """Turn OSError into StorageError, the one place where that happens.

    ``action``, as in ``write pack 3f9c``, begins the message. That a file is missing or exists is
    an answer to callers, so FileNotFoundError, FileExistsError and their like pass through.
    """
    try:
        yield
    except (FileNotFoundError, FileExistsError, IsADirectoryError, NotADirectoryError):
        raise
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise StorageError(
            f"cannot {action}: {reason}", hint=_OS_HINTS.get(error.errno or 0)
        ) from error
