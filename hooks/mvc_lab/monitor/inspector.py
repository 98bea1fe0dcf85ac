"""What NVIDIA's NCCL Inspector has written of collectives on this machine, read from its folder.

The Inspector is a plugin of NCCL that notes how long each collective took. ``NCCL_INSPECTOR_DUMP_DIR`` names
its folder: files of JSON objects, one for each collective, or one ``.prom`` file for each GPU in the
text format of Prometheus. Both give bandwidth in GB/s and time in µs. Whatever else is there is skipped,
and only the ends of the newest files are read.
"""

from __future__ import annotations

import json
import math
import os
import platform
import re
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

FOLDER = "NCCL_INSPECTOR_DUMP_DIR"
_MAX_FILES, _MAX_BYTES, _MAX_NAMES = 32, 64 * 1024, 32
_GB, _US = 1e9, 1e-6
_PROM = {
    "nccl_bus_bandwidth_gbs": ("bus", _GB),
    "nccl_collective_exec_time_microseconds": ("seconds", _US),
}
_LINE = re.compile(r'(\w+)\{[^}]*\bcollective="(\w{1,40})"[^}]*\} (\S{1,32})')


def read_inspector(folder: str | None) -> dict[str, dict[str, float]]:
    """Return collective → ``bus`` and ``seconds``, the medians of what the ends of the newest files say."""
    values: dict[str, dict[str, list[float]]] = {}
    for text in _read_ends(Path(folder)) if folder else ():
        for name, what, value in parse_inspector(text):
            if name in values or len(values) < _MAX_NAMES:
                values.setdefault(name, {}).setdefault(what, []).append(value)
    return {
        name: {what: median(numbers) for what, numbers in kinds.items()}
        for name, kinds in values.items()
    }


def parse_inspector(text: str) -> Iterator[tuple[str, str, float]]:
    """Yield collective, ``bus`` or ``seconds``, and value of every line that says so."""
    for line in text.splitlines():
        if line.startswith("{"):
            yield from _parse_json(line)
        elif match := _LINE.fullmatch(line.strip()):
            metric, name, number = match.groups()
            value = _amount(number)
            if metric in _PROM and value is not None:
                what, unit = _PROM[metric]
                yield name, what, value * unit


def _parse_json(line: str) -> Iterator[tuple[str, str, float]]:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return
    host, perf = _find(record, "metadata", "hostname"), _find(record, "coll_perf")
    name = _find(perf, "coll")
    if host not in (None, platform.node()) or not isinstance(name, str) or not name.isalnum():
        return
    for key, what, unit in (("coll_busbw_gbs", "bus", _GB), ("coll_exec_time_us", "seconds", _US)):
        value = _amount(_find(perf, key))
        if value is not None:
            yield name[:40], what, value * unit


def _find(value: Any, *keys: str) -> Any:
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def _amount(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if 0 <= number < math.inf else None


def _read_ends(folder: Path) -> Iterator[str]:
    try:
        with os.scandir(folder) as entries:
            files = [entry for entry in entries if entry.is_file(follow_symlinks=False)]
        newest = sorted(files, key=lambda entry: entry.stat().st_mtime)[-_MAX_FILES:]
    except OSError:
        return
    for entry in newest:
        try:
            with open(entry.path, "rb") as file:
                file.seek(max(0, entry.stat().st_size - _MAX_BYTES))
                yield file.read(_MAX_BYTES).decode("utf-8", "replace")
        except OSError:
            continue
