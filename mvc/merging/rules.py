"""Strategies for conflicts: by pattern, or by default."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from mvc.errors import NotFoundError, UsageError
from mvc.states.document import STATE_FILE
from mvc.tensor_names import takes

Side: TypeAlias = Literal["ours", "theirs", "base"]
SIDES: tuple[Side, ...] = get_args(Side)
"""Strategies that take one version as it is; all others compute one from all."""
_OPTIMIZER = re.compile(r"(^|\.)state\.\d+\.(?!(weight|bias)$)\w+$")
"""Names of what torch's optimizers keep of the parameters, which they count."""


@dataclass(frozen=True, slots=True)
class MergeRule:
    """A strategy for the tensors or files that match a pattern: NAME, PATH or PATH:NAME.

    NAME is a tensor, a module or a wildcard, PATH a file or a wildcard.
    """

    pattern: str
    strategy: str

    def fits(self, path: str, name: str | None) -> bool:
        """Return whether it is about a file, or about a tensor in it."""
        if fnmatch.fnmatchcase(path, self.pattern):
            return True
        place, _, inner = self.pattern.partition(":")
        return name is not None and (
            takes(self.pattern, name)
            or (inner != "" and fnmatch.fnmatchcase(path, place) and takes(inner, name))
        )


@dataclass(frozen=True, slots=True)
class Rules:
    """The first rule that fits decides, else the default; None is a conflict.

    A method that computes decides by default over weights only: the mean of two optimizers' moments,
    or of two states of a random generator, means nothing. So in a training state that was committed
    from memory, what is not the model needs a rule of its own; so does an optimizer's state elsewhere.
    """

    rules: tuple[MergeRule, ...] = ()
    default: str | None = None

    def find(self, path: str, name: str | None, paths: Collection[str]) -> str | None:
        """Return the strategy for a tensor, or for a file (no name); ``paths`` are all files."""
        for rule in self.rules:
            if rule.fits(path, name):
                return rule.strategy
        if self.default in SIDES:
            return self.default
        is_state = name is None or _OPTIMIZER.search(name) or is_training_state(path, paths)
        return None if is_state else self.default

    def check_used(self, names: Iterable[tuple[str, str | None]]) -> None:
        """Check that every rule matches one of the (path, tensor or None) of a merge."""
        left = list(self.rules)
        for path, name in names:
            if not left:
                return
            left = [rule for rule in left if not rule.fits(path, name)]
        if left:
            raise NotFoundError(
                f"rule {left[0].pattern + '=' + left[0].strategy!r} matches no file and no tensor",
                hint='"mvc ls --tensors" lists the names',
            )


def is_training_state(path: str, paths: Collection[str]) -> bool:
    """Return whether a file belongs to a training state from memory, and is not its model."""
    folder, slash, name = path.rpartition("/")
    return f"{folder}{slash}{STATE_FILE}" in paths and not name.startswith("model")


def parse_rule(text: str) -> MergeRule:
    """Parse the rule ``GLOB=strategy``."""
    pattern, equals, strategy = text.rpartition("=")
    if not equals or not pattern or not strategy:
        raise UsageError(
            f"rule {text[:80]!r} is not GLOB=STRATEGY", hint="such as 'lm_head.*=theirs'"
        )
    return MergeRule(pattern, strategy)
