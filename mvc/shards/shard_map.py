"""Shard maps as values and as bytes (docs/format.md, section 11), and what differs between two: pure but for ``ShardMap.read``.

A map is text: a header in JSON, then a line per shard, sorted by path. Its tree hash is the SHA-256
of these lines without the store's tags, so two maps with equal trees hold the same shards, wherever
they are. There is one way to write a map; whatever differs from it is refused.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from mvc.errors import FormatError, NotFoundError, UnsupportedError
from mvc.sources import FileSource, read_bytes

MAP_SUFFIX = ".shards"
"""What the name of every map ends with."""
MAX_MAP_BYTES = 1 << 30
MAX_PATH_CHARACTERS = 4096

_VERSION = "shards 1"
_MAX_HEADER_BYTES = 64 * 1024
_MAX_COUNT = 2**63 - 1
_SHA_BYTES = 32
_MAX_TAG = 1024
# Fixed ranges and not what a Python calls printable, or two Pythons would write different maps.
_ESCAPED = re.compile("[\0-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_NO_NAME = re.compile("[\0\ud800-\udc7f\udd00-\udfff]")  # what remains are undecodable bytes
_TAG_SAFE = "!#$&'()*+,/:;=?@[]\"^`{|}<>\\"
_PLAIN_TAG = re.compile(f"[\\w.~{re.escape(_TAG_SAFE)}-]{{2,}}", re.ASCII)
_ODD_PART = re.compile(r"(?:^|/)\.{0,2}(?:/|\Z)")
_FIELDS = {"mvc", "root", "pattern", "tree", "shards", "bytes", "records"}


@dataclass(frozen=True, slots=True)
class Shard:
    """One file of a data set.

    Attributes:
        path: relative to the root of its map, ``/``-separated.
        size_bytes: length of the file.
        sha256: hash of its bytes.
        records: how many samples are in it, or None if its format does not say.
        tag: ETag or version that the store gives the object, or None.
    """

    path: str
    size_bytes: int
    sha256: bytes
    records: int | None = None
    tag: str | None = None

    @property
    def content(self) -> tuple[int, bytes, int | None]:
        """What is in the shard, whatever it is called and wherever it is."""
        return self.size_bytes, self.sha256, self.records


@dataclass(frozen=True, slots=True)
class ShardMap:
    """The shards of a data set, sorted by path. ``build`` makes one.

    Attributes:
        root: the folder of the shards, relative to that of the map's file, or a URL.
        shards: sorted by path; no path comes twice.
        tree: hash of all shards, in hex: equal trees are equal data.
        pattern: which files of the root belong to the map, or None for all of them.
    """

    root: str
    shards: tuple[Shard, ...]
    tree: str
    pattern: str | None = None

    @classmethod
    def build(cls, root: str, shards: Iterable[Shard], pattern: str | None = None) -> ShardMap:
        """Return the map of some shards, in whatever order they come.

        Raises:
            FormatError: a path, number or hash that no map can hold, or a path that comes twice.
        """
        ordered = tuple(sorted(shards, key=lambda shard: shard.path))
        previous = None
        for shard in ordered:
            _check_shard(shard)
            if shard.path == previous:
                raise FormatError(f"shard {shard.path!r} comes twice")
            previous = shard.path
        fault = _find_root_fault(root) or (pattern is not None and find_path_fault(pattern))
        if fault:
            raise FormatError(f"root {root[:200]!r} {fault}")
        lines = [_encode_line(shard, has_tag=False) + "\n" for shard in ordered]
        tree = hashlib.sha256("".join(lines).encode("utf-8")).hexdigest()
        return cls(root, ordered, tree, pattern)

    @classmethod
    def parse(cls, data: bytes) -> ShardMap:
        """Return the map that ``data`` holds.

        Raises:
            FormatError: ``data`` is not exactly what ``encode`` writes for some map.
        """
        if len(data) > MAX_MAP_BYTES:
            raise FormatError(f"shard map of {len(data):,} bytes is over the limit")
        head, _, rest = data.partition(b"\n")
        header = _parse_header(head)
        # One by one: of a GiB of line breaks the list of lines alone would take eight.
        lines = io.TextIOWrapper(io.BytesIO(rest), "utf-8", newline="\n")
        try:
            shards = [_parse_line(line.removesuffix("\n")) for line in lines]
        except UnicodeDecodeError as error:
            raise FormatError("shard map is not UTF-8") from error
        parsed = cls.build(header["root"], shards, header.get("pattern"))
        if parsed.tree != header["tree"]:
            raise FormatError("shard map does not match its tree hash: a line was changed")
        if parsed.encode() != data:
            raise FormatError("shard map is not written as mvc writes it, or a total is wrong")
        return parsed

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> ShardMap:
        """Return the map in a file.

        Raises:
            NotFoundError: there is no such file.
            FormatError: it is not a shard map.
        """
        name = os.fspath(path)
        try:
            with FileSource.open(Path(os.path.realpath(name))) as source:
                data = read_bytes(source, 0, min(source.size_bytes, MAX_MAP_BYTES + 1))
        except (FileNotFoundError, NotADirectoryError, UnsupportedError) as error:
            raise NotFoundError(
                f"there is no shard map {name!r}", hint="`mvc data add` makes one"
            ) from error
        try:
            return cls.parse(data)
        except FormatError as error:
            raise FormatError(f"{name}: {error.message}") from error

    def encode(self) -> bytes:
        """Return the bytes of the map's file."""
        header: dict[str, object] = {"mvc": _VERSION, "root": self.root}
        if self.pattern is not None:
            header["pattern"] = self.pattern
        header |= {"tree": self.tree, "shards": len(self.shards), "bytes": self.size_bytes}
        header["records"] = self.records
        lines = [json.dumps(header), *(_encode_line(shard, has_tag=True) for shard in self.shards)]
        return ("\n".join(lines) + "\n").encode("utf-8")

    @property
    def size_bytes(self) -> int:
        """How many bytes all shards have."""
        return sum(shard.size_bytes for shard in self.shards)

    @property
    def records(self) -> int | None:
        """How many samples all shards have, or None if that of one is not known."""
        return sum_records(self.shards)

    def find(self, path: str) -> Shard | None:
        """Return the shard of a path, or None."""
        at = bisect_left(self.shards, path, key=lambda shard: shard.path)
        is_there = at < len(self.shards) and self.shards[at].path == path
        return self.shards[at] if is_there else None


@dataclass(frozen=True, slots=True)
class MapChanges:
    """What differs between two maps; pairs are (before, after).

    Attributes:
        added: shards that are new.
        removed: shards that are gone.
        changed: shards with another content under the same path.
        moved: shards with the same content under another path.
    """

    added: tuple[Shard, ...] = ()
    removed: tuple[Shard, ...] = ()
    changed: tuple[tuple[Shard, Shard], ...] = ()
    moved: tuple[tuple[Shard, Shard], ...] = ()

    def __bool__(self) -> bool:
        """Whether anything differs."""
        return bool(self.added or self.removed or self.changed or self.moved)

    @property
    def more_bytes(self) -> int:
        """By how many bytes the data grew."""
        more = sum(shard.size_bytes for shard in self.added)
        more -= sum(shard.size_bytes for shard in self.removed)
        return more + sum(new.size_bytes - old.size_bytes for old, new in self.changed)

    @property
    def more_records(self) -> int | None:
        """By how many samples the data grew, or None if that is not known."""
        came = sum_records((*self.added, *(new for _, new in self.changed)))
        went = sum_records((*self.removed, *(old for old, _ in self.changed)))
        return None if came is None or went is None else came - went


def compare_maps(old: ShardMap | None, new: ShardMap | None) -> MapChanges:
    """Return what differs; None is a map that does not exist, all of whose shards come or go."""
    before = {shard.path: shard for shard in old.shards} if old is not None else {}
    after = {shard.path: shard for shard in new.shards} if new is not None else {}
    added = {path: shard for path, shard in after.items() if path not in before}
    removed = {path: shard for path, shard in before.items() if path not in after}
    both = ((shard, after[path]) for path, shard in before.items() if path in after)
    changed = tuple((shard, new) for shard, new in both if shard.content != new.content)
    added_by_content: dict[object, list[Shard]] = {}
    for shard in reversed(added.values()):
        added_by_content.setdefault(shard.content, []).append(shard)
    moved = tuple(
        (removed.pop(shard.path), added.pop(same.pop().path))
        for shard in tuple(removed.values())
        if (same := added_by_content.get(shard.content))
    )
    return MapChanges(tuple(added.values()), tuple(removed.values()), changed, moved)


def sum_records(shards: Iterable[Shard]) -> int | None:
    """Return how many samples some shards have, or None if that of one is not known."""
    counts = [shard.records for shard in shards]
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None


def name_of_map(path: str) -> str:
    """Return how a map is called in commits: its file's name without ``.shards``."""
    return path.rpartition("/")[2].removesuffix(MAP_SUFFIX)


def find_path_fault(path: str) -> str | None:
    """Return why no map can hold a path below its root, or None if one can."""
    if not path or path.startswith("/"):
        return "is not below the root"
    if _NO_NAME.search(path):
        return "holds a character that no file name has"
    if len(path) > MAX_PATH_CHARACTERS:
        return "is too long"
    if _ODD_PART.search(path):
        return "has a part that is empty, '.' or '..'"
    return None


def _find_root_fault(root: str) -> str | None:
    if "://" in root:
        return (
            None
            if len(root) <= MAX_PATH_CHARACTERS and not _ESCAPED.search(root)
            else "is not a URL"
        )
    below = root
    while below.startswith("../"):
        below = below[3:]
    return None if below in {".", ".."} else find_path_fault(below)


def _check_shard(shard: Shard) -> None:
    fault = find_path_fault(shard.path)
    if fault is not None:
        raise FormatError(f"shard path {shard.path[:200]!r} {fault}")
    if not 0 <= shard.size_bytes <= _MAX_COUNT or not 0 <= (shard.records or 0) <= _MAX_COUNT:
        raise FormatError(f"shard {shard.path!r} has an impossible size or number of records")
    if len(shard.sha256) != _SHA_BYTES:
        raise FormatError(f"shard {shard.path!r} has a hash of {len(shard.sha256)} bytes")
    if shard.tag is not None and not 0 < len(shard.tag) <= _MAX_TAG:
        raise FormatError(f"shard {shard.path!r} has a tag of {len(shard.tag)} characters")


def _encode_line(shard: Shard, *, has_tag: bool) -> str:
    records = "-" if shard.records is None else shard.records
    tag = f"{_encode_tag(shard.tag)} " if has_tag else ""
    is_odd = shard.path[:1] == '"' or _ESCAPED.search(shard.path)
    path = json.dumps(shard.path) if is_odd else shard.path
    return f"{shard.sha256.hex()} {shard.size_bytes} {records} {tag}{path}"


def _encode_tag(tag: str | None) -> str:
    if tag is None:
        return "-"
    if _PLAIN_TAG.fullmatch(tag):  # quote() takes longer than all the rest
        return tag
    return "%2D" if tag == "-" else quote(tag, safe=_TAG_SAFE)


def _parse_header(line: bytes) -> dict[str, Any]:
    if len(line) > _MAX_HEADER_BYTES:
        raise FormatError("not a shard map: the header is too long")
    try:
        header = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise FormatError("not a shard map: the header is missing") from error
    if not isinstance(header, dict) or "mvc" not in header:
        raise FormatError("not a shard map: the header is missing")
    if header["mvc"] != _VERSION:
        raise FormatError(f"not a shard map of this version of mvc: {str(header['mvc'])[:80]!r}")
    texts = [header.get(name) for name in ("root", "tree")] + [header.get("pattern", "")]
    if header.keys() - _FIELDS or not all(isinstance(text, str) for text in texts):
        raise FormatError("shard map has a malformed header")
    return header


def _parse_line(line: str) -> Shard:
    try:
        sha256, size, records, tag, path = line.split(" ", 4)
        name: str = json.loads(path) if path.startswith('"') else path  # a text, if it is JSON
        count = None if records == "-" else int(records)
        mark = None if tag == "-" else unquote(tag, errors="strict") if "%" in tag else tag
        return Shard(name, int(size), bytes.fromhex(sha256), count, mark)
    except (ValueError, TypeError, RecursionError) as error:
        raise FormatError(f"shard map has a malformed line: {line[:200]!r}") from error
