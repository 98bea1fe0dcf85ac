"""What commits say of the health of their checkpoints, as Git trailers, and the limits on it.

Gates are such limits (``mvc config gate.nan 0``): a commit that fails one is refused before its branch
moves, or made and marked by a trailer. NaN and infinities count in every checkpoint; the others look at
the weights only, as optimizer and other state grows in a healthy run.

This module is part of ``log`` and loads nothing heavy.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from mvc.errors import FormatError, GateError, UsageError
from mvc.workspace.trailers import escape_word, parse_number, read_annotations, unescape_word

if TYPE_CHECKING:
    from mvc.history.values import CommitInfo

HEALTH_TRAILER = "Health"
GATE_TRAILER = "Gate"
FAILED = "failed "


COMPUTED_TRAILERS = frozenset({HEALTH_TRAILER, GATE_TRAILER})
"""Trailers that a commit gets from its content; those of a message that it takes over go."""
_LINE = re.compile(r"(\S+)((?: [a-z]+=\S+)+)")


_MAX_DIGITS = 19


@dataclass(frozen=True, slots=True)
class CheckpointHealth:
    """The health of one checkpoint; all shards of a model are one.

    Attributes:
        path: its file, with ``*`` for the numbers of shards.
        nan: elements that are not a number.
        inf: infinite elements.
        largest: largest magnitude of the others.
        norm: Euclidean norm of all finite elements, to six digits.
        saturated: elements of 8-bit and smaller float types at their largest magnitude.
    """

    path: str
    nan: int
    inf: int
    largest: float
    norm: float
    saturated: int = 0

    def text(self) -> str:
        """Return it as the value of a trailer."""
        path = escape_word(self.path)
        figures = f"nan={self.nan} inf={self.inf} max={self.largest:.6g} norm={self.norm:.6g}"
        return f"{path} {figures}" + (f" saturated={self.saturated}" if self.saturated else "")


def read_health(trailers: Iterable[tuple[str, str]]) -> tuple[CheckpointHealth, ...]:
    """Return what the trailers of a commit say; malformed ones are left out."""
    lines = (_parse(value) for key, value in trailers if key == HEALTH_TRAILER)
    return tuple({health.path: health for health in lines if health is not None}.values())


def read_failed(trailers: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    """Return which gates a commit was marked for, with the reason of each."""
    return tuple(
        value.removeprefix(FAILED)
        for key, value in trailers
        if key == GATE_TRAILER and value.startswith(FAILED)
    )


def _parse(value: str) -> CheckpointHealth | None:
    match = _LINE.fullmatch(value)
    if match is None:
        return None
    figures = dict(word.split("=", 1) for word in match[2].split())
    counts = [figures.get(name, "0") for name in ("nan", "inf", "saturated")]
    sizes = [parse_number(figures.get(name, "")) for name in ("max", "norm")]
    if not all(text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS for text in counts):
        return None
    nan, inf, saturated = map(int, counts)
    largest, norm = (-1.0 if size is None else float(size) for size in sizes)
    if not (largest >= 0 and norm >= 0):
        return None
    return CheckpointHealth(unescape_word(match[1]), nan, inf, largest, norm, saturated)


def overall(checkpoints: Sequence[CheckpointHealth]) -> CheckpointHealth | None:
    """Return the health of a commit as one: of the weights, with the NaN and infinities of all files.

    Optimizer and other state grows and shrinks in a healthy run, so it counts only where nothing else
    is there. None if nothing is known.
    """
    if not checkpoints:
        return None
    weights = choose_weights(checkpoints)
    return CheckpointHealth(
        path="",
        nan=sum(health.nan for health in checkpoints),
        inf=sum(health.inf for health in checkpoints),
        largest=max(health.largest for health in weights),
        norm=math.hypot(*(health.norm for health in weights)),
        saturated=sum(health.saturated for health in weights),
    )


def choose_weights(checkpoints: Sequence[CheckpointHealth]) -> Sequence[CheckpointHealth]:
    """Return the checkpoints that are not optimizer or other state, or all if none is left."""
    from mvc.checkpoints.names import is_model_path  # noqa: PLC0415  few looks need names

    weights = [health for health in checkpoints if is_model_path(health.path) is not False]
    return weights or checkpoints


_HEALTH = "health."
_FIGURES = {"nan": "nan", "inf": "inf", "max": "largest", "norm": "norm", "saturated": "saturated"}


def find_value(info: CommitInfo, name: str) -> float | None:
    """Return a number that a commit records, or None.

    It is a metric, ``step``, or ``health.nan``, ``.inf``, ``.max``, ``.norm``, ``.saturated``; a metric of
    that name goes first.
    """
    facts = read_annotations(info)
    value = (facts.metrics or {}).get(name)
    if value is not None:
        return value
    if name == "step":
        return facts.step
    figure = _FIGURES.get(name.removeprefix(_HEALTH)) if name.startswith(_HEALTH) else None
    if figure is None:
        return None
    health = overall(read_health(info.trailers))
    if health is not None:
        value = getattr(health, figure)
    return value


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
class GateFailure:
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
        self, checkpoints: Sequence[CheckpointHealth], before: Sequence[CheckpointHealth]
    ) -> list[GateFailure]:
        """Return what is beyond a limit; growth is that over the checkpoint of the same name."""
        weights = {health.path for health in choose_weights(checkpoints)}
        norms = {health.path: health.norm for health in before}
        failures: list[GateFailure] = []
        for health in checkpoints:
            values: dict[str, float] = {"nan": health.nan, "inf": health.inf}
            if health.path in weights:
                values |= {"max": health.largest, "norm": health.norm}
                if norms.get(health.path):
                    values[_GROWTH] = health.norm / norms[health.path]
            failures += [
                GateFailure(gate, values[gate], limit, health.path)
                for gate, limit in self.limits.items()
                if gate in values and values[gate] > limit
            ]
        return failures

    @staticmethod
    def refuse(failures: Sequence[GateFailure]) -> GateError:
        """Return the error that says what failed."""
        more = f" (and {len(failures) - 1} more)" if len(failures) > 1 else ""
        return GateError(
            f"{failures[0]}{more}",
            hint="nothing was committed; `no_gate` commits anyway",
            failures=[asdict(failure) for failure in failures],
        )

    @staticmethod
    def mark(failures: Sequence[GateFailure]) -> list[tuple[str, str]]:
        """Return the trailers that mark a commit."""
        return [(GATE_TRAILER, f"{FAILED}{failure.gate}: {failure}") for failure in failures]


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
