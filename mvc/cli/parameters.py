"""What a command takes, as plain values, and command lines that need no parser.

typer explains, completes and refuses command lines, but importing it takes longer than most commands
run. So parameters are declared here, and ``mvc.cli.group`` makes typer's of them. A line that is
right beyond doubt is read here; any other (``--help``, a mistake, a rare spelling) is left to typer.
"""

from __future__ import annotations

import re
from importlib import import_module
from types import NoneType
from typing import TYPE_CHECKING, Any, get_args, get_origin, get_type_hints

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

_WHOLE = re.compile(r"[+-]?[0-9]{1,18}")  # 18 digits always fit in 64 bits
_NUMBER = re.compile(
    r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d{1,5})?|[+-]?(nan|inf|infinity)", re.ASCII | re.IGNORECASE
)


class Parameter:
    """One parameter of a command: its names and what else typer needs to know about it."""

    def __init__(self, *names: str, **settings: Any) -> None:
        self.names = names
        self.settings = settings


class Option(Parameter):
    """An option, with or without a value."""


class Argument(Parameter):
    """What stands on a command line by its place."""


class Exit(Exception):  # noqa: N818  it ends a command and is not an error
    """A command ends early with this exit code."""

    def __init__(self, code: int = 0) -> None:
        super().__init__(code)
        self.code = code


def parse_whole(text: str) -> int | None:
    """Return a whole number, or None if the text is not one."""
    return int(text) if _WHOLE.fullmatch(text) else None


def parse_number(text: str) -> float | None:
    """Return a text as int or float, or None if it is not a number."""
    whole = parse_whole(text)
    if whole is not None:
        return whole
    return float(text) if _NUMBER.fullmatch(text) else None


def load_command(name: str) -> Callable[..., None]:
    """Import a command and return its function."""
    name = name.replace("-", "_")
    command: Callable[..., None] = getattr(import_module(f"mvc.cli.commands.{name}"), name)
    return command


def read_line(function: Callable[..., None], words: Sequence[str]) -> dict[str, Any] | None:
    """Return the parameters that a line gives a command, or None if typer has to look at it."""
    line = Line(function)
    try:
        return line.read(list(words))
    except _NotPlainError:
        return None


class _NotPlainError(Exception):
    """A line is wrong, or spelled in a way that only typer reads."""


def guard_command(words: list[str], metavar: str) -> list[str]:
    """Put ``--`` before the line of another program, whose options are its own: ``run CMD``."""
    first = next((at for at, word in enumerate(words) if not word.startswith("-")), None)
    if "CMD" not in metavar or first is None or words[first] != "run":
        return words
    return [*words[: first + 1], "--", *words[first + 1 :]]


class Line:
    """The values that a command line has given so far, and what it may give.

    ``options`` maps each spelling to its parameter, and that one's type or the value of the flag;
    ``places`` maps arguments to their types, and ``declared`` all parameters to what declares them.
    """

    def __init__(self, function: Callable[..., None]) -> None:
        code = function.__code__
        self._names = code.co_varnames[: code.co_argcount]
        defaults = function.__defaults__ or ()
        optional = self._names[len(self._names) - len(defaults) :]
        self.values: dict[str, Any] = dict(zip(optional, defaults, strict=True))
        self.options: dict[str, tuple[str, Any]] = {}
        self.places: dict[str, Any] = {}
        self.declared: dict[str, Parameter] = {}
        self._takes_dashes = False
        for name, hint in get_type_hints(function, include_extras=True).items():
            if name != "return":
                self._declare(name, hint)

    def _declare(self, name: str, hint: Any) -> None:
        annotated, declared = get_args(hint) if hasattr(hint, "__metadata__") else (hint, None)
        kinds = [kind for kind in get_args(annotated) or [annotated] if kind is not NoneType]
        kind = list if get_origin(annotated) is list else get_origin(kinds[0]) or kinds[0]
        if kind is list and name in self.values:
            self.values[name] = []
        if isinstance(declared, Parameter):
            self.declared[name] = declared
        if isinstance(declared, Argument):
            self.places[name] = kind
            self._takes_dashes |= "[--]" in declared.settings.get("metavar", "")
        elif isinstance(declared, Option) and declared.names:
            for spelling in declared.names:
                on, slash, off = spelling.partition("/")
                self.options[on] = (name, True if kind is bool else kind)
                if slash:
                    self.options[off] = (name, False)

    def read(self, words: list[str]) -> dict[str, Any]:
        """Take the words of a line; return all values."""
        after: list[str] = []
        for name in self.places:
            words = guard_command(words, self.declared[name].settings.get("metavar", ""))
        if "--" in words:
            after = words[words.index("--") :]
            words = words[: -len(after)]
            if not self._takes_dashes:
                raise _NotPlainError
        self._place([*self._take_options(iter(words)), *after])
        if not self.values.keys() >= set(self._names):
            raise _NotPlainError
        return self.values

    def _take_options(self, words: Iterator[str]) -> Iterator[str]:
        """Take the options; yield all other words."""
        for word in words:
            if not word:
                raise _NotPlainError
            if word == "-" or not word.startswith("-"):
                yield word
            elif word.startswith("--"):
                spelling, equals, value = word.partition("=")
                self._take(spelling, [value] if equals else [], words)
            else:
                self._take_letters(word[1:], words)

    def _take_letters(self, letters: str, words: Iterator[str]) -> None:
        if letters.isdecimal() and "-n" in self.options:
            return self._take("-n", [letters], words)  # -3 is short for -n 3
        while letters:
            spelling, letters = "-" + letters[0], letters[1:]
            if self.options.get(spelling, ("", None))[1] is True:
                self._take(spelling, [], words)
            else:
                return self._take(spelling, [letters] if letters else [], words)
        return None

    def _take(self, spelling: str, attached: list[str], words: Iterator[str]) -> None:
        """Take one option; its value is attached to it or the next word."""
        name, kind = self.options.get(spelling, ("", None))
        if isinstance(kind, bool):
            if attached:
                raise _NotPlainError
            self.values[name] = kind
            return
        value = attached[0] if attached else next(words, "")
        if not value or (not attached and value.startswith("-")):
            raise _NotPlainError
        if kind is list:
            self.values[name].append(value)
        else:
            self.values[name] = _convert(value, kind)

    def _place(self, words: list[str]) -> None:
        if list(self.places.values()) == [list]:
            (name,) = self.places
            self.values |= {name: words} if words else {}
            return
        if len(words) > len(self.places):
            raise _NotPlainError
        for (name, kind), word in zip(self.places.items(), words, strict=False):
            self.values[name] = _convert(word, kind)


def _convert(text: str, kind: Any) -> Any:
    readers: dict[Any, Callable[[str], Any]] = {str: str, int: parse_whole, float: parse_number}
    value = readers[kind](text) if kind in readers else None
    if value is None:
        raise _NotPlainError
    return value
