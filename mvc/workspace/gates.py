"""Gates: limits on the health of what is committed (``mvc config gate.nan 0``).

A commit that fails one is refused before its branch moves, or made and marked by a Git trailer.
NaN and infinities count in every checkpoint; the others look at the weights only, as optimizer and other
state grows in a healthy run.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from mvc.errors import FormatError, GateError, UsageError
from mvc.workspace.annotations import parse_number
from mvc.workspace.health import FAILED, GATE_TRAILER, choose_weights

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mvc.workspace.health import CheckpointHealth

SECTION = "gate."
MODE = "gate.mode"
MODES = ("refuse", "mark")
_TEXTS = {
    "nan": "{path} has {value:,.0f} NaN{tensor}",
    "inf": "{path} has {value:,.0f} infinite elements{tensor}",
    "max": "{path} has the magnitude {value:.6g}{tensor}",
    "norm": "{path} has the norm {value:.6g}{tensor}",
    "norm-growth": "{path} has {value:.6g} times the norm in the parent{tensor}",
}
GATES = tuple(_TEXTS)
_COUNTS = ("nan", "inf")
_GROWTH = "norm-growth"


@dataclass(frozen=True, slots=True)
class Failure:
    """A checkpoint that is beyond a limit.

    Attributes:
        gate: its name, as in ``gate.nan``.
        value: the count, magnitude, norm or growth that was found.
        limit: what the gate allows.
        path: the checkpoint, with ``*`` for the numbers of shards.
        tensor: the tensor with most of it, or None.
    """

    gate: str
    value: float
    limit: float
    path: str
    tensor: str | None = None

    def __str__(self) -> str:
        most = "" if self.tensor is None else f", most in tensor {self.tensor!r}"
        fact = _TEXTS[self.gate].format(path=self.path, value=self.value, tensor=most)
        return f"{fact}; {SECTION}{self.gate} allows {self.limit:,.6g}"


@dataclass(frozen=True, slots=True)
class Gates:
    """The limits of a repository by the names of their gates, and whether a failure only marks."""

    limits: Mapping[str, float]
    is_marking: bool = False

    def judge(
        self, found: Sequence[CheckpointHealth], before: Sequence[CheckpointHealth]
    ) -> list[Failure]:
        """Return what is beyond a limit; growth is that over the checkpoint of the same name."""
        weights = {one.path for one in choose_weights(found)}
        norms = {one.path: one.norm for one in before}
        failures: list[Failure] = []
        for one in found:
            values: dict[str, float] = {"nan": one.nan, "inf": one.inf}
            if one.path in weights:
                values |= {"max": one.largest, "norm": one.norm}
                if norms.get(one.path):
                    values[_GROWTH] = one.norm / norms[one.path]
            failures += [
                Failure(gate, values[gate], limit, one.path)
                for gate, limit in self.limits.items()
                if gate in values and values[gate] > limit
            ]
        return failures

    @staticmethod
    def refuse(failures: Sequence[Failure]) -> GateError:
        """Return the error that says what failed."""
        more = f" (and {len(failures) - 1} more)" if len(failures) > 1 else ""
        return GateError(
            f"{failures[0]}{more}",
            hint="nothing was committed; `no_gate` commits anyway",
            failures=[asdict(one) for one in failures],
        )

    @staticmethod
    def mark(failures: Sequence[Failure]) -> list[tuple[str, str]]:
        """Return the trailers that mark a commit."""
        return [(GATE_TRAILER, f"{FAILED}{one.gate}: {one}") for one in failures]


def read_gates(settings: Mapping[str, str]) -> Gates | None:
    """Return the gates that settings ask for, or None; FormatError if one is not valid."""
    given = {key: value for key, value in settings.items() if key.startswith(SECTION)}
    try:
        for key, value in given.items():
            check_gate(key, value)
    except UsageError as error:
        raise FormatError(error.message, hint=error.hint) from None
    mode = given.pop(MODE, MODES[0])
    limits = {gate: float(given[SECTION + gate]) for gate in GATES if SECTION + gate in given}
    return Gates(limits, is_marking=mode == "mark") if limits else None


def check_gate(key: str, value: str) -> None:
    """Check that a setting is a gate's, with a value that it takes; or UsageError."""
    known = [*(SECTION + gate for gate in GATES), MODE]
    if key not in known:
        raise UsageError(f"{key!r} is not a gate", hint=f"there are {', '.join(known)}")
    if key == MODE:
        if value not in MODES:
            raise UsageError(f"{key} must be one of {', '.join(MODES)}, not {value[:80]!r}")
        return
    gate, number = key.removeprefix(SECTION), parse_number(value)
    if gate in _COUNTS:
        if not (value.isascii() and value.isdigit() and len(value) < 16):  # noqa: PLR2004
            raise UsageError(f"{key} must be a whole number, not {value[:80]!r}")
    elif number is None or not 0 < number < float("inf"):
        raise UsageError(f"{key} must be a positive number, not {value[:80]!r}")
    elif gate == _GROWTH and number <= 1:
        raise UsageError(f"{key} must be a factor above 1, not {value[:80]!r}")
