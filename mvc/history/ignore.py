"""``.mvcignore`` files: Git's ``.gitignore`` under another name, patterns through dulwich.

The last pattern that matches a file decides; patterns of a deeper folder come after those above
it. Below an ignored folder everything is ignored, whatever a file there says. ``.mvc`` and
``.git`` are never entered. Rule files are read without following links.

A rule file may come from anywhere, and Python's regular expressions may try every way to split a name
among the stars of a pattern; pathspec 1.1.1 sets no bound to that, and took minutes for a line that Git
matches at once. Inside one folder's name the leftmost place for what follows a star is always as good as
any other, so all stars but the last are made atomic: no pattern takes longer than the square of the name.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mvc import fs
from mvc.errors import FormatError, UnsupportedError
from mvc.history.names import encode_path
from mvc.sources import FileSource, read_bytes

if TYPE_CHECKING:
    from pathlib import Path

IGNORE_NAME = ".mvcignore"
MAX_IGNORE_BYTES = 1 << 20
_MAX_DOUBLE_STARS = 4  # ``**`` is tried in every way; Git's own pages show two at most
_ALWAYS = frozenset({".mvc", ".git"})
_STAR = rb"[^/]*"  # what dulwich makes of a star


@dataclass(frozen=True, slots=True)
class IgnoreRule:
    """One rule: its ``pattern`` as written on ``line`` (from 1) of the file ``source``."""

    excludes: bool
    folders_only: bool
    expression: re.Pattern[bytes]
    pattern: str
    source: str
    line: int

    def matches(self, path: bytes, *, is_dir: bool) -> bool:
        """Return whether the rule names a path, seen from the folder of its file."""
        return (is_dir or not self.folders_only) and self.expression.match(path) is not None


_Chain = tuple[tuple[int, "Sequence[IgnoreRule]"], ...]
"""Rules that reach into a folder, the innermost file first: (where paths below begin, rules)."""


class IgnoreRules:
    """The ignore rules of a worktree; each folder is looked at once, when first needed."""

    def __init__(self, worktree: Path) -> None:
        """Take a worktree; nothing is read yet."""
        self._worktree = worktree
        self._real = fs.RealFolders(worktree)
        self._chains: dict[str, _Chain | IgnoreRule] = {}

    def is_ignored(self, path: str, is_dir: bool) -> bool:  # noqa: FBT001  reads well at every call
        """Return whether a path is ignored; a link to a folder is not a folder."""
        return self.find_rule(path, is_dir) is not None

    def find_rule(self, path: str, is_dir: bool) -> IgnoreRule | None:  # noqa: FBT001  as above
        """Return the rule that ignores a path, or a folder above it; None if none does."""
        path = path.strip("/")
        chain = self._find_chain(path if is_dir else path.rpartition("/")[0])
        if isinstance(chain, IgnoreRule):
            return chain
        return None if is_dir else _decide(path, chain, is_dir=False)

    def _find_chain(self, folder: str) -> _Chain | IgnoreRule:
        """Return the rules that reach into a folder, or the one by which it is ignored."""
        missing = []
        while folder and folder not in self._chains:
            missing.append(folder)
            folder = folder.rpartition("/")[0]
        if folder not in self._chains:
            self._chains[""] = self._extend((), "")
        chain = self._chains[folder]
        for inner in reversed(missing):
            if not isinstance(chain, IgnoreRule):
                chain = _decide(inner, chain, is_dir=True) or self._extend(chain, inner)
            self._chains[inner] = chain
        return chain

    def _extend(self, chain: _Chain, folder: str) -> _Chain:
        """Put the rules of a folder's own file, the last first, before those from above."""
        source = f"{folder}/{IGNORE_NAME}" if folder else IGNORE_NAME
        rules = tuple(reversed(parse_rules(self._read_rules(folder), source)))
        return ((len(folder) + 1 if folder else 0, rules), *chain) if rules else chain

    def _read_rules(self, folder: str) -> bytes:
        if folder not in self._real:
            return b""
        path = self._worktree / folder / IGNORE_NAME
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


def _decide(path: str, chain: _Chain, *, is_dir: bool) -> IgnoreRule | None:
    """Apply the rules that could name a path itself; its folders are not ignored."""
    name = path.rpartition("/")[2].casefold()
    if name in _ALWAYS:
        return IgnoreRule(True, False, re.compile(b""), name, "mvc", 0)  # noqa: FBT003  not from a file
    for start, rules in chain:
        relative = encode_path(path[start:])
        for rule in rules:
            if rule.matches(relative, is_dir=is_dir):
                return rule if rule.excludes else None
    return None


def parse_rules(data: bytes, source: str = IGNORE_NAME) -> list[IgnoreRule]:
    """Return the rules of a file, in order; lines that Git would not understand are skipped."""
    if not data.strip():
        return []
    from dulwich.ignore import read_ignore_patterns  # noqa: PLC0415  most worktrees have no rules

    rules = (
        _parse_rule(pattern, source, number)
        for number, line in enumerate(data.splitlines(keepends=True), 1)
        for pattern in read_ignore_patterns([line])  # type: ignore[arg-type]  # it only loops over lines
    )
    return [rule for rule in rules if rule is not None]


def _parse_rule(line: bytes, source: str, number: int) -> IgnoreRule | None:
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
    shown = re.sub(rb" $", rb"\\ ", line).decode("utf-8", "surrogateescape")
    return IgnoreRule(excludes, pattern.endswith(b"/"), expression, shown, source, number)


def _make_atomic(expression: bytes) -> bytes:
    first, *pieces = expression.split(_STAR)
    for number, piece in enumerate(pieces, 1):
        plain = piece.replace(b"[^/", b"")  # a question mark, which matches no slash
        is_inside = number < len(pieces) and b"/" not in plain and b"(" not in plain
        first += b"(?>[^/]*?" + piece + b")" if is_inside else _STAR + piece
    return first
