"""How much a long test does: a little each time, much in the nightly run."""

from __future__ import annotations

import os

import pytest

IS_NIGHTLY = os.environ.get("HYPOTHESIS_PROFILE") == "nightly"
nightly = pytest.mark.skipif(not IS_NIGHTLY, reason="make test-all runs it")


def bounded(usual: int, nightly: int) -> int:
    """Return ``usual``, or ``nightly`` where that hypothesis profile is chosen."""
    return nightly if IS_NIGHTLY else usual
