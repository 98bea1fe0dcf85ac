"""What to do when ranks differ: the first of the wanted answers that can be given."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, get_args

from mvc import UsageError
from mvc_hooks.checks import check_count
from mvc_hooks.divergence.ladder import FORGET_AFTER_STEPS
from mvc_lab.consistency.reports import Answer

if TYPE_CHECKING:
    from collections.abc import Collection

DEFAULT: tuple[Answer, ...] = ("resync", "rollback", "stop")


class Answers:
    """The wanted answers in order, and how often some were given: they are forgotten as a ladder forgets."""

    def __init__(self, wanted: Sequence[Answer], stop_after: int | None) -> None:
        """Take the answers; after so many of them the next one is to stop."""
        given: object = wanted
        if isinstance(given, str) or not isinstance(given, Sequence) or not given:
            raise UsageError(f"answers is {wanted!r}, not a list of answers", hint=_HINT)
        for answer in given:
            if answer not in get_args(Answer):
                raise UsageError(f"{answer!r} is not an answer", hint=_HINT)
        if stop_after is not None:
            check_count("stop_after", stop_after, 0, hint="stop_after=None never stops by itself")
        self._wanted, self._stop_after = tuple(given), stop_after
        self._given: list[int] = []

    def choose(self, step: int, possible: Collection[Answer]) -> Answer:
        """Return what to do at a step; it is stopped if nothing that is wanted is possible."""
        self._given = [at for at in self._given if step - at < FORGET_AFTER_STEPS]
        self._given.append(step)
        if self._stop_after is not None and len(self._given) > self._stop_after:
            return "stop"
        return next((answer for answer in self._wanted if answer in possible), "stop")


_HINT = 'answers=("resync", "rollback", "stop"); "report" goes on with a warning'
