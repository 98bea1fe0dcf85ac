"""Hypothesis profiles: dev by default, ci and nightly by HYPOTHESIS_PROFILE."""

from __future__ import annotations

import os
import signal

from hypothesis import HealthCheck, settings

_QUIET = [HealthCheck.too_slow, HealthCheck.data_too_large]
settings.register_profile("dev", max_examples=40, deadline=None, suppress_health_check=_QUIET)
settings.register_profile("ci", max_examples=80, deadline=None, suppress_health_check=_QUIET)
settings.register_profile("nightly", max_examples=2000, deadline=None, suppress_health_check=_QUIET)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "dev"))

# A shell starts background jobs with Ctrl-C ignored, and children inherit that: tests of Ctrl-C would hang.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
