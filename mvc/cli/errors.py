"""Errors as people and programs see them: text, JSON, exit code.

docs/cli.md explains the exit codes.
"""

from __future__ import annotations

import os
import re
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mvc.cli.output import json_text, pick, printable, stderr
from mvc.errors import GateError, MvcError, ReleasedError, StorageError

if TYPE_CHECKING:
    from collections.abc import Mapping

EXIT_CODES = {
    0: "done",
    1: "differences or problems found",
    2: "wrong usage",
    3: "not found",
    4: "conflict",
    5: "damaged data",
    6: "machine failed",
    7: "unsupported",
    8: "internal error",
    9: "released content",
    10: "no repository",
}
DONE = 0
NEGATIVE = 1
INTERNAL = 8
INTERRUPTED = 130
BROKEN_PIPE = 141
_PARAMETER = re.compile(r"`(\w+)`")


@dataclass(frozen=True, slots=True)
class ErrorText:
    """One error, ready to be shown; ``details`` are further facts for programs."""

    kind: str
    message: str
    hint: str | None
    exit_code: int
    details: Mapping[str, object] = field(default_factory=dict)


def describe(error: Exception) -> ErrorText:
    """Return the text for any exception."""
    if isinstance(error, MvcError):
        # A hint of the library names parameters in backquotes; here they are options.
        hint = error.hint and _PARAMETER.sub(
            lambda match: f'"--{match[1].replace("_", "-")}"', error.hint
        )
        return ErrorText(error.kind, error.message, hint, error.exit_code, _details(error))
    if isinstance(error, OSError):
        reason = (error.strerror or str(error) or type(error).__name__).lower()
        name = f": {os.fsdecode(error.filename)}" if isinstance(error.filename, str) else ""
        return ErrorText(StorageError.kind, reason + name, None, StorageError.exit_code)
    if isinstance(error, MemoryError):
        return ErrorText(StorageError.kind, "out of memory", None, StorageError.exit_code)
    what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    hint = "this is a bug in mvc; run the command with MVC_DEBUG=1 and report its output"
    return ErrorText("internal", f"internal error: {what}", hint, INTERNAL)


def _details(error: MvcError) -> dict[str, object]:
    if isinstance(error, GateError):
        return {"gates": [dict(failure) for failure in error.failures]}
    if not isinstance(error, ReleasedError):
        return {}
    from mvc.cli.render.text import utc_date

    time = {"time": utc_date(error.time_s)}
    return {"released": {**pick(error, "commit policy"), **time, "nearest": error.nearest}}


def report(error: Exception, *, as_json: bool) -> int:
    """Write an error to standard error; return the exit code."""
    text = describe(error)
    if text.kind == "internal" and os.environ.get("MVC_DEBUG"):
        import traceback

        traceback.print_exception(error, file=sys.stderr)
    if as_json:
        fields = pick(text, "kind message hint")
        sys.stderr.write(json_text({"error": {**fields, **text.details}}) + "\n")
        return text.exit_code
    err = stderr()
    err.line(f"{err.style('error:', 'red', 'bold')} {printable(text.message)}")
    if text.hint:
        err.line(f"{err.style('hint:', 'cyan')} {printable(text.hint)}")
    return text.exit_code


def report_interrupt(error: KeyboardInterrupt, *, as_json: bool) -> int:
    """Say what stays of the work that Ctrl-C ended, if that is known; return the exit code."""
    notes = getattr(error, "__notes__", ())
    if notes and not as_json:
        stderr().line(f"interrupted: {'; '.join(notes)}")
    return INTERRUPTED
