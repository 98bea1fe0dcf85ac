"""``.mvcignore`` files: Git's ``.gitignore`` under another name, patterns through dulwich.

A file is ignored if the last pattern that matches it says so; patterns of a deeper folder come
after those above it. Below an ignored folder everything is ignored, whatever is written there.
``.mvc`` and ``.git`` are never looked into. Rule files are read without following links.

A rule file may come from anybody, and Python's regular expressions try every way to split a name
among the stars of a pattern. Inside one folder's name the leftmost place for what follows a star
is always as good as any other, so all stars but the last are made atomic: no pattern takes longer
than the square of the name.
"""

from __future__ import annotations

import errno
import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dulwich.ignore import read_ignore_patterns, translate
from dulwich.wildmatch import MalformedPattern

from mvc import fs
from mvc.errors import FormatError, translate_os_errors
from mvc.history.paths import encode_path

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


class IgnoreRules:
    """The ignore rules of a worktree; each rule file is read once, when first needed."""

    def __init__(self, worktree: Path, *, name: str = IGNORE_NAME) -> None:
        """Take the worktree; nothing is read yet.

        Args:
            worktree: folder whose rules these are.
            name: what its rule files are called.
        """
        self._worktree = worktree
        self._name = name
        self._rules: dict[str, tuple[_Rule, ...]] = {}
        self._ignored_folders: dict[str, bool] = {"": False}

    def is_ignored(self, path: str, is_dir: bool) -> bool:  # noqa: FBT001  reads well at every call
        """Tell whether a path is ignored.

        Args:
            path: ``/``-separated, relative to the worktree.
            is_dir: whether it is a folder (a link to one is not).

        Raises:
            FormatError: a rule file is larger than any rule file.
        """
        path = path.strip("/")
        parent, _, name = path.rpartition("/")
        if name.casefold() in _ALWAYS or self._is_folder_ignored(parent):
            return True
        return self._is_folder_ignored(path) if is_dir else self._decide(path, is_dir=False)

    def _is_folder_ignored(self, folder: str) -> bool:
        """Answer for a folder, from the top down and remembered."""
        parts = folder.split("/") if folder else []
        for depth in range(1, len(parts) + 1):
            prefix = "/".join(parts[:depth])
            known = self._ignored_folders.get(prefix)
            if known is None:
                known = parts[depth - 1].casefold() in _ALWAYS or self._decide(prefix, is_dir=True)
                self._ignored_folders[prefix] = known
            if known:
                return True
        return False

    def _decide(self, path: str, *, is_dir: bool) -> bool:
        """Apply the rules that could name a path itself; its folders are not ignored."""
        parts = path.split("/")
        for depth in range(len(parts) - 1, -1, -1):
            relative = encode_path("/".join(parts[depth:]))
            for rule in self._rules_of("/".join(parts[:depth])):
                if rule.matches(relative, is_dir=is_dir):
                    return rule.excludes
        return False

    def _rules_of(self, folder: str) -> Sequence[_Rule]:
        """Return the rules of one folder's file, the last first."""
        found = self._rules.get(folder)
        if found is None:
            data = self._read_rules(folder)
            found = self._rules[folder] = tuple(reversed(parse_rules(data)))
        return found

    def _read_rules(self, folder: str) -> bytes:
        path = self._worktree / folder / self._name
        if not self._is_real(folder):
            return b""
        stat = fs.find_stat(path)
        if stat is None or not stat.is_regular:
            return b""
        if stat.size_bytes > MAX_IGNORE_BYTES:
            raise FormatError(
                f"{path} has {stat.size_bytes:,} bytes", hint=f"keep it below {MAX_IGNORE_BYTES:,}"
            )
        with translate_os_errors(f"read {path}"):
            try:
                descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            except FileNotFoundError:
                return b""
            except OSError as error:
                if error.errno == errno.ELOOP:
                    return b""  # became a link just now
                raise
            with os.fdopen(descriptor, "rb") as file:
                return file.read(MAX_IGNORE_BYTES)

    def _is_real(self, folder: str) -> bool:
        """Tell whether a folder is reached without following a link."""
        parts = folder.split("/") if folder else []
        for depth in range(1, len(parts) + 1):
            stat = fs.find_stat(self._worktree.joinpath(*parts[:depth]))
            if stat is None or not stat.is_directory:
                return False
        return True


def parse_rules(data: bytes) -> list[_Rule]:
    """Return the rules of a file, in order; lines that Git would not understand say nothing.

    Raises:
        FormatError: a pattern that could take for ever.
    """
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
