"""The command line as typer knows it: a group that loads a command's module only when it is asked for.

``mvc --help`` and ``mvc log`` must feel instant: the group takes names and summaries from the table
in ``mvc.cli`` and imports nothing for a command that does not run.
"""

from __future__ import annotations

import os
import re
from types import FunctionType
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_type_hints

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

import mvc
from mvc.cli import COMMANDS, NAMES
from mvc.cli.errors import EXIT_CODES
from mvc.cli.options import name_in_hint
from mvc.cli.output import turn_off_pager
from mvc.cli.parameters import (
    Exit,
    Parameter,
    guard_command,
    load_command,
    parse_number,
    parse_whole,
)
from mvc.errors import NotFoundError

if TYPE_CHECKING:
    from collections.abc import Callable


class _PlainCoercion:
    """Turns an argument into a flag, a text, a list of texts or a number."""

    def __init__(self, annotation: object) -> None:
        self._annotation = annotation

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        if self._annotation == list[str]:
            return list(value or ())
        if self._annotation not in (int, float) or not isinstance(value, str):
            return value
        is_whole = self._annotation is int
        number = parse_whole(value) if is_whole else parse_number(value)
        if number is None:
            what = "whole number" if is_whole else "number"
            raise typer.BadParameter(f"{value!r} is not a {what}", ctx=ctx, param=param)
        return number


class _PlainParameters:
    """Keeps typer from importing pydantic for flags, texts and numbers.

    That import takes longer than all of ``mvc log``. typer has no public way around it, so this
    replaces one method of each parameter; pyproject.toml therefore names the typer it was made for.
    """

    def get_params(self, ctx: Any) -> list[Any]:
        parameters: list[Any] = super().get_params(ctx)  # type: ignore[misc]  # of typer's classes
        for parameter in parameters:
            annotation = getattr(getattr(parameter, "type_descriptor", None), "annotation", None)
            if annotation in (bool, str, int, float, list[str]):
                coercion = _PlainCoercion(annotation)
                parameter.get_runtime_param = lambda coercion=coercion: coercion
        return parameters


class LazyGroup(_PlainParameters, TyperGroup):
    """The ``mvc`` command itself."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002  the signature is typer's
        """Return the names of all commands."""
        return NAMES

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002  the signature is typer's
        """Import a command's module and return the command, or None if there is none."""
        if cmd_name not in NAMES:
            return None
        app = typer.Typer(rich_markup_mode=None, add_completion=False)
        app.command(cmd_name, cls=Command)(_declare(load_command(cmd_name)))
        return get_command(app)

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """Return the command that the arguments begin with, and the rest of them.

        ``mvc help COMMAND`` is ``mvc COMMAND --help``.
        """
        if args[0] == "help":
            args = [*args[1:2], "--help"]
            if len(args) == 1:
                typer.echo(ctx.get_help())
                raise typer.Exit
        if not args[0].startswith("-") and args[0] not in NAMES:
            from mvc.cli.missing import expand_alias

            args = expand_alias(args)
        name, command, rest = super().resolve_command(ctx, args)
        return name, command, rest

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the overview: commands by what they are for."""
        formatter.write_usage(ctx.command_path, "[-C PATH] [--no-pager] COMMAND [ARGS]...")
        formatter.write_paragraph()
        formatter.write_text("Git for model parameters: checkpoints in, history, same bytes out.")
        width = max(map(len, NAMES))
        for purpose, commands in COMMANDS.items():
            formatter.write_paragraph()
            formatter.write(f"{purpose}\n")
            for name, summary in commands.items():
                formatter.write(f"  {name:<{width}}  {summary}\n")
        _write_options(formatter, self.params, ctx)
        formatter.write_paragraph()
        formatter.write('"mvc COMMAND --help" explains a command.\n')
        codes = ", ".join(f"{code} {text}" for code, text in EXIT_CODES.items())
        formatter.write_text(f"Exit codes: {codes}.")


def _write_options(formatter: Any, options: list[Any], ctx: Any) -> None:
    with formatter.section("Options"):
        records = (option.get_help_record(ctx) for option in options)
        formatter.write_dl([record for record in records if record])


class Command(_PlainParameters, TyperCommand):
    """A command; its help is plain text, and its usage line shows arguments as they are written."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse as Git does; an error knows the command it belongs to."""
        args, after = self._spell_out(args)
        try:
            rest = super().parse_args(ctx, args)
        except typer.TyperException as error:
            # An unknown option is reported without its command, which the hint is to name.
            if getattr(error, "ctx", None) is None:
                error.ctx = ctx  # type: ignore[attr-defined]  # its subclasses for usage have one
            raise
        if after:
            ctx.params["names"] = [*(ctx.params["names"] or ()), *after]
        return rest

    def invoke(self, ctx: Any) -> Any:
        """Run the command; its usage errors name it in their hint."""
        with name_in_hint(ctx.command_path):
            return super().invoke(ctx)

    def _spell_out(self, args: list[str]) -> tuple[list[str], list[str]]:
        """Split off ``--`` and what follows, and write ``-3`` as ``-n3``.

        The parser would drop the ``--``, and with it what tells a path from a revision.
        """
        after: list[str] = []
        usage = [one.metavar or "" for one in self.params if one.param_type_name == "argument"]
        for metavar in usage:
            args = guard_command(args, metavar)
        if "--" in args and any("[--]" in metavar for metavar in usage):
            position = args.index("--")
            args, after = args[:position], args[position:]
        limit = next((one.opts for one in self.params if one.name == "limit"), None)
        if limit is None:
            return args, after
        args = [
            f"-n{argument[1:]}"
            if re.fullmatch(r"-\d+", argument) and before not in limit
            else argument
            for before, argument in zip(["", *args], args, strict=False)
        ]
        return args, after

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return what follows the command's name in its usage line."""
        arguments = (one for one in self.get_params(ctx) if one.param_type_name == "argument")
        return ["[OPTIONS]", *(argument.metavar for argument in arguments)]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the options; the arguments are in the usage line."""
        options = [one for one in self.get_params(ctx) if one.param_type_name == "option"]
        _write_options(formatter, options, ctx)


def _declare(function: Callable[..., None]) -> FunctionType:
    """Return a command whose parameters are declared as typer wants them."""
    assert isinstance(function, FunctionType)
    hints = get_type_hints(function, include_extras=True)
    for name, hint in hints.items():
        kind, declared = (*get_args(hint), None, None)[:2]
        if isinstance(declared, Parameter):
            of_typer = getattr(typer, type(declared).__name__)
            hints[name] = Annotated[kind, of_typer(*declared.names, **declared.settings)]
    copy = FunctionType(
        function.__code__, function.__globals__, function.__name__, function.__defaults__
    )
    copy.__kwdefaults__, copy.__doc__ = function.__kwdefaults__, function.__doc__
    copy.__annotations__ = hints
    return copy


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
        str | None, typer.Option("-C", metavar="PATH", help="Run as if started in PATH.")
    ] = None,
    unpaged: Annotated[
        bool, typer.Option("-P", "--no-pager", help="Show long results without a pager.")
    ] = False,
    version: Annotated[  # noqa: ARG001  its callback does the work
        bool,
        typer.Option("--version", is_eager=True, callback=_print_version, help="Print version."),
    ] = False,
) -> None:
    """Git for model parameters."""
    if unpaged:
        turn_off_pager()
    if folder is not None:
        try:
            os.chdir(folder)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise NotFoundError(f"folder {folder!r} does not exist") from error
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def invoke(arguments: list[str]) -> None:
    """Run a command line with typer's help, and its errors."""
    group: Any = get_command(app)
    try:
        with group.make_context("mvc", arguments) as context:
            group.invoke(context)
    except typer.Exit as stop:
        raise Exit(stop.exit_code) from None
    except typer.Abort:
        raise KeyboardInterrupt from None
