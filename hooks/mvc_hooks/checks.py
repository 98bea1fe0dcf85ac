"""Checks of what users pass: a requirement says what a value must be, and refuses any other in one line."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mvc import UsageError

_LARGEST = 1 << 62


@dataclass(frozen=True, slots=True)
class Requirement:
    """What a value must be; ``fault`` says what a wrong one is, as in "every is 0, not a count"."""

    accepts: Callable[[Any], bool]
    fault: str
    hint: str | None = None

    def check(self, name: str, value: object) -> None:
        """Refuse a value that is not right."""
        if not self.accepts(value):
            raise UsageError(f"{name} is {value!r}, {self.fault}", hint=self.hint)


def check_fields(values: object, requirements: Mapping[str, Requirement]) -> None:
    """Check the attributes of an object, in the order of the requirements."""
    for name, requirement in requirements.items():
        requirement.check(name, getattr(values, name))


def count(fewest: int = 1, hint: str | None = None) -> Requirement:
    """Return the requirement of a whole number that is not too small, and fits where it will be stored."""
    return Requirement(lambda value: _is_count(value, fewest), _name_count(fewest), hint)


def _is_count(value: object, fewest: int) -> bool:
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    return is_whole and fewest <= value < _LARGEST  # type: ignore[operator]  # it is a number


def _name_count(fewest: int) -> str:
    return f"not a whole number from {fewest} on"


def check_ranges(owner: object, *names: str, least: float = 0.0, excludes: bool = False) -> None:
    """Check that numbers of an object are finite and at least (``excludes``: above) a number."""
    bound = f"not a finite number {'above' if excludes else 'of at least'} {least:g}"
    requirement = Requirement(
        lambda value: least <= value < math.inf and not (excludes and value == least), bound
    )
    for name in names:
        requirement.check(f"{name} of {type(owner).__name__}", getattr(owner, name))


def seconds() -> Requirement:
    """Return the requirement of a positive, finite number of seconds."""
    return Requirement(
        lambda value: type(value) in (int, float) and 0 < value < math.inf,
        "not a positive number of seconds",
    )


def flag() -> Requirement:
    """Return the requirement of True or False."""
    return Requirement(lambda value: type(value) is bool, "neither True nor False")


def one_of(*choices: object) -> Requirement:
    """Return the requirement of a few values of one type."""
    return Requirement(
        lambda value: type(value) is type(choices[0]) and value in choices,
        f"not one of {', '.join(map(str, choices))}",
    )


def instance(kind: Any, what: str, hint: str | None = None) -> Requirement:
    """Return the requirement of an object of a class that is not empty text."""
    return Requirement(lambda value: isinstance(value, kind) and value != "", f"not {what}", hint)


def sequence(kind: type, what: str, hint: str | None = None) -> Requirement:
    """Return the requirement of a list of objects of a class; a text is none."""
    return Requirement(
        lambda value: (
            isinstance(value, Sequence)
            and not isinstance(value, str)
            and all(isinstance(item, kind) for item in value)
        ),
        f"not a list of {what}",
        hint,
    )


def optional(requirement: Requirement) -> Requirement:
    """Return a requirement that also takes None."""
    return Requirement(
        lambda value: value is None or requirement.accepts(value),
        requirement.fault,
        requirement.hint,
    )


def check_count(what: str, value: Any, fewest: int, *, hint: str | None = None) -> int:
    """Return a whole number that is not too small; readings of each step come by here."""
    if not _is_count(value, fewest):
        raise UsageError(f"{what} is {value!r}, {_name_count(fewest)}", hint=hint)
    number: int = value
    return number
