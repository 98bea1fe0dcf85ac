"""Rules of advice: what they may say, and for which ranks they hold. Their language is in ``rules.toml``.

Nothing in a rule is run: a condition is the name of a fact, one of ten tests, and a value.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from importlib.resources import files
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec

from mvc_hooks.ranks.spelling import spell_ranks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    Facts = Mapping[str, object]

Test = Literal[
    "set", "unset", "is", "is-not", "above", "below", "empty", "includes", "only", "differs"
]
_Text = Annotated[str, msgspec.Meta(min_length=1)]
_PLACE = re.compile(r"\{([a-zA-Z_.]+)\}")
_MOST_VALUES = 4


class FactCondition(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What a fact has to be."""

    fact: _Text
    test: Test
    value: str | int | float | list[str] | None = None


class RankRule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A rule as it is written down."""

    id: _Text
    level: Literal["error", "advice"]
    when: Annotated[list[FactCondition], msgspec.Meta(min_length=1)]
    text: _Text
    hint: _Text
    source: _Text
    url: Annotated[str, msgspec.Meta(pattern="^https://")]


class _Rules(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    rule: list[RankRule]


@dataclass(frozen=True, slots=True)
class RankAdvice:
    """A rule that holds, with what it says of these ranks; ``where`` names them."""

    rule: str
    level: str
    text: str
    hint: str
    source: str
    url: str
    ranks: tuple[int, ...]
    where: str


def load_rules() -> list[RankRule]:
    """Return all rules of the package."""
    text = (files("mvc_lab.doctor") / "rules.toml").read_text(encoding="utf-8")
    return msgspec.convert(tomllib.loads(text), _Rules).rule


def judge(rules: Sequence[RankRule], ranks: Sequence[Facts]) -> list[RankAdvice]:
    """Return what the rules say of all ranks, errors first."""
    every = [advice for rule in rules for advice in _apply(rule, ranks)]
    return sorted(every, key=lambda advice: advice.level != "error")


def _apply(rule: RankRule, ranks: Sequence[Facts]) -> Iterator[RankAdvice]:
    """Apply a rule, once for each fact that its first condition stands for."""
    first, *others = rule.when
    names = [first.fact]
    if first.fact.endswith(".*"):
        prefix = first.fact[:-1]
        names = sorted({fact for facts in ranks for fact in facts if fact.startswith(prefix)})
    for name in names:
        conditions = [msgspec.structs.replace(first, fact=name), *others]
        held = [
            rank
            for rank in range(len(ranks))
            if all(_holds(condition, rank, ranks) for condition in conditions)
        ]
        if held:
            shown = ranks if first.test == "differs" else [ranks[held[0]]]
            text, hint = (_fill(text, name, shown, ranks) for text in (rule.text, rule.hint))
            yield RankAdvice(
                rule.id,
                rule.level,
                text,
                hint,
                rule.source,
                rule.url,
                tuple(held),
                spell_ranks(held),
            )


def _holds(condition: FactCondition, rank: int, ranks: Sequence[Facts]) -> bool:
    if condition.test == "differs":
        return len({repr(facts.get(condition.fact)) for facts in ranks}) > 1
    return _TESTS[condition.test](ranks[rank].get(condition.fact), condition.value)


def _has(value: object) -> bool:
    return value is not None and value not in ("", [], {})


def _is(value: object, wanted: object) -> bool:
    choices = wanted if isinstance(wanted, list) else [wanted]
    return _has(value) and str(value).casefold() in {str(choice).casefold() for choice in choices}


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None


def _compare(value: object, wanted: object, sign: int) -> bool:
    left, right = _number(value), _number(wanted)
    return left is not None and right is not None and sign * left > sign * right


def _shares(value: object, wanted: object) -> tuple[set[object], set[object]]:
    has = set(value) if isinstance(value, list) else set()
    named = set(wanted) if isinstance(wanted, list) else set()
    return has & named, has - named


_TESTS: Mapping[str, Callable[[object, object], bool]] = {
    "set": lambda value, _: _has(value),
    "unset": lambda value, _: not _has(value),
    "is": _is,
    "is-not": lambda value, wanted: _has(value) and not _is(value, wanted),
    "above": lambda value, wanted: _compare(value, wanted, 1),
    "below": lambda value, wanted: _compare(value, wanted, -1),
    "empty": lambda value, _: value == [],
    "includes": lambda value, wanted: bool(_shares(value, wanted)[0]),
    "only": lambda value, wanted: _has(value) and not _shares(value, wanted)[1],
}


def _fill(text: str, name: str, shown: Sequence[Facts], ranks: Sequence[Facts]) -> str:
    """Put facts into a text; values that differ are followed by the ranks that have them."""

    def put(match: re.Match[str]) -> str:
        if match[1] == "fact":
            return name.rpartition(".")[2]
        if match[1] != "value":
            return _show(shown[0].get(match[1]))
        return _group(name, ranks) if len(shown) > 1 else _show(shown[0].get(name))

    return _PLACE.sub(put, text)


def _group(name: str, ranks: Sequence[Facts]) -> str:
    groups: dict[str, list[int]] = {}
    for rank, facts in enumerate(ranks):
        groups.setdefault(_show(facts.get(name)), []).append(rank)
    parts = [f"{value} ({spell_ranks(held)})" for value, held in groups.items()]
    more = [f"{len(parts) - _MOST_VALUES} others"] if len(parts) > _MOST_VALUES else []
    return ", ".join([*parts[:_MOST_VALUES], *more])


def _show(value: object) -> str:
    if value is None:
        return "not set"
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    return f"{value:.3g}" if isinstance(value, float) else str(value)
