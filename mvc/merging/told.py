"""The user's choices for a merge: strategies, rules and parameters of methods.

It stands in the message of the merge commit as trailers, enough to repeat the merge; and so in
``MERGE_MSG`` while a merge is under way, where going on finds it again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeAlias

from mvc.errors import NotFoundError, UsageError
from mvc.history.messages import (
    drop_trailers,
    format_message,
    parse_trailers,
)
from mvc.merging.rules import SIDES, Rule, Rules, parse_rule
from mvc.merging.strategies import Methods, parse_parameter
from mvc.workspace.context import threads_of

if TYPE_CHECKING:
    from mvc.ids import GitId
    from mvc.numbers.merge_methods.method import Value
    from mvc.workspace.context import Context

    Parameters: TypeAlias = Mapping[str, Value | Sequence[Value]]

_STRATEGY, _RULE, _PARAMETER, _SEED = "Merge-Strategy", "Merge-Rule", "Merge-Param", "Merge-Seed"
_TOKENIZER = "Merge-Tokenizer"
TRAILERS = (_STRATEGY, _RULE, _PARAMETER, _SEED, _TOKENIZER)
_TOKENIZERS = ("union", "base", "ours", "theirs")


@dataclass(frozen=True, slots=True)
class Told:
    """The user's choices for a merge.

    Attributes:
        rules: which strategy decides what.
        parameters: of the merge methods; a sequence has one value for each side, ours first.
        seed: of methods that draw random numbers.
        tokenizer: whose tokens embeddings get, or None if their rows stay where they are.
    """

    rules: Rules = field(default_factory=Rules)
    parameters: Parameters = field(default_factory=dict)
    seed: int = 0
    tokenizer: str | None = None

    def methods(self, context: Context, sides: int) -> Methods:
        """Return the methods of a merge of so many sides, checked before anything is read.

        Raises:
            NotFoundError: there is no such method.
            UsageError: a parameter that none of them has, or out of range.
        """
        names = [*(rule.strategy for rule in self.rules.rules), self.rules.default]
        methods = Methods(sides, self.parameters, self.seed, threads_of(context))
        methods.check(name for name in names if name is not None and name not in SIDES)
        return methods

    def name_tokenizer(self, context: Context, commits: Sequence[GitId]) -> Told:
        """Return this with the tokenizer called by its side; ``commits`` are the sides, ours first.

        Raises:
            UsageError: it is that of nothing that is merged.
        """
        name = self.tokenizer
        known = _TOKENIZERS[: -1 if len(commits) > 2 else None]  # noqa: PLR2004  ours and theirs
        if name is None or name in known:
            return self
        with suppress(NotFoundError):
            side = dict(zip(commits, known[2:], strict=False)).get(
                context.history.resolve_commit(name)
            )
            if side is not None:
                return replace(self, tokenizer=side)
        raise UsageError(
            f"{name!r} does not name a tokenizer of this merge",
            hint=f"choose {', '.join(known)}, or a branch that is merged",
        )

    def after(self, earlier: Told) -> Told:
        """Return the earlier choices and then these, whose rules come first."""
        said = dict.fromkeys((*self.rules.rules, *earlier.rules.rules))
        rules = Rules(tuple(said), self.rules.default or earlier.rules.default)
        parameters = {**earlier.parameters, **self.parameters}
        tokenizer = self.tokenizer or earlier.tokenizer
        return Told(rules, parameters, self.seed or earlier.seed, tokenizer)

    def sign(self, message: str) -> str:
        """Return a message with these choices in place of earlier ones."""
        message = drop_trailers(message, frozenset(TRAILERS))
        if self == Told():
            return message
        told = [(_STRATEGY, self.rules.default)] if self.rules.default is not None else []
        told += [(_RULE, f"{one.pattern}={one.strategy}") for one in self.rules.rules]
        told += [(_PARAMETER, _parameter_text(*one)) for one in self.parameters.items()]
        told += [(_SEED, str(self.seed))] if self.seed else []
        told += [] if self.tokenizer is None else [(_TOKENIZER, self.tokenizer)]
        return format_message(message, told)


def _parameter_text(name: str, value: Value | Sequence[Value]) -> str:
    values = value if isinstance(value, Sequence) else [value]
    return f"{name}={','.join(str(one).lower() for one in values)}"


def make_told(
    strategy: str | None,
    rules: Sequence[tuple[str, str]],
    parameters: Parameters,
    seed: int,
    tokenizer: str | None = None,
) -> Told:
    """Return a caller's choices for a merge."""
    return Told(Rules(tuple(Rule(*one) for one in rules), strategy), parameters, seed, tokenizer)


def read_told(message: str) -> Told:
    """Return the choices recorded in the message of a merge."""
    found: dict[str, list[str]] = {name: [] for name in TRAILERS}
    for key, value in parse_trailers(message):
        found.get(key, []).append(value)
    return Told(
        Rules(tuple(map(parse_rule, found[_RULE])), next(iter(found[_STRATEGY]), None)),
        dict(map(parse_parameter, found[_PARAMETER])),
        next((int(one) for one in found[_SEED] if one.isdecimal()), 0),
        next((one for one in found[_TOKENIZER] if one in _TOKENIZERS), None),
    )
