"""The one place where failures of dulwich and of damaged bytes become errors of mvc.

dulwich reports damage through whatever its parsers ran into: its own exceptions, but also
AssertionError, KeyError, struct.error, zlib.error and others. Nothing of that may reach a caller,
so everything that reads bytes through dulwich does it inside ``translate_damage``.
"""

from __future__ import annotations

import struct
import zlib
from contextlib import contextmanager
from typing import TYPE_CHECKING

from dulwich.errors import (
    ApplyDeltaError,
    ChecksumMismatch,
    FileFormatException,
    ObjectMissing,
    RefFormatError,
    WrongObjectException,
)

from mvc.errors import CorruptionError, FormatError, MvcError, translate_os_errors

if TYPE_CHECKING:
    from collections.abc import Iterator

FSCK_HINT = 'run "mvc fsck" to see what else is damaged'

_DAMAGE = (
    ApplyDeltaError,
    ChecksumMismatch,
    FileFormatException,
    ObjectMissing,
    RefFormatError,
    WrongObjectException,
    # what dulwich's parsers raise on bytes they did not expect
    ArithmeticError,
    AssertionError,
    AttributeError,
    EOFError,
    LookupError,
    RecursionError,
    StopIteration,
    TypeError,
    ValueError,
    struct.error,
    zlib.error,
)


@contextmanager
def translate_damage(
    subject: str,
    error: type[FormatError] = CorruptionError,
    hint: str | None = FSCK_HINT,
) -> Iterator[None]:
    """Turn what damaged bytes make a parser raise into one error.

    Args:
        subject: what is being read, as in ``commit 3f9c``; begins the message.
        error: the class to raise; FormatError for bytes that are not of our store.
        hint: what to do next.

    Raises:
        FormatError: (or the subclass given) the bytes are not what their format demands.
        StorageError: the machine failed; missing and existing files pass through.
    """
    try:
        with translate_os_errors(f"read {subject}"):
            yield
    except (MvcError, FileNotFoundError, FileExistsError):
        raise
    except (IsADirectoryError, NotADirectoryError) as fault:
        raise error(f"{subject} is damaged: not a file", hint=hint) from fault
    except _DAMAGE as fault:
        detail = str(fault).strip() or type(fault).__name__
        raise error(f"{subject} is damaged: {detail[:200]}", hint=hint) from fault
