"""Merge methods as strategies of a merge of branches: the role and parameters of each side.

The merge base is the base of methods that merge into one, and every side is an input. Methods that
go from one model to another (slerp, nearswap, arcee_fusion) go from ours to theirs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from mvc.errors import UsageError
from mvc.merging.blend import Blend, make_strategy
from mvc.merging.rules import SIDES
from mvc.numbers.merge_methods.table import get_method

if TYPE_CHECKING:
    from collections.abc import Iterable

    from mvc.merging.blend import Strategy
    from mvc.merging.table import Row
    from mvc.numbers.merge_methods.method import Method, Value
    from mvc.workspace.tensors import ModelTensor

Told: TypeAlias = "Mapping[str, Value | Sequence[Value]]"
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
    """The parameters for the methods of a merge.

    Attributes:
        sides: how many sides there are, ours included.
        told: parameters, for every method that has them.
        seed: of methods that draw random numbers.
        threads: that look at a whole tensor.
    """

    sides: int
    told: Told
    seed: int = 0
    threads: int = 1

    def check(self, names: Iterable[str]) -> None:
        """Check the methods that a merge may use, and their parameters, before anything is read.

        Raises:
            NotFoundError: there is no such method.
            UsageError: a parameter that none of them has, or that is out of range, or a method
                that merges another number of models.
        """
        methods = [get_method(name, SIDES) for name in dict.fromkeys(names)]
        known = {one.name for method in methods for one in method.parameters}
        for name in self.told:
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
        parameters = {one.name: one for one in method.parameters}
        told = {name: value for name, value in self.told.items() if name in parameters}
        first = 1 if _goes_from_ours(method) else 0
        each: list[dict[str, object]] = [{} for _ in present[first:]]
        common: dict[str, object] = {}
        for name, value in told.items():
            if not isinstance(value, Sequence):
                common[name] = value
                continue
            if not parameters[name].per_input:
                raise UsageError(f"`{name}` of {method.name} takes one value for all sides")
            if len(value) != self.sides:
                raise UsageError(f"`{name}` has {len(value)} values for {self.sides} sides")
            for given, side in zip(each, present[first:], strict=True):
                given[name] = value[side]
        return make_strategy(method.name, common, each, seed=self.seed)

    def resolve(self, name: str, path: str, row: Row[ModelTensor]) -> ModelTensor:
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
