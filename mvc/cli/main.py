"""``mvc``: runs a command line, and is the one place that catches errors."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from typing import TYPE_CHECKING

from mvc.cli import NAMES, errors
from mvc.cli.options import name_in_hint
from mvc.cli.output import end_command, end_pager, prepare_streams
from mvc.cli.parameters import Exit, load_command, read_line

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import NoReturn


def main() -> NoReturn:
    """Run the process's command line, and end the process with its exit code."""
    code = run()
    with contextlib.suppress(OSError):  # Python tries again, and says what is wrong
        sys.stdout.flush()
        sys.stderr.flush()
        if threading.active_count() == 1:
            os._exit(code)  # taking the interpreter apart is a tenth of a short command's time
    sys.exit(code)


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one command line, by default the process's, and return its exit code; never raises."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    # NumPy would start a thread per core for linear algebra that no command does, and each spins
    # for 0.1 s. Not in os.environ, which programs that a command starts are given.
    os.putenv("OPENBLAS_NUM_THREADS", "1")
    prepare_streams()
    try:
        code = _invoke(given)
        sys.stdout.flush()
    except KeyboardInterrupt as error:
        return errors.report_interrupt(error, as_json=_wants_json(given))
    except BrokenPipeError:
        # Keeps the interpreter from flushing into the broken pipe when the process ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return errors.BROKEN_PIPE
    except Exception as error:  # noqa: BLE001  the one place that turns errors into text
        return errors.report(error, as_json=_wants_json(given))
    finally:
        end_command(wanted=not _wants_json(given))
    return code


def _invoke(arguments: list[str]) -> int:
    try:
        if not _run_plain(arguments):
            from mvc.cli.group import invoke  # with typer, which most lines do without

            invoke(arguments)
    except Exit as stop:
        return stop.code
    except BrokenPipeError:
        if not end_pager():
            raise  # else the user has seen enough and quit it
    finally:
        end_pager()
    return errors.DONE


def _run_plain(arguments: list[str]) -> bool:
    """Run a line that is right beyond doubt; return whether this is one."""
    if not arguments or arguments[0] not in NAMES:
        return False
    name = arguments[0]
    command = load_command(name)
    values = read_line(command, arguments[1:])
    if values is None:
        return False
    with name_in_hint(f"mvc {name}"):
        command(**values)
    return True


def _wants_json(arguments: list[str]) -> bool:
    # Read from the raw arguments, because the error may be that they cannot be parsed.
    before = arguments[: arguments.index("--")] if "--" in arguments else arguments
    return "--json" in before
