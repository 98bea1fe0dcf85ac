"""The sources of a plan and the stages that weigh them: values, checked when they are made, and as they are stored."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from mvc.errors import FormatError, UsageError
from mvc.sampling.blocks import BlockOrder
from mvc.sampling.permutation import MAX_SIZE, is_whole

MAX_SOURCES = 4096
_OPTIONAL = {"order", "content"}
_MAX_NAME = 1024


@dataclass(frozen=True, slots=True)
class Source:
    """Samples 0 to ``size`` - 1 that are found by their index.

    Attributes:
        weight: its share in a mixture, relative to those of the others; None: it is not mixed.
        shards: tree hash of the shard map that it comes from, if there is one.
        order: how it is shuffled, if it is read in order (``blocks.py``); None: as a whole.
        content: hash of what else decides which sample an index finds (a packing), or None.
    """

    name: str
    size: int
    weight: float | None = None
    shards: str | None = None
    order: BlockOrder | None = None
    content: str | None = None

    def __post_init__(self) -> None:
        name: object = self.name
        if not isinstance(name, str) or not 0 < len(name) <= _MAX_NAME:
            raise UsageError(f"a source is named {name!r}, not by a text of 1 to {_MAX_NAME}")
        if not is_whole(self.size, 1, MAX_SIZE):
            what = "is empty" if self.size == 0 else f"has {self.size!r} samples, not 1 to 2^62"
            raise UsageError(f"source {name!r} {what}")
        if self.weight is not None:
            check_weight(name, self.weight)
        if self.shards is not None and not isinstance(self.shards, str):
            raise UsageError(f"shards of source {name!r} is {self.shards!r}, not a tree hash")
        if self.content is not None and not isinstance(self.content, str):
            raise UsageError(f"content of source {name!r} is {self.content!r}, not a hash")
        if self.order is not None and self.order.is_known and self.order.size != self.size:
            raise UsageError(
                f"source {name!r} has {self.size} samples, its order {self.order.size}"
            )

    def to_json(self) -> dict[str, Any]:
        """Return it as plain values; order and content only if there are any."""
        plain = {field.name: getattr(self, field.name) for field in fields(self)}
        plain["order"] = None if self.order is None else self.order.to_json()
        for name in _OPTIONAL:
            if plain[name] is None:
                del plain[name]
        return plain


@dataclass(frozen=True, slots=True)
class Stage:
    """The weights, one for each source, up to a position that is not in it; None: to the end."""

    until: int | None
    weights: tuple[float, ...]


def check_weight(name: str, weight: object, least: float = math.ulp(0.0)) -> None:
    """Check the weight of a source; UsageError if it is not a number of at least ``least``."""
    if type(weight) not in (int, float) or not least <= weight < math.inf:  # type: ignore[operator]
        kind = "positive number" if least else "number of 0 or more"
        raise UsageError(f"the weight of source {name!r} is {weight!r}, not a {kind}")


def read_fields(what: str, value: object, names: set[str]) -> dict[str, Any]:
    """Return a stored mapping that has these fields and no others; FormatError if it is not one."""
    if not isinstance(value, Mapping) or set(value) != names:
        raise FormatError(f"{what} must have the fields {', '.join(sorted(names))}")
    return dict(value)


def read_list(value: object) -> list[Any]:
    """Return a stored list that is not too long; FormatError if it is not one."""
    if not isinstance(value, list) or len(value) > MAX_SOURCES:
        raise FormatError("a stored plan of samples has something else in place of a list")
    return value


def parse_source(value: object) -> Source:
    """Return a stored source; FormatError or UsageError if it is malformed."""
    names = {field.name for field in fields(Source)}
    absent = _OPTIONAL - set(value) if isinstance(value, Mapping) else set()
    given = read_fields("a source", value, names - absent)
    if "order" in given:
        given["order"] = BlockOrder.parse(given["order"])
    return Source(**given)


def parse_stage(value: object) -> Stage:
    """Return a stored stage; FormatError if it is malformed."""
    given = read_fields("a stage", value, {"until", "weights"})
    weights = read_list(given["weights"])
    if not all(type(weight) in (int, float) for weight in weights):
        raise FormatError("a weight of a stage is not a number")
    return Stage(given["until"], tuple(weights))
