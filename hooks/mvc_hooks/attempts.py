"""States of a run to restore, tried one after the other: the first that every rank can read.

Only what is lost is passed over: content that is not what its id says, that is missing, or that was
released. What cannot be read just now may be whole, and of a state that does not fit the ones before it
are no better: such an error ends the search, on every rank.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Generic, TypeVar

from mvc import CorruptionError, ReleasedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from mvc import MvcError
    from mvc_hooks.ranks.group import Ranks

_MAX_TRIES = 3
LOST: tuple[type[MvcError], ...] = (CorruptionError, ReleasedError)
"""Errors that waiting does not mend."""

_State = TypeVar("_State")
_Value = TypeVar("_Value")


@dataclass(frozen=True, slots=True)
class RestoreFailure(Generic[_State]):
    """Why a state cannot be restored, and on which rank."""

    state: _State
    rank: int
    error: MvcError

    def __str__(self) -> str:
        return f"rank {self.rank}: {self.error.message}" if self.rank else self.error.message


def restore_first(
    ranks: Ranks,
    states: Iterable[_State],
    restore: Callable[[_State], _Value],
    failures: list[RestoreFailure[_State]],
    *,
    passes: tuple[type[MvcError], ...] = LOST,
    mend: Callable[[_State, MvcError | None], None] | None = None,
) -> tuple[_State, _Value] | None:
    """Restore the first of some states that all ranks can read; None: not one of the first few.

    Args:
        ranks: all of them must call this.
        states: alike on all ranks.
        restore: reads one, on every rank.
        failures: gets a failure for every state that was passed over.
        passes: the errors that another state is tried after.
        mend: called on every rank, with the error that it met if it met one; then the state is tried
            once more.
    """
    for state in states:
        value, errors = ranks.attempt(partial(restore, state))
        _raise_others(errors, passes)
        if errors and mend is not None:
            mend(state, errors.get(ranks.rank))
            value, errors = ranks.attempt(partial(restore, state))
            _raise_others(errors, passes)
        if not errors:
            return state, value
        failures.append(RestoreFailure(state, *next(iter(errors.items()))))
        if len(failures) == _MAX_TRIES:
            break
    return None


def _raise_others(errors: dict[int, MvcError], passes: tuple[type[MvcError], ...]) -> None:
    for error in errors.values():
        if not isinstance(error, passes):
            raise error
