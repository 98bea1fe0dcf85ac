"""What commits say of the health of their checkpoints, as Git trailers."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mvc.workspace.annotations import parse_number

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

HEALTH_TRAILER = "Health"
GATE_TRAILER = "Gate"
FAILED = "failed "
COMPUTED_TRAILERS = frozenset({HEALTH_TRAILER, GATE_TRAILER})
"""Trailers that a commit gets from its content; those of a message that it takes over go."""
_LINE = re.compile(r"(\S+)((?: [a-z]+=\S+)+)")
_UNSAFE = re.compile(r"[\s%\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_MAX_DIGITS = 19
_ESCAPED = re.compile(r"(?:%[0-9A-F]{2})+")


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


def escape_word(text: str) -> str:
    """Return a name without white space, control characters and plain ``%``."""
    return _UNSAFE.sub(_escape, text)


def unescape_word(text: str) -> str:
    """Return what ``escape_word`` was given."""
    return _ESCAPED.sub(_unescape, text)


def _escape(match: re.Match[str]) -> str:
    return "".join(f"%{byte:02X}" for byte in match[0].encode("utf-8", "surrogateescape"))


def _unescape(match: re.Match[str]) -> str:
    return bytes.fromhex(match[0].replace("%", "")).decode("utf-8", "surrogateescape")


def read_health(trailers: Iterable[tuple[str, str]]) -> tuple[CheckpointHealth, ...]:
    """Return what the trailers of a commit say; malformed ones are left out."""
    found = (_parse(value) for key, value in trailers if key == HEALTH_TRAILER)
    return tuple({one.path: one for one in found if one is not None}.values())


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


def overall(found: Sequence[CheckpointHealth]) -> CheckpointHealth | None:
    """Return the health of a commit as one: of the weights, with the NaN and infinities of all files.

    Optimizer and other state grows and shrinks in a healthy run, so it counts only where nothing else
    is there. None if nothing is known.
    """
    if not found:
        return None
    weights = choose_weights(found)
    return CheckpointHealth(
        path="",
        nan=sum(one.nan for one in found),
        inf=sum(one.inf for one in found),
        largest=max(one.largest for one in weights),
        norm=math.hypot(*(one.norm for one in weights)),
        saturated=sum(one.saturated for one in weights),
    )


def choose_weights(found: Sequence[CheckpointHealth]) -> Sequence[CheckpointHealth]:
    """Return the checkpoints that are not optimizer or other state, or all if none is left."""
    from mvc.workspace.model_names import is_model_path  # noqa: PLC0415  few looks need names

    return [one for one in found if is_model_path(one.path) is not False] or found


def health_trailers(found: Iterable[CheckpointHealth]) -> list[tuple[str, str]]:
    """Return the trailers that say so."""
    return [(HEALTH_TRAILER, one.text()) for one in found]
