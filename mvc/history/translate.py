"""The one place where failures of dulwich and of damaged bytes become errors of mvc.

dulwich reports damage through whatever its parsers ran into: its own exceptions, but also
AssertionError, KeyError, struct.error, zlib.error and others. Nothing of that may reach a caller,
so everything that reads bytes through dulwich does it inside ``translate_damage``.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager

from mvc.errors import CorruptionError, FormatError, MvcError, translate_os_errors

FSCK_HINT = 'run "mvc fsck" to see what else is damaged'
_MAX_DETAIL_CHARS = 200

_PARSER_ERRORS = (
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
    """Turn what damaged bytes make a parser raise into one error of class ``error``.

    ``subject``, as in ``commit 3f9c``, begins the message. FormatError is for bytes that are not of
    our store. Missing and existing files pass through; other OSErrors become StorageError.
    """
    try:
        with translate_os_errors(f"read {subject}"):
            yield
    except (MvcError, FileNotFoundError, FileExistsError):
        raise
    except (IsADirectoryError, NotADirectoryError) as fault:
        raise error(
            f"{subject} is damaged: a folder or file stands in its place", hint=hint
        ) from fault
    except Exception as fault:
        roots = {kind.__module__.partition(".")[0] for kind in type(fault).__mro__}
        if not (isinstance(fault, _PARSER_ERRORS) or "dulwich" in roots):
            raise
        detail = str(fault).strip() or type(fault).__name__
        raise error(f"{subject} is damaged: {detail[:_MAX_DETAIL_CHARS]}", hint=hint) from fault
