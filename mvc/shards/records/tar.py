"""WebDataset: a sample is a run of files whose names are the same up to the first dot.

Headers are those of POSIX ustar, with the long names of GNU and pax. Directories, links and names
like ``__meta__`` are no part of a sample.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING
from zlib import adler32

from mvc.errors import FormatError

if TYPE_CHECKING:
    from mvc.shards.records.stream import ShardBytes

_BLOCK = 512
_MAX_EXTRA_BYTES = 1 << 20  # of a long name, or of the pax records of one file
_MAX_SIZE = 2**63 - 1
_CHECKSUM = slice(148, 156)
_ADLER = 65521
_OWN_SUM = sum(b" " * 8)  # the checksum counts its own field as spaces
_META = re.compile(rb"__[^/]*__(?:\Z|/)")
_PAX_LENGTH = re.compile(rb"([1-9][0-9]{0,6}) ")
_OCTAL = re.compile(rb"[0-7]*")
_SHOWN = 100
_FILES = b"0\x007"
_NEVER_DATA = b"123456"  # links, devices, folders, pipes: what their size says is not there


@dataclass(frozen=True, slots=True)
class TarSample:
    """The files of a sample: its key, and (extension, offset, length) of each."""

    key: str
    files: list[tuple[str, int, int]]


def list_tar_samples(stream: ShardBytes) -> Iterator[TarSample]:
    """Yield the samples of a tar file.

    Raises:
        FormatError: it is not a tar file, is cut off, or a sample has two files of one extension.
    """
    sample, extensions = None, set[str]()
    for name, offset, size in _list_files(stream):
        dot = -1 if _META.match(name) else _find_dot(name)
        if dot < 0:
            continue
        key, extension = _decode(name[:dot]), _decode(name[dot + 1 :]).lower()
        if sample is None or sample.key != key:
            if sample is not None:
                yield sample
            sample, extensions = TarSample(key, []), set()
        if extension in extensions:
            raise FormatError(f"it has two files {_cut(extension)!r} of sample {_cut(key)!r}")
        extensions.add(extension)
        sample.files.append((extension, offset, size))
    if sample is not None:
        yield sample


def _find_dot(name: bytes) -> int:
    """Return where the extension of a name begins, or -1: as ``((?:.*/|)[^.]+)[.]([^/]*)``, in one pass."""
    base = name.rfind(b"/") + 1
    dot = name.find(b".", base)
    if dot != base:
        return dot
    # The key of `a/.x` is `a/`, if `a` has no dot itself; that of `.x` would be empty.
    above = name[: max(base - 1, 0)].rpartition(b"/")[2]
    return -1 if dot == 0 or b"." in above else dot


def _decode(name: bytes) -> str:
    return name.decode("utf-8", "surrogateescape")


def _cut(name: str) -> str:
    return name if len(name) <= _SHOWN else f"{name[:_SHOWN]}…"


def count_samples(stream: ShardBytes) -> int:
    """Return how many samples a tar file has."""
    return sum(1 for _ in list_tar_samples(stream))


def _list_files(stream: ShardBytes) -> Iterator[tuple[bytes, int, int]]:
    """Yield name, offset and length of all regular files."""
    long_name: bytes | None = None
    pax: dict[bytes, bytes] = {}
    while not stream.at_end():
        header = stream.read(_BLOCK)
        if not header.strip(b"\0"):
            break
        _check_header(header)
        kind, size = header[156:157], _parse_number(header[124:136])
        if kind in (b"x", b"L"):
            if size > _MAX_EXTRA_BYTES:
                raise FormatError(f"it has a header of {size:,} bytes")
            data = stream.read(size)
            stream.skip(-size % _BLOCK)
            if kind == b"x":
                pax = _parse_pax(data)
            else:
                long_name = data.rstrip(b"\0")
            continue
        if kind == b"S":
            raise FormatError("it has sparse files")
        if b"size" in pax:
            size = int(pax[b"size"])
        name = pax.get(b"path", long_name if long_name is not None else _name_of(header))
        long_name, pax = None, {} if kind not in b"gK" else pax
        offset = stream.position
        stream.skip(length := 0 if kind in _NEVER_DATA else size)
        if not stream.at_end():  # the last file may lack its padding
            stream.skip(-length % _BLOCK)
        if kind in _FILES:
            yield name, offset, size


def _check_header(header: bytes) -> None:
    own = _parse_number(header[_CHECKSUM])
    # The low half of Adler-32 is one more than the sum, which Python's sum takes far longer to find.
    expected = own - _OWN_SUM + sum(header[_CHECKSUM]) + 1
    if adler32(header) & 0xFFFF != expected % _ADLER:
        raise FormatError("it is not a tar file, or a header of it is damaged")


def _parse_number(field: bytes) -> int:
    if field[0] & 0x80:  # GNU: a number in base 256
        number = int.from_bytes(bytes([field[0] & 0x7F]) + field[1:], "big")
    else:
        text = field.split(b"\0")[0].strip(b" ")
        if not _OCTAL.fullmatch(text):
            raise FormatError("it is not a tar file, or a header of it is damaged")
        number = int(text or b"0", 8)
    if number > _MAX_SIZE:
        raise FormatError("it has a file of impossible length")
    return number


def _name_of(header: bytes) -> bytes:
    name = header[:100].partition(b"\0")[0]
    if header[345] and header[257:263] == b"ustar\0":
        return header[345:500].partition(b"\0")[0] + b"/" + name
    return name


def _parse_pax(data: bytes) -> dict[bytes, bytes]:
    """Return keyword → value of the records ``LENGTH KEYWORD=VALUE``."""
    values: dict[bytes, bytes] = {}
    at = 0
    while at < len(data) and data[at]:
        length = _PAX_LENGTH.match(data, at)
        end = at + int(length[1]) if length else at
        if length is None or not length.end() < end <= len(data):
            raise FormatError("it has a damaged pax header")
        keyword, equals, value = data[length.end() : end - 1].partition(b"=")
        if not equals:
            raise FormatError("it has a damaged pax header")
        if keyword.startswith(b"GNU.sparse"):
            raise FormatError("it has sparse files")
        if keyword == b"size" and not re.fullmatch(rb"[0-9]{1,18}", value):
            raise FormatError("it has a file of impossible length")
        values[keyword] = value
        at = end
    return values
