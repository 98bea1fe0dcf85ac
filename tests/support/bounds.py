"""How much a test does: a little on every push, much in the nightly run (`make test-nightly`)."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

IS_NIGHTLY = os.environ.get("HYPOTHESIS_PROFILE") == "nightly"


def bounded(usual: int, nightly: int) -> int:
    """Return ``usual``, or ``nightly`` in the nightly run."""
    return nightly if IS_NIGHTLY else usual


# For properties whose examples write files: those cost a hundred times what others do.
on_disk = settings(
    max_examples=bounded(15, 200),
    suppress_health_check=[
        *settings.default.suppress_health_check,
        HealthCheck.function_scoped_fixture,
    ],
)


def rest_nightly(cases: Iterable[Any], kept: int = 1) -> list[Any]:
    """Return the cases of a parametrized test, all but the first ``kept`` marked nightly.

    A case is what ``pytest.mark.parametrize`` takes; one that is a tuple has a value per name.
    """
    return _mark_rest(cases, kept, pytest.mark.nightly)


def rest_slow(cases: Iterable[Any], kept: int = 1) -> list[Any]:
    """As ``rest_nightly``, for cases that CI runs, too."""
    return _mark_rest(cases, kept, pytest.mark.slow)


def _mark_rest(cases: Iterable[Any], kept: int, mark: pytest.MarkDecorator) -> list[Any]:
    return [
        case
        if number < kept
        else pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=mark)
        for number, case in enumerate(cases)
    ]
