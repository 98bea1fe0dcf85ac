"""Settings of the suite: how many examples, how many threads, where the temporary files are."""

from __future__ import annotations

import gc
import importlib.util
import os
import shutil
import signal

import pytest
from hypothesis import HealthCheck, settings

# One thread of torch per process, children included. The models here are tiny: more threads only wait for each
# other, for minutes where other processes keep the cores busy.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# In memory, where syncing costs nothing: tests ask what is written, and cannot see whether it lasts.
_MEMORY = "/dev/shm"
_ENOUGH_BYTES = 3 * 2**30  # containers often have 64 MiB of it
if os.access(_MEMORY, os.W_OK) and shutil.disk_usage(_MEMORY).free > _ENOUGH_BYTES:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", _MEMORY)

_QUIET = [HealthCheck.too_slow, HealthCheck.data_too_large]
settings.register_profile("dev", max_examples=40, deadline=None, suppress_health_check=_QUIET)
settings.register_profile("nightly", max_examples=1000, deadline=None, suppress_health_check=_QUIET)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "dev"))

# A shell starts background jobs with Ctrl-C ignored, and children inherit that: tests of Ctrl-C would hang.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


# Without torch, test modules that import it are skipped, with a line that says why.
_HAS_TORCH = importlib.util.find_spec("torch") is not None
_NO_TORCH = "needs torch, which is not installed"
# Its conftest imports it, which a report of a collector comes too late for.
collect_ignore = [] if _HAS_TORCH else ["hooks/parts"]


def pytest_report_header():
    return None if _HAS_TORCH else "torch is not installed: tests that need it are skipped"


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector):
    report = yield
    if not _HAS_TORCH and report.failed and "No module named 'torch'" in str(report.longrepr):
        report.outcome, report.longrepr = "skipped", (str(collector.path), 1, _NO_TORCH)
    return report


def pytest_collection_finish():
    """Spare every later look at all objects those of the imported libraries, half a million."""
    gc.collect()
    gc.freeze()


def pytest_collection_modifyitems(items):
    for item in () if _HAS_TORCH else items:
        if item.get_closest_marker("torch"):
            item.add_marker(pytest.mark.skip(reason=_NO_TORCH))


@pytest.fixture(scope="session")
def moto():
    """Return the endpoint of an S3 server in memory, with the bucket ``mvc``."""
    pytest.importorskip("moto", reason="moto is not installed")
    from support.s3_server import make_bucket, run_s3_server

    with run_s3_server() as endpoint:
        make_bucket(endpoint)
        yield endpoint
