"""What commands take, and reading it from a command line: the only parser there is.

Start-up decides this. Importing typer costs 60 ms of processor time, and making one command known to
it, even only the one that runs, 10 ms more: ``mvc log -1`` would take 230 ms in place of 165,
``mvc status`` 215 in place of 155 (medians of 25 runs, 2026-11-28). So commands declare their
parameters as default values, which cost nothing until a line is read, and ``mvc.cli.help`` explains
them. Lines are read as click and Git read them: options may stand anywhere, an option that takes a
value takes the next word whatever it is, and ``--`` ends the options.
"""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

from mvc.cli import HOMES
from mvc.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

_WHOLE = re.compile(r"[+-]?[0-9]{1,18}")  # 18 digits always fit in 64 bits
_NUMBER = r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d{1,5})?|[+-]?(nan|inf|infinity)"


class Exit(Exception):  # noqa: N818  it ends a command and is not an error
    """A command ends early with this exit code."""

    def __init__(self, code: int = 0) -> None:
        super().__init__(code)
        self.code = code


class CommandUsageError(UsageError):
    """A command line makes no sense; what runs the command adds a hint that names it."""


@contextlib.contextmanager
def name_in_hint(command: str) -> Iterator[None]:
    """Let usage errors of a command name it in their hint."""
    try:
        yield
    except CommandUsageError as error:
        error.hint = f'"{command} --help" shows its usage'
        raise


@dataclass(frozen=True, slots=True)
class Option:
    """An option, as help shows it: ``-m, --message TEXT`` or ``--delta / --no-delta``."""

    shown: str
    kind: type
    default: object
    help: str
    names: tuple[str, ...]
    negatives: tuple[str, ...]
    """The spellings that switch a flag off."""
    metavar: str
    read: Callable[[str], object] | None = None
    """What makes a value of the word."""


@dataclass(frozen=True, slots=True)
class Argument:
    """What stands on a command line by its place; a list takes all words that are left."""

    metavar: str
    kind: type
    default: object
    required: bool
    raw_after: tuple[str, ...] | None = ()
    """The words after one of these, if it is the first, are not read as options; None: after any."""


@dataclass(frozen=True, slots=True)
class OptionSet:
    """Options that a command takes as one value: what ``make`` returns for the value of each."""

    make: Callable[..., object]
    options: dict[str, Option]


# The makers return Any: what they make stands as the default of a parameter of another type.


def flag(shown: str, about: str, *, default: bool | None = False) -> Any:
    """Declare an option without a value."""
    return _declare(shown, bool, default, about)


def string(
    shown: str,
    about: str,
    *,
    default: str | None = None,
    read: Callable[[str], object] | None = None,
) -> Any:
    """Declare an option that takes a text, or what ``read`` makes of it."""
    return _declare(shown, str, default, about, read)


def strings(shown: str, about: str) -> Any:
    """Declare an option that takes a text and may be repeated."""
    return _declare(shown, list, [], about)


def integer(shown: str, about: str, *, default: int | None = None) -> Any:
    """Declare an option that takes a whole number."""
    return _declare(shown, int, default, about)


def decimal(shown: str, about: str) -> Any:
    """Declare an option that takes a number."""
    return _declare(shown, float, None, about)


def option_set(make: Callable[..., object], **options: Any) -> Any:
    """Declare options that go together, by the names that ``make`` has for them."""
    return OptionSet(make, options)


def named(*options: Any) -> Any:
    """Declare options that a command takes as a mapping of their long names, without dashes."""
    members = {}
    for option in options:
        longs = [name for name in option.names if name.startswith("--")]
        members[[*longs, *option.names][0].lstrip("-")] = option
    return OptionSet(dict, members)


def _declare(
    shown: str,
    kind: type,
    default: object,
    about: str,
    read: Callable[[str], object] | None = None,
) -> Option:
    positive, _, negative = shown.partition(" / ")
    words = positive.split(" ")
    names = tuple(word.rstrip(",") for word in words if word.startswith("-"))
    negatives = tuple(negative.split(", ")) if negative else ()
    metavar = " ".join(words[len(names) :])
    return Option(shown, kind, default, about, names, negatives, metavar, read)


def argument(metavar: str, *, default: str | None = None) -> Any:
    """Declare one word; it is required unless its place in the usage line is in brackets."""
    return Argument(metavar, str, default, not set(metavar) & set("[]"))


def arguments(metavar: str, *, required: bool = False, raw_after: Sequence[str] | None = ()) -> Any:
    """Declare all words that are left; ``[--]`` in ``metavar`` keeps a ``--`` among them."""
    return Argument(metavar, list, [], required, None if raw_after is None else tuple(raw_after))


HELP = _declare("-h, --help", bool, False, "Show this message and exit.")


def parse_whole(word: str) -> int | None:
    """Return a whole number, or None if the text is not one."""
    return int(word) if _WHOLE.fullmatch(word) else None


def parse_number(word: str) -> float | None:
    """Return a text as int or float, or None if it is not a number."""
    value = parse_whole(word)
    if value is not None:
        return value
    return float(word) if re.fullmatch(_NUMBER, word, re.ASCII | re.IGNORECASE) else None


def load_command(name: str) -> Callable[..., None]:
    """Import a command and return its function."""
    name = name.replace("-", "_")
    module = import_module(f"mvc.cli.commands.{HOMES.get(name, name)}")
    command: Callable[..., None] = getattr(module, name)
    return command


class Line:
    """What a command takes, and the values that a line gives it.

    Attributes:
        options: spelling → (name of the parameter, option); in a set, ``parameter.name``.
        arguments: name of the parameter → argument.
        values: name of the parameter → value.
    """

    def __init__(self, function: Callable[..., object]) -> None:
        code = function.__code__
        names = code.co_varnames[: code.co_argcount]
        declared = {**dict(zip(names, function.__defaults__ or (), strict=True)), "help": HELP}
        self.options: dict[str, tuple[str, Option]] = {}
        self.arguments: dict[str, Argument] = {}
        self.values: dict[str, Any] = {}
        self._sets: dict[str, OptionSet] = {}
        for name, parameter in declared.items():
            if isinstance(parameter, OptionSet):
                self._sets[name] = parameter
                for member, option in parameter.options.items():
                    self._add(f"{name}.{member}", option)
            else:
                self._add(name, parameter)

    def _add(self, name: str, parameter: Option | Argument) -> None:
        self.values[name] = [] if parameter.kind is list else parameter.default
        if isinstance(parameter, Argument):
            self.arguments[name] = parameter
        else:
            for spelling in (*parameter.names, *parameter.negatives):
                self.options[spelling] = (name, parameter)

    def read(self, words: Sequence[str]) -> dict[str, Any] | None:
        """Return the value of each parameter; None if the line asks for help.

        Raises:
            CommandUsageError: the line is not one of the command's.
        """
        places = list(self._take_options(iter(words)))
        if self.values.pop("help"):
            return None
        for name, place in self.arguments.items():
            if place.required and not places:
                raise CommandUsageError(f"missing argument {place.metavar!r}")
            if place.kind is list:
                self.values[name], places = places, []
            elif places:
                self.values[name] = places.pop(0)
        if places:
            raise CommandUsageError(f"unexpected argument {places[0]!r}")
        for name, chosen in self._sets.items():
            values = {member: self.values.pop(f"{name}.{member}") for member in chosen.options}
            self.values[name] = chosen.make(**values)
        return self.values

    def _take_options(self, words: Iterator[str]) -> Iterator[str]:
        """Take the options; yield all other words."""
        places = list(self.arguments.values())
        keeps_dashes = any("[--]" in place.metavar for place in places)
        ends = [place.raw_after for place in places]
        for word in words:
            if word == "--":
                yield from [word] if keeps_dashes else []
                yield from words
            elif word.startswith("--"):
                spelling, equals, value = word.partition("=")
                self._take(spelling, value if equals else None, words)
            elif word.startswith("-") and word != "-":
                self._take_letters(word[1:], words)
            else:
                yield word
                if any(end is None or word in end for end in ends):
                    yield from words
                ends = []

    def _take_letters(self, letters: str, words: Iterator[str]) -> None:
        limit = self.options.get("-n")
        if letters.isdecimal() and limit is not None and limit[1].kind is int:
            self._take("-n", letters, words)  # -3 is short for -n 3
            return
        while letters:
            spelling, letters = "-" + letters[0], letters[1:]
            if spelling in self.options and self.options[spelling][1].kind is not bool:
                self._take(spelling, letters or None, words)
                return
            self._take(spelling, None, words)

    def _take(self, spelling: str, value: str | None, words: Iterator[str]) -> None:
        """Take one option; its value is attached to it, or else the next word."""
        if spelling == "--png":
            raise CommandUsageError("pictures are no longer drawn: --html FILE writes a page")
        if spelling not in self.options:
            raise CommandUsageError(f"no such option: {spelling}{self._alike(spelling)}")
        name, option = self.options[spelling]
        if option.kind is bool:
            if value is not None:
                raise CommandUsageError(f"option {spelling!r} does not take a value")
            self.values[name] = spelling not in option.negatives
            return
        value = next(words, None) if value is None else value
        if value is None:
            raise CommandUsageError(f"option {spelling!r} requires an argument")
        if option.kind is list:
            self.values[name].append(value)
        else:
            self.values[name] = _convert(value, option)

    def _alike(self, spelling: str) -> str:
        from difflib import get_close_matches

        alike = ", ".join(sorted(get_close_matches(spelling, self.options)))
        return f" (Possible options: {alike})" if alike else ""


def _convert(word: str, option: Option) -> Any:
    if option.kind is str:
        return word if option.read is None else option.read(word)
    value = parse_whole(word) if option.kind is int else parse_number(word)
    if value is None:
        names = " / ".join(map(repr, option.names))
        what = "whole number" if option.kind is int else "number"
        raise CommandUsageError(f"invalid value for {names}: {word!r} is not a {what}")
    return value
