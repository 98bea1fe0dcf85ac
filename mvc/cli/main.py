"""``mvc``: runs a command line, and is the one place that catches errors."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from typing import TYPE_CHECKING

from mvc.cli import NAMES, errors
from mvc.cli.output import end_command, end_pager, prepare_streams
from mvc.cli.parameters import Exit, Line, load_command, name_in_hint

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


def _invoke(words: list[str]) -> int:
    try:
        _run_command(words)
    except Exit as stop:
        return stop.code
    except BrokenPipeError:
        if not end_pager():
            raise  # else the user has seen enough and quit it
    finally:
        end_pager()
    return errors.DONE


def _run_command(words: list[str]) -> None:
    if not words or words[0] not in NAMES:
        from mvc.cli.top import find_command

        words = find_command(words)
    name = words[0]
    command = load_command(name)
    with name_in_hint(f"mvc {name}"):
        values = Line(command).read(words[1:])
        if values is not None:
            command(**values)
            return
    from mvc.cli.help import command_help

    sys.stdout.write(command_help(name, command))


def _wants_json(arguments: list[str]) -> bool:
    # Read from the raw arguments, because the error may be that they cannot be parsed.
    before = arguments[: arguments.index("--")] if "--" in arguments else arguments
    return "--json" in before
