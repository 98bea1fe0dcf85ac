"""Repositories that many tests start from: made once per process, and copied."""

from __future__ import annotations

import copy
import functools
import shutil
import tempfile
from pathlib import Path


def copy_made(make, root, **options):
    """Put into ``root`` what ``make(folder, **options)`` makes; return what it returned."""
    place, result = _make_once(make, tuple(options.items()))
    shutil.copytree(place, root, symlinks=True, dirs_exist_ok=True)
    return copy.deepcopy(result)


@functools.cache
def _make_once(make, options):
    folder = tempfile.TemporaryDirectory(prefix="mvc-template-")
    place = Path(folder.name, "made")
    result = make(place, **dict(options))
    _FOLDERS.append(folder)
    return place, result


_FOLDERS = []
