"""Where and with what the numbers were made."""

from __future__ import annotations

import datetime as dt
import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

_PACKAGES = (
    "torch",
    "numpy",
    "safetensors",
    "zstandard",
    "blake3",
    "dulwich",
    "rich",
    "lightning",
    "transformers",
    "torchdata",
)


def describe_machine(folder: Path) -> dict[str, object]:
    """Return processor, memory, file system, load and the day."""
    return {
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "system": f"{platform.system()} {platform.release()}",
        "file_system": _file_system(folder),
        "python": platform.python_version(),
        "load_before": [round(load, 2) for load in os.getloadavg()],
        "date": dt.datetime.now(tz=dt.UTC).date().isoformat(),
    }


def describe_packages() -> dict[str, str]:
    """Return the versions of the packages that the work is done with."""
    versions: dict[str, str] = {}
    for name in _PACKAGES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            versions[name] = "not installed"
    return versions


def describe_commit() -> str:
    """Return the commit of this project that is measured."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12"]
    done = subprocess.run(
        command, cwd=Path(__file__).parent, capture_output=True, text=True, check=False
    )
    return done.stdout.strip() or "unknown"


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _file_system(folder: Path) -> str:
    """Return the type of the file system under a folder, from the longest mount point above it."""
    best = ("", "unknown")
    for line in Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines():
        left, _, right = line.partition(" - ")
        point = left.split()[4]
        if folder.resolve().is_relative_to(point) and len(point) > len(best[0]):
            best = (point, right.split()[0])
    return best[1]
