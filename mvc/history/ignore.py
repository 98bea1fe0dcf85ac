"""``.mvcignore`` files: Git's ``.gitignore`` under another name, patterns through dulwich.

The last pattern that matches a file decides; patterns of a deeper folder come after those above
it. Below an ignored folder everything is ignored, whatever a file there says. ``.mvc`` and
``.git`` are never entered. Rule files are read without following links.

A rule file may come from anywhere, and Python's regular expressions try every way to split a name
among the stars of a pattern. Inside one folder's name the leftmost place for what follows a star
is always as good as any other, so all stars but the last are made atomic: no pattern takes longer
than the square of the name.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mvc import fs
from mvc.errors import FormatError, UnsupportedError
from mvc.history.paths import encode_path
from mvc.sources import FileSource, read_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

IGNORE_NAME = ".mvcignore"
MAX_IGNORE_BYTES = 1 << 20
_MAX_DOUBLE_STARS = 4  # ``**`` is tried in every way; Git's own pages show two at most
_ALWAYS = frozenset({".mvc", ".git"})
_STAR = rb"[^/]*"  # what dulwich makes of a star


@dataclass(frozen=True, slots=True)
class _Rule:
    excludes: bool
    folders_only: bool
    expression: re.Pattern[bytes]

    def matches(self, path: bytes, *, is_dir: bool) -> bool:
        return (is_dir or not self.folders_only) and self.expression.match(path) is not None


_Chain = tuple[tuple[int, "Sequence[_Rule]"], ...]
"""Rules that reach into a folder, the innermost file first: (where paths below begin, rules)."""


class IgnoreRules:
    """The ignore rules of a worktree; each folder is looked at once, when first needed."""

    def __init__(self, worktree: Path, *, name: str = IGNORE_NAME) -> None:
        """Take a worktree and what its rule files are called; nothing is read yet."""
        self._worktree = worktree
        self._name = name
        self._real = fs.RealFolders(worktree)
        self._chains: dict[str, _Chain | None] = {}

    def is_ignored(self, path: str, is_dir: bool) -> bool:  # noqa: FBT001  reads well at every call
        """Return whether a path is ignored; a link to a folder is not a folder."""
        path = path.strip("/")
        if is_dir:
            return self._find_chain(path) is None
        parent, _, name = path.rpartition("/")
        chain = self._find_chain(parent)
        return chain is None or name.casefold() in _ALWAYS or _decide(path, chain, is_dir=False)

    def _find_chain(self, folder: str) -> _Chain | None:
        """Return the rules that reach into a folder, or None if it is ignored."""
        missing = []
        while folder and folder not in self._chains:
            missing.append(folder)
            folder = folder.rpartition("/")[0]
        if folder not in self._chains:
            self._chains[""] = self._extend((), "")
        chain = self._chains[folder]
        for inner in reversed(missing):
            if chain is not None:
                is_kept = inner.rpartition("/")[2].casefold() not in _ALWAYS
                is_kept = is_kept and not _decide(inner, chain, is_dir=True)
                chain = self._extend(chain, inner) if is_kept else None
            self._chains[inner] = chain
        return chain

    def _extend(self, chain: _Chain, folder: str) -> _Chain:
        """Put the rules of a folder's own file, the last first, before those from above."""
        rules = tuple(reversed(parse_rules(self._read_rules(folder))))
        return ((len(folder) + 1 if folder else 0, rules), *chain) if rules else chain

    def _read_rules(self, folder: str) -> bytes:
        if folder not in self._real:
            return b""
        path = self._worktree / folder / self._name
        try:
            with FileSource.open(path) as source:
                if source.size_bytes > MAX_IGNORE_BYTES:
                    raise FormatError(
                        f"{path} has {source.size_bytes:,} bytes",
                        hint=f"keep it below {MAX_IGNORE_BYTES:,}",
                    )
                return read_bytes(source, 0, source.size_bytes)
        except (FileNotFoundError, NotADirectoryError, UnsupportedError):
            return b""  # there is none, or it is a link


def _decide(path: str, chain: _Chain, *, is_dir: bool) -> bool:
    """Apply the rules that could name a path itself; its folders are not ignored."""
    for start, rules in chain:
        relative = encode_path(path[start:])
        for rule in rules:
            if rule.matches(relative, is_dir=is_dir):
                return rule.excludes
    return False


def parse_rules(data: bytes) -> list[_Rule]:
    """Return the rules of a file, in order; lines that Git would not understand are skipped."""
    if not data.strip():
        return []
    from dulwich.ignore import read_ignore_patterns  # noqa: PLC0415  most worktrees have no rules

    lines = read_ignore_patterns(data.splitlines(keepends=True))  # type: ignore[arg-type]  # it only loops over lines
    return [rule for rule in map(_parse_rule, lines) if rule is not None]


def _parse_rule(line: bytes) -> _Rule | None:
    excludes = not line.startswith(b"!")
    pattern = line if excludes else line[1:]
    if excludes and line.startswith((rb"\!", rb"\#")):
        pattern = line[1:]
    name = pattern.rstrip(b"/")
    if not name:
        return None
    if name.count(b"**") > _MAX_DOUBLE_STARS:
        raise FormatError(f"ignore pattern {line[:80]!r} has more than {_MAX_DOUBLE_STARS} '**'")
    from dulwich.ignore import translate  # noqa: PLC0415  as above
    from dulwich.wildmatch import MalformedPattern  # noqa: PLC0415

    try:
        expression = re.compile(_make_atomic(translate(name)))
    except MalformedPattern:
        return None
    return _Rule(excludes, pattern.endswith(b"/"), expression)


def _make_atomic(expression: bytes) -> bytes:
    first, *pieces = expression.split(_STAR)
    for number, piece in enumerate(pieces, 1):
        plain = piece.replace(b"[^/", b"")  # a question mark, which matches no slash
        is_inside = number < len(pieces) and b"/" not in plain and b"(" not in plain
        first += b"(?>[^/]*?" + piece + b")" if is_inside else _STAR + piece
    return first
