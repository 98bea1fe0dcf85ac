"""``mvc``: runs a command line, and is the one place that catches errors."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Option
from typer.main import get_command

import mvc
from mvc.cli import errors
from mvc.cli.group import LazyGroup
from mvc.cli.output import prepare_streams
from mvc.errors import NotFoundError

if TYPE_CHECKING:
    from collections.abc import Sequence

app = typer.Typer(
    name="mvc",
    cls=LazyGroup,
    invoke_without_command=True,
    add_completion=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"mvc {mvc.__version__}")
        raise typer.Exit


@app.callback()
def top(
    context: typer.Context,
    folder: Annotated[
        str | None, Option("-C", metavar="PATH", help="Run as if started in PATH.")
    ] = None,
    version: Annotated[  # noqa: ARG001  its callback does the work
        bool, Option("--version", is_eager=True, callback=_print_version, help="Print version.")
    ] = False,
) -> None:
    """Git for model parameters."""
    if folder is not None:
        try:
            os.chdir(folder)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise NotFoundError(f"folder {folder!r} does not exist") from error
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one command line, by default the process's, and return its exit code; never raises."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    prepare_streams()
    try:
        code = _invoke(given)
        sys.stdout.flush()
    except (KeyboardInterrupt, typer.Abort):
        return errors.INTERRUPTED
    except BrokenPipeError:
        # Keeps the interpreter from flushing into the broken pipe when the process ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return errors.BROKEN_PIPE
    except Exception as error:  # noqa: BLE001  the one place that turns errors into text
        return errors.report(error, as_json=_wants_json(given))
    return code


def _invoke(arguments: list[str]) -> int:
    group: Any = get_command(app)
    try:
        with group.make_context("mvc", arguments) as context:
            group.invoke(context)
    except typer.Exit as stop:
        return stop.exit_code
    return errors.DONE


def _wants_json(arguments: list[str]) -> bool:
    # Read from the raw arguments, because the error may be that they cannot be parsed.
    before = arguments[: arguments.index("--")] if "--" in arguments else arguments
    return "--json" in before
