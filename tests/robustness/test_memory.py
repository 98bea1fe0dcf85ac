"""Memory depends on the chunks in flight, never on the file: whole commands, measured by the kernel."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from support.bounds import bounded

_SMALL_BYTES = 192 * 2**20  # more than is ever in flight
_LARGE_BYTES = 384 * 2**20
_LIMIT_BYTES = 400 * 2**20
_GROWTH_BYTES = 16 * 2**20
_STRIDE_BYTES = 2**18
_LAUNCHER = """
import re, sys
from mvc.cli.main import run
code = run(sys.argv[1:])
with open("/proc/self/status") as status:
    print(re.search(r"VmHWM:\\s+(\\d+) kB", status.read())[1])
sys.exit(code)
"""


def _write_model(path, size_bytes, number):
    """Write one large tensor: holes on disk, but no two chunks are the same."""
    header = json.dumps(
        {"w": {"dtype": "F32", "shape": [size_bytes // 4], "data_offsets": [0, size_bytes]}}
    ).encode()
    header += b" " * (-len(header) % 8)
    with path.open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        start = file.tell()
        file.truncate(start + size_bytes)
        for offset in range(0, size_bytes, _STRIDE_BYTES):
            file.seek(start + offset)
            file.write((number << 32 | offset).to_bytes(8, "little") * 512)


def _peak_bytes(folder, *arguments):
    """Run a command of mvc; return the most memory that it ever held.

    The kernel's own high-water mark of the address space: unlike ru_maxrss, it does not begin with
    what the process that forked had.
    """
    process = subprocess.run(
        [sys.executable, "-c", _LAUNCHER, *arguments],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    assert process.returncode == 0, process.stdout.decode()
    return int(process.stdout.split()[-1]) * 1024


def _peaks(folder, name, size_bytes):
    """Return command → peak memory for a file of that size, taken through its whole life."""
    folder.mkdir()
    path = folder / name
    _peak_bytes(folder, "init")
    _write_model(path, size_bytes, 1)
    peaks = {"add": _peak_bytes(folder, "add", name)}
    peaks["commit"] = _peak_bytes(folder, "commit", "-m", "one")
    before = _digest(path)
    _write_model(path, size_bytes, 2)
    peaks["diff"] = _peak_bytes(folder, "diff", "--stat")
    peaks["commit -a"] = _peak_bytes(folder, "commit", "-a", "-m", "two")
    peaks["checkout"] = _peak_bytes(folder, "checkout", "HEAD~1")
    assert _digest(path) == before
    path.touch()
    peaks["status"] = _peak_bytes(folder, "status")
    peaks["fsck"] = _peak_bytes(folder, "fsck", "--data")
    if name.endswith(".safetensors"):
        peaks["export"] = _peak_bytes(folder, "export", "HEAD", "-o", "out.safetensors")
        assert os.path.getsize(folder / "out.safetensors") >= size_bytes
    return peaks


def _digest(path):
    """Return the SHA-256 of a large file."""
    told = subprocess.run(["sha256sum", path], capture_output=True, check=True, text=True)
    return told.stdout.split()[0]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["model.safetensors", "opaque.dat"][: bounded(1, 2)])
def test_memory_does_not_grow_with_the_file(name, tmp_path):
    small = _peaks(tmp_path / "small", name, _SMALL_BYTES)
    large = _peaks(tmp_path / "large", name, _LARGE_BYTES)
    told = {command: (small[command] >> 20, large[command] >> 20) for command in small}
    for command, (before_mib, after_mib) in told.items():
        assert after_mib * 2**20 < _LIMIT_BYTES, f"{command}: {told}"
        assert (after_mib - before_mib) * 2**20 < _GROWTH_BYTES, f"{command}: {told}"
