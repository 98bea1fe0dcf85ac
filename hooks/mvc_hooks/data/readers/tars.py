"""Tar files of samples, as webdataset writes them: the files of a sample follow each other.

A sample is {"__key__": the path up to the first dot of its name, extension: bytes, ...}. Headers are read
here, because ``tarfile`` takes 30 µs for each; names that need more than a header are left to it.
"""

from __future__ import annotations

import os
import re
import tarfile
from typing import TYPE_CHECKING, Any

from mvc import FormatError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_BLOCK = 512
_FILES = b"0\x007"
_SAMPLE = re.compile("((?:.*/|)[^.]+)[.]([^/]*)", re.DOTALL)
_EXTENDED = b"xgLK"
_MAGIC = slice(257, 262)


class TarSamples:
    """The samples of a tar file."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._file = os.open(path, os.O_RDONLY)
        self._samples: list[tuple[str, list[tuple[str, int, int]]]] = []
        try:
            for name, begin, size in self._list_files():
                self._add(name, begin, size)
        except BaseException:
            self.close()
            raise

    @property
    def count(self) -> int:
        """How many samples there are."""
        return len(self._samples)

    def read(self, numbers: Sequence[int]) -> list[Any]:
        """Return some samples."""
        return [self._read(number) for number in numbers]

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)

    def _read(self, number: int) -> dict[str, Any]:
        key, files = self._samples[number]
        sample: dict[str, Any] = {"__key__": key}
        for extension, begin, size in files:
            data = os.pread(self._file, size, begin)
            if len(data) != size:
                raise FormatError(f"shard {self.path} became shorter: sample {key!r} is cut off")
            sample[extension] = data
        return sample

    def _add(self, name: str, begin: int, size: int) -> None:
        found = _SAMPLE.fullmatch(name)
        if found is None or (name.startswith("__") and name.endswith("__") and "/" not in name):
            return
        key, extension = found[1], found[2].lower()
        if not self._samples or self._samples[-1][0] != key:
            self._samples.append((key, []))
        files = self._samples[-1][1]
        if any(extension == known for known, _, _ in files):
            raise FormatError(f"shard {self.path} has two files {extension!r} of sample {key!r}")
        files.append((extension, begin, size))

    def _list_files(self) -> Iterator[tuple[str, int, int]]:
        length = os.fstat(self._file).st_size
        found, at = [], 0
        while True:
            header = os.pread(self._file, _BLOCK, at)
            if not header.strip(b"\0"):
                break
            if len(header) < _BLOCK:
                raise FormatError(f"shard {self.path} is cut off in a header at byte {at}")
            kind = header[156:157]
            if kind in _EXTENDED or header[_MAGIC] != b"ustar" or header[124] & 0x80:
                return self._list_slowly()
            size = self._parse_size(header, at)
            if at + _BLOCK + size > length:
                name = header[:100].rstrip(b"\0")
                raise FormatError(
                    f"shard {self.path} is cut off in file {name.decode('utf-8', 'replace')!r}"
                )
            if kind in _FILES:
                found.append((_read_name(header), at + _BLOCK, size))
            at += _BLOCK + -(-size // _BLOCK) * _BLOCK
        return iter(found)

    def _parse_size(self, header: bytes, at: int) -> int:
        try:
            return int(header[124:136].strip(b" \0") or b"0", 8)
        except ValueError:
            raise FormatError(f"shard {self.path} has a damaged header at byte {at}") from None

    def _list_slowly(self) -> Iterator[tuple[str, int, int]]:
        length = os.fstat(self._file).st_size
        try:
            with tarfile.open(self.path, "r:") as tar:
                members = [one for one in tar if one.isreg()]
        except (tarfile.TarError, EOFError, ValueError) as error:
            raise FormatError(f"shard {self.path} is not a tar file: {error}") from None
        for one in members:
            if one.offset_data + one.size > length:
                raise FormatError(f"shard {self.path} is cut off in file {one.name!r}")
            yield one.name, one.offset_data, one.size


def _read_name(header: bytes) -> str:
    name = header[:100].split(b"\0", 1)[0]
    prefix = header[345:500].split(b"\0", 1)[0]
    joined = prefix + b"/" + name if prefix and header[263:265] == b"00" else name
    return joined.decode("utf-8", "surrogateescape")
