"""How much a long test does: a little each time, much in the nightly run."""

from __future__ import annotations

import os


def bounded(usual: int, nightly: int) -> int:
    """Return ``usual``, or ``nightly`` where that hypothesis profile is chosen."""
    return nightly if os.environ.get("HYPOTHESIS_PROFILE") == "nightly" else usual
