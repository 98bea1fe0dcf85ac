"""What a whole raw file becomes with a general compressor, with ZipNN, and as XOR deltas.

The yardsticks for training states: no chunks, no hashes, nothing kept but compressed bytes, and
for deltas a chain as long as the history, so that the last file needs all before it.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
from zstandard import ZstdCompressor

from benchmarks.children import CommandError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from benchmarks.children import Runner

ZIPNN = "ZipNN"
_LEVEL = 3
_WORD_BYTES = 4
_ZIPNN_VERSION = "from importlib.metadata import version; import zipnn; print(version('zipnn'))"
_ZIPNN_SIZES = """
import json, sys, zipnn
sizes = []
for path in sys.argv[1:]:
    plain = open(path, "rb").read()
    codec = zipnn.ZipNN(input_format="byte", bytearray_dtype="float32", threads=2)
    packed = codec.compress(bytearray(plain))  # overwrites what it is given
    sizes.append(len(packed))
    if len(sizes) == 1:
        codec = zipnn.ZipNN(input_format="byte", bytearray_dtype="float32", threads=2)
        assert bytes(codec.decompress(packed)) == plain, "ZipNN did not bring the bytes back"
print(json.dumps(sizes))
"""


def measure_files(paths: Sequence[Path]) -> dict[str, list[int]]:
    """Return coding → bytes of every file, in order; files are of one length.

    The first file has nothing to differ from and is coded as it is.
    """
    sizes: dict[str, list[int]] = {}
    for coding, size in _code_all(paths):
        sizes.setdefault(coding, []).append(size)
    return sizes


def _code_all(paths: Sequence[Path]) -> Iterator[tuple[str, int]]:
    earlier: NDArray[np.uint8] | None = None
    for path in paths:
        plain = np.fromfile(path, np.uint8)
        delta = plain if earlier is None else plain ^ earlier
        yield "zstd-3 of the file", _compressed_bytes(plain)
        yield "XOR + zstd-3", _compressed_bytes(delta)
        yield "XOR + byte planes + zstd-3", _compressed_bytes(_cut_planes(delta))
        earlier = plain


def _compressed_bytes(data: NDArray[np.uint8]) -> int:
    return len(ZstdCompressor(level=_LEVEL).compress(data.data))


def _cut_planes(data: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return first the lowest bytes of all fp32 words, then the next, and the odd bytes last."""
    whole = len(data) - len(data) % _WORD_BYTES
    planes = data[:whole].reshape(-1, _WORD_BYTES).T.ravel()
    return np.concatenate([planes, data[whole:]])


def find_zipnn(runner: Runner, pythons: Sequence[Path]) -> tuple[Path, str] | None:
    """Return the first Python that has ZipNN, and ZipNN's version; None where none has."""
    for python in pythons:
        try:
            version = runner.output(runner.home, [python, "-c", _ZIPNN_VERSION])
        except (CommandError, OSError):
            continue
        return python, version.strip()
    return None


def measure_zipnn(runner: Runner, python: Path, paths: Sequence[Path]) -> list[int]:
    """Return what ZipNN makes of every file, in order; the first is brought back and compared."""
    answer = runner.output(runner.home, [python, "-c", _ZIPNN_SIZES, *paths])
    found: list[int] = json.loads(answer.strip().splitlines()[-1])
    return found
