"""A typer group that loads a command's module only when it is called.

``mvc --help`` and ``mvc log`` must feel instant, so nothing is imported for a command that does
not run: the group knows names and summaries from the table, and builds its help from that alone.
"""

from __future__ import annotations

import difflib
import importlib
import re
from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_group

from mvc.cli.commands import COMMANDS, EXIT_CODES, command_names, find_command
from mvc.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence


def new_app() -> typer.Typer:
    """Return the application that a module puts its commands into."""
    return typer.Typer(rich_markup_mode=None, add_completion=False)


class _PlainCoercion:
    """Turns an argument into a flag, a text, a list of texts or a whole number.

    typer would import pydantic for that, which takes longer than all of ``mvc log``.
    """

    def __init__(self, annotation: object) -> None:
        self._annotation = annotation

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        if self._annotation == list[str]:
            return list(value or ())
        if self._annotation is not int or value is None or isinstance(value, int):
            return value
        if not re.fullmatch(r"[+-]?[0-9]{1,18}", value):
            raise typer.BadParameter(f"{value!r} is not a whole number", ctx=ctx, param=param)
        return int(value)


class _PlainParameters:
    """Lets parameters of plain types do without pydantic; any other keeps typer's way."""

    def get_params(self, ctx: Any) -> list[Any]:
        parameters: list[Any] = super().get_params(ctx)  # type: ignore[misc]  # of typer's classes
        for parameter in parameters:
            annotation = getattr(getattr(parameter, "type_descriptor", None), "annotation", None)
            if annotation in (bool, str, int, list[str]):
                coercion = _PlainCoercion(annotation)
                parameter.get_runtime_param = lambda coercion=coercion: coercion
        return parameters


class LazyGroup(_PlainParameters, TyperGroup):
    """The ``mvc`` command itself."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002  the signature is typer's
        """Return the names of all commands."""
        return command_names()

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002  the signature is typer's
        """Import a command's module and return the command, or None where there is none."""
        known = find_command(cmd_name)
        if known is None:
            return None
        module = importlib.import_module(f"mvc.cli.{known.module}")
        return get_group(module.app).commands[cmd_name]

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """Return the command that the arguments begin with, and the rest of them.

        ``mvc help COMMAND`` is ``mvc COMMAND --help``.
        """
        if args[0] == "help":
            args = [*args[1:2], "--help"]
            if len(args) == 1:
                typer.echo(ctx.get_help())
                raise typer.Exit
        if not args[0].startswith("-") and find_command(args[0]) is None:
            close = difflib.get_close_matches(args[0], command_names(), n=3)
            did_you_mean = f"did you mean {' or '.join(map(repr, close))}? " if close else ""
            raise UsageError(
                f"{args[0]!r} is not a mvc command",
                hint=f'{did_you_mean}"mvc --help" lists the commands',
            )
        name, command, rest = super().resolve_command(ctx, args)
        return name, command, rest

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the overview: commands by what they are for."""
        formatter.write_usage(ctx.command_path, "[-C PATH] COMMAND [ARGS]...")
        formatter.write_paragraph()
        formatter.write_text("Git for model parameters: checkpoints in, history, same bytes out.")
        width = max(map(len, command_names()))
        for purpose, commands in COMMANDS.items():
            formatter.write_paragraph()
            formatter.write(f"{purpose}\n")
            for command in commands:
                formatter.write(f"  {command.name:<{width}}  {command.summary}\n")
        with formatter.section("Options"):
            formatter.write_dl([record for param in self.params if (record := _help(param, ctx))])
        formatter.write_paragraph()
        for line in ('"mvc COMMAND --help" tells more about a command.', *EXIT_CODES):
            formatter.write(f"{line}\n")


def _help(parameter: Any, ctx: Any) -> tuple[str, str] | None:
    record: tuple[str, str] | None = parameter.get_help_record(ctx)
    return record


class PlainCommand(_PlainParameters, TyperCommand):
    """A command; its help is plain text, and its usage line shows arguments as they are written."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse; an error knows the command it belongs to."""
        try:
            return super().parse_args(ctx, args)
        except typer.TyperException as error:
            if getattr(error, "ctx", None) is None:
                error.ctx = ctx  # type: ignore[attr-defined]  # its subclasses for usage have one
            raise

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return what follows the command's name in its usage line."""
        arguments = (one for one in self.get_params(ctx) if one.param_type_name == "argument")
        return ["[OPTIONS]", *(argument.metavar for argument in arguments)]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the options; the usage line has told of the arguments."""
        options = [one for one in self.get_params(ctx) if one.param_type_name == "option"]
        with formatter.section("Options"):
            formatter.write_dl([record for one in options if (record := _help(one, ctx))])


class PathsCommand(PlainCommand):
    """A command whose arguments are revisions, then paths: remembers what stood behind ``--``.

    The parser would drop the ``--`` and with it the difference. Also ``-3`` means ``-n 3``, where
    the command has such an option.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Take what is behind ``--`` aside, for ``paths_behind``."""
        if "--" in args:
            position = args.index("--")
            ctx.meta[_BEHIND] = args[position + 1 :]
            args = args[:position]
        counts = next((one.opts for one in self.params if "-n" in one.opts), None)
        if counts is not None:
            args = [
                f"-n{argument[1:]}"
                if _COUNT.fullmatch(argument) and before not in counts
                else argument
                for before, argument in zip(["", *args], args, strict=False)
            ]
        return super().parse_args(ctx, args)


_BEHIND = "mvc.paths"
_COUNT = re.compile(r"-\d+")


def paths_behind(context: typer.Context) -> list[str] | None:
    """Return the arguments behind ``--`` of a PathsCommand, or None where there was none."""
    found: list[str] | None = context.meta.get(_BEHIND)
    return found


def usage(message: str, context: typer.Context) -> UsageError:
    """Return the error for arguments that do not go together."""
    return UsageError(message, hint=f'"{context.command_path} --help" tells how it is used')


def check_alone(context: typer.Context, chosen: Sequence[tuple[str, object]]) -> None:
    """Check that at most one of some (option, value) pairs was given.

    Raises:
        UsageError: there were more.
    """
    given = [name for name, value in chosen if value]
    if len(given) > 1:
        raise usage(f"{given[0]} and {given[1]} cannot be used together", context)
