"""Merge methods as strategies of a merge of branches: the role and parameters of each side.

The merge base is the base of methods that merge into one, and every side is an input. Methods that
go from one model to another (slerp, nearswap, arcee_fusion) go from ours to theirs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeAlias

from mvc.errors import NotFoundError, UsageError
from mvc.history.messages import drop_trailers, format_message, parse_trailers
from mvc.merging.blend import Blend, Strategy, make_strategy
from mvc.merging.rules import SIDES, MergeRule, Rules, parse_rule
from mvc.numbers.merge_methods.table import get_method
from mvc.workspace.context import Context, threads_of

if TYPE_CHECKING:
    from mvc.ids import GitId
    from mvc.merging.table import MergeRow
    from mvc.numbers.merge_methods.method import Method, Value
    from mvc.workspace.tensors import ModelTensor


Parameters: TypeAlias = "Mapping[str, Value | Sequence[Value]]"
"""Parameter → its value, or one for each side, ours first."""


def parse_parameter(text: str) -> tuple[str, Value | list[Value]]:
    """Return name and value of ``NAME=VALUE``: a number, true or false, or several with commas."""
    name, sign, value = text.partition("=")
    if not sign or not name or not value:
        raise UsageError(
            f"not a valid parameter: {text!r}", hint="write NAME=VALUE, as in density=0.5"
        )
    values = [_parse_value(name, one) for one in value.split(",")]
    return name, values if "," in value else values[0]


def _parse_value(name: str, text: str) -> Value:
    if text in {"true", "false"}:
        return text == "true"
    try:
        number = float(text)
        if math.isfinite(number):
            return int(text) if number.is_integer() and text.lstrip("+-").isdigit() else number
    except ValueError:
        pass
    raise UsageError(f"`{name}` must be a number, true or false, not {text!r}")


@dataclass(frozen=True, slots=True)
class Methods:
    """The parameters for the methods of a merge."""

    sides: int  # how many sides there are, ours included
    parameters: Parameters  # their values, for every method that has them
    seed: int = 0  # of methods that draw random numbers
    threads: int = 1  # that look at a whole tensor

    def check(self, names: Iterable[str]) -> None:
        """Check the methods that a merge may use, and their parameters, before anything is read."""
        methods = [get_method(name, SIDES) for name in dict.fromkeys(names)]
        known = {parameter.name for method in methods for parameter in method.parameters}
        for name in self.parameters:
            if name not in known:
                has = f"{', '.join(one.name for one in methods)} has" if methods else "a merge has"
                raise UsageError(
                    f"{has} no parameter {name!r}",
                    hint=f"there are {', '.join(sorted(known))}" if known else "name a strategy",
                )
        for method in methods:
            self._make(method, range(self.sides))

    def _make(self, method: Method, present: Sequence[int]) -> Strategy:
        """Return a method with its parameters for the sides that have a tensor."""
        known = {parameter.name: parameter for parameter in method.parameters}
        given = {name: value for name, value in self.parameters.items() if name in known}
        first = 1 if _goes_from_ours(method) else 0
        each: list[dict[str, object]] = [{} for _ in present[first:]]
        common: dict[str, object] = {}
        for name, value in given.items():
            if not isinstance(value, Sequence):
                common[name] = value
                continue
            if not known[name].per_input:
                raise UsageError(f"`{name}` of {method.name} takes one value for all sides")
            if len(value) != self.sides:
                raise UsageError(f"`{name}` has {len(value)} values for {self.sides} sides")
            for own, side in zip(each, present[first:], strict=True):
                own[name] = value[side]
        return make_strategy(method.name, common, each, seed=self.seed)

    def resolve(self, name: str, path: str, row: MergeRow[ModelTensor]) -> ModelTensor:
        """Return a tensor changed on all sides as the method merges it; nothing is read yet."""
        method = get_method(name)
        present = [number for number, side in enumerate(row.sides) if side is not None]
        sides = [side for side in row.sides if side is not None]
        base = row.base
        if _goes_from_ours(method):
            base, *sides = sides
        if method.base == "needed" and base is None:
            raise UsageError(
                f"tensor {row.name!r} of {path} was added on both sides, and {name} needs a base",
                hint="take it from one side with a rule",
            )
        strategy = self._make(method, present)
        ours = row.sides[present[0]]
        assert ours is not None
        blend = Blend(strategy, row.name, sides, base, dtype=ours.view.dtype, threads=self.threads)
        return blend.as_tensor(path)


def _goes_from_ours(method: Method) -> bool:
    return method.base == "needed" and method.most == 1


_STRATEGY, _RULE, _PARAMETER, _SEED = "Merge-Strategy", "Merge-Rule", "Merge-Param", "Merge-Seed"
_TOKENIZER = "Merge-Tokenizer"
TRAILERS = (_STRATEGY, _RULE, _PARAMETER, _SEED, _TOKENIZER)
_TOKENIZERS = ("union", "base", "ours", "theirs")


@dataclass(frozen=True, slots=True)
class MergeChoices:
    """The user's choices for a merge."""

    rules: Rules = field(default_factory=Rules)  # which strategy decides what
    # of the merge methods; a sequence has one value for each side, ours first
    parameters: Parameters = field(default_factory=dict)
    seed: int = 0  # of methods that draw random numbers
    # whose tokens embeddings get, or None if their rows stay where they are
    tokenizer: str | None = None

    def methods(self, context: Context, sides: int) -> Methods:
        """Return the methods of a merge of some sides, checked before anything is read."""
        names = [*(rule.strategy for rule in self.rules.rules), self.rules.default]
        methods = Methods(sides, self.parameters, self.seed, threads_of(context))
        methods.check(name for name in names if name is not None and name not in SIDES)
        return methods

    def name_tokenizer(self, context: Context, commits: Sequence[GitId]) -> MergeChoices:
        """Return this with the tokenizer called by its side; ``commits`` are the sides, ours first."""
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

    def after(self, earlier: MergeChoices) -> MergeChoices:
        """Return the earlier choices and then these, whose rules come first."""
        said = dict.fromkeys((*self.rules.rules, *earlier.rules.rules))
        rules = Rules(tuple(said), self.rules.default or earlier.rules.default)
        parameters = {**earlier.parameters, **self.parameters}
        tokenizer = self.tokenizer or earlier.tokenizer
        return MergeChoices(rules, parameters, self.seed or earlier.seed, tokenizer)

    def sign(self, message: str) -> str:
        """Return a message with these choices in place of earlier ones."""
        message = drop_trailers(message, frozenset(TRAILERS))
        if self == MergeChoices():
            return message
        trailers = [(_STRATEGY, self.rules.default)] if self.rules.default is not None else []
        trailers += [(_RULE, f"{rule.pattern}={rule.strategy}") for rule in self.rules.rules]
        for name, value in self.parameters.items():
            values = value if isinstance(value, Sequence) else [value]
            text = ",".join(str(number).lower() for number in values)
            trailers.append((_PARAMETER, f"{name}={text}"))
        trailers += [(_SEED, str(self.seed))] if self.seed else []
        trailers += [] if self.tokenizer is None else [(_TOKENIZER, self.tokenizer)]
        return format_message(message, trailers)


def make_choices(
    strategy: str | None,
    rules: Sequence[tuple[str, str]],
    parameters: Parameters,
    seed: int,
    tokenizer: str | None = None,
) -> MergeChoices:
    """Return a caller's choices for a merge."""
    return MergeChoices(
        Rules(tuple(MergeRule(*rule) for rule in rules), strategy), parameters, seed, tokenizer
    )


def read_choices(message: str) -> MergeChoices:
    """Return the choices recorded in the message of a merge."""
    found: dict[str, list[str]] = {name: [] for name in TRAILERS}
    for key, value in parse_trailers(message):
        found.get(key, []).append(value)
    return MergeChoices(
        Rules(tuple(map(parse_rule, found[_RULE])), next(iter(found[_STRATEGY]), None)),
        dict(map(parse_parameter, found[_PARAMETER])),
        next((int(one) for one in found[_SEED] if one.isdecimal()), 0),
        next((one for one in found[_TOKENIZER] if one in _TOKENIZERS), None),
    )
