"""doctor: what this repository runs on, and what is slow here; measures, and changes nothing."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mvc.chunkstore.store import count_cores
from mvc.errors import FormatError, MvcError, StorageError
from mvc.fs import write_durable
from mvc.ids import hash_chunk
from mvc.workspace.health import read_gates
from mvc.workspace.pending import find_pending, is_bisecting
from mvc.workspace.staging import scratch_folder

if TYPE_CHECKING:
    from pathlib import Path

    from mvc.workspace.context import Context

_PACKAGES = (
    "mvc-models", "numpy", "zstandard", "blake3", "dulwich", "msgspec", "ml_dtypes", "safetensors",
    "torch",
)  # fmt: skip
_PROBE_BYTES = 64 * 2**20
_SLOW_DISK_BYTES_PER_S = 200e6
_SLOW_SYNC_S = 0.05
_LITTLE_SPACE_BYTES = 5e9


@dataclass(frozen=True, slots=True)
class DoctorReport:
    """What doctor found.

    Attributes:
        versions: package → version; ``missing`` if it is not installed.
        python: version of Python.
        system: operating system and machine.
        cores: cores that this process may use.
        filesystem: type of the file system the repository is on.
        free_bytes: free space there.
        write_bytes_per_s: a 64 MiB file written and synced; None if nothing can be written.
        sync_s: a one-byte file written, synced and renamed; None if nothing can be written.
        hash_bytes_per_s: BLAKE3 on one core.
        advice: what is slow or risky here, in words.
        under_way: what waits to be finished: ``merge``, ``cherry-pick``, ``revert``, ``bisect``.
    """

    versions: dict[str, str]
    python: str
    system: str
    cores: int
    filesystem: str
    free_bytes: int
    write_bytes_per_s: float | None
    sync_s: float | None
    hash_bytes_per_s: float
    advice: tuple[str, ...]
    under_way: tuple[str, ...] = ()


def doctor(context: Context) -> DoctorReport:
    """Look at versions, file system and speed of the machine under the repository.

    Raises:
        StorageError: the machine failed.
    """
    folder = context.git_dir
    block = os.urandom(2**20) * (_PROBE_BYTES // 2**20)
    write_speed = sync_s = None
    trouble: list[str] = []
    try:
        with scratch_folder(context) as scratch:
            write_s = _timed(lambda: write_durable(scratch / "big", [block]))
            sync_s = _timed(lambda: write_durable(scratch / "small", [b"x"]))
        write_speed = len(block) / write_s
    except StorageError as error:
        trouble.append(f"nothing can be written here: {error.message}")
    under_way = _find_under_way(context, trouble)
    hash_s = _timed(lambda: hash_chunk(block))
    free_bytes = shutil.disk_usage(folder).free
    filesystem = find_filesystem(folder)
    return DoctorReport(
        versions={name: _version(name) for name in _PACKAGES},
        python=platform.python_version(),
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        cores=count_cores(),
        filesystem=filesystem,
        free_bytes=free_bytes,
        write_bytes_per_s=write_speed,
        sync_s=sync_s,
        hash_bytes_per_s=_PROBE_BYTES / hash_s,
        advice=(
            *trouble,
            *_find_bad_gates(context),
            *_advice(filesystem, free_bytes, write_speed, sync_s),
        ),
        under_way=under_way,
    )


def _find_under_way(context: Context, trouble: list[str]) -> tuple[str, ...]:
    """Return what waits to be finished; marks that are damaged are trouble."""
    found: list[str] = ["bisect"] if is_bisecting(context) else []
    try:
        pending = find_pending(context)
    except MvcError as error:
        trouble.append(f"what is under way cannot be told: {error.message}")
        return tuple(found)
    return (pending.kind, *found) if pending is not None else tuple(found)


def _find_bad_gates(context: Context) -> tuple[str, ...]:
    """Say if a gate was set by hand to what it does not take."""
    try:
        read_gates(context.history.config.read())
    except FormatError as error:
        return (f"no commit can be made: {error.message}",)
    return ()


def _timed(action: Callable[[], object]) -> float:
    started_s = time.perf_counter()
    action()
    return max(time.perf_counter() - started_s, 1e-9)


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "missing"


def find_filesystem(folder: Path) -> str:
    """Return the type of the file system that a folder is on, as the kernel calls it."""
    return find_mount(folder)[0]


def find_mount(folder: Path) -> tuple[str, str]:
    """Return the type of the file system that a folder is on, and the options it is mounted with."""
    best, kind = "", ("unknown", "")
    resolved = str(folder.resolve())
    try:
        with open("/proc/self/mounts", encoding="utf-8", errors="replace") as mounts:
            for line in mounts:
                _, place, name, options, *_ = line.split(" ")
                inside = resolved == place or resolved.startswith(place.rstrip("/") + "/")
                if inside and len(place) >= len(best):
                    best, kind = place, (name, options)
    except OSError:
        return "unknown", ""
    return kind


def _advice(
    filesystem: str, free_bytes: int, write_speed: float | None, sync_s: float | None
) -> tuple[str, ...]:
    advice: list[str] = []
    if filesystem.startswith(("nfs", "cifs", "smb", "fuse", "9p")):
        advice.append(f"{filesystem} is a network file system: locks and syncs may be unreliable")
    if filesystem in ("tmpfs", "ramfs"):
        advice.append(f"{filesystem} lives in memory: commits do not survive a reboot")
    if free_bytes < _LITTLE_SPACE_BYTES:
        advice.append(f"only {free_bytes / 1e9:.1f} GB are free")
    if write_speed is not None and write_speed < _SLOW_DISK_BYTES_PER_S:
        advice.append(f"the disk writes {write_speed / 1e6:.0f} MB/s: commits wait for it")
    if sync_s is not None and sync_s > _SLOW_SYNC_S:
        advice.append(f"one fsync takes {sync_s * 1e3:.0f} ms: many small commits are slow")
    return tuple(advice)
