"""A folder where syncing costs nothing: these tests ask what is written, not whether it lasts."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import pytest

_MEMORY = "/dev/shm"
_ENOUGH_BYTES = 3 * 2**30  # containers often have 64 MiB of it


@pytest.fixture
def quick_path(tmp_path):
    if not os.access(_MEMORY, os.W_OK) or shutil.disk_usage(_MEMORY).free < _ENOUGH_BYTES:
        yield tmp_path
        return
    folder = Path(tempfile.mkdtemp(prefix="mvc-test-", dir=_MEMORY))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)
