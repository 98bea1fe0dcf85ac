"""Names of refs: which are valid, and what a short one stands for; and which paths a tree may hold. Pure.

No path reaches outside the worktree or into ``.mvc``, for a tree can come from anywhere. A name that a
file system takes for ``.mvc`` or ``.git`` is as dangerous as the name itself: other case, characters
that HFS+ ignores, trailing dots and spaces, short names and streams of NTFS. Git guards its own folder
on every system, because a repository made on one is read on another; mvc does the same for both folders.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable

from mvc.errors import UsageError

HEADS = "refs/heads/"
TAGS = "refs/tags/"
NOTES = "refs/notes/"
REMOTES = "refs/remotes/"

_RULES = (
    "{}",
    "refs/{}",
    "refs/tags/{}",
    "refs/heads/{}",
    "refs/remotes/{}",
    "refs/remotes/{}/HEAD",
)
# What Git refuses anywhere in a name, and in or at the ends of its parts.
_BAD_NAME = re.compile(r"[\0- ~^:?*\[\\\x7f]|\.\.|@\{|//|/\.|\.lock(/|\Z)|[/.]\Z")
_TOP_NAME = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZ_")
_NAME_HINT = "see git help check-ref-format: no spaces, '..', '~', '^', ':', '?', '*', '[', '\\'"
_MAX_NAME_BYTES = 1024
_MAX_PART_BYTES = 250  # a file name may have 255, and ".lock" must fit


def is_ref_name(name: str) -> bool:
    """Return whether this is a full ref name such as ``refs/heads/main``, valid for Git."""
    try:
        encoded = name.encode()
    except UnicodeEncodeError:
        return False
    return (
        name.startswith("refs/")
        and len(encoded) <= _MAX_NAME_BYTES
        and _BAD_NAME.search(name) is None
        and max(map(len, encoded.split(b"/"))) <= _MAX_PART_BYTES
    )


def is_top_name(name: str) -> bool:
    """Return whether this is a ref outside ``refs/``: HEAD, ORIG_HEAD and the like."""
    return bool(name) and _TOP_NAME.issuperset(name)


def check_ref_name(name: str) -> str:
    """Return a full ref name that is valid."""
    if not is_ref_name(name):
        raise UsageError(f"{name!r} is not a valid ref name", hint=_NAME_HINT)
    return name


def branch_ref(branch: str) -> str:
    """Return the full ref name of a branch."""
    if branch.startswith("-") or branch == "HEAD" or not is_ref_name(HEADS + branch):
        raise UsageError(f"{branch!r} is not a valid branch name", hint=_NAME_HINT)
    return HEADS + branch


def tag_ref(tag: str) -> str:
    """Return the full ref name of a tag."""
    if tag.startswith("-") or tag in {"HEAD", "@"} or not is_ref_name(TAGS + tag):
        raise UsageError(f"{tag!r} is not a valid tag name", hint=_NAME_HINT)
    return TAGS + tag


def expand_name(name: str) -> list[str]:
    """Return the full names that a short name may stand for, in Git's order."""
    full = [rule.format(name) for rule in _RULES]
    return [full_name for full_name in full if is_ref_name(full_name) or is_top_name(full_name)]


MAX_PATH_BYTES = 4094
"""Git's index has twelve bits for the length of a path, all ones meaning "longer"."""

_RESERVED = frozenset({".mvc", ".git"})
_SHORT_NAMES = re.compile(r"(mvc|git)~[0-9]+")
_UNSEEN = re.compile("[\u200c-\u200f\u202a-\u202e\u2060-\u2064\u206a-\u206f\ufeff\u00ad]")


def encode_path(path: str) -> bytes:
    """Return a path as Git stores it: UTF-8, undecodable bytes of the file system as they were."""
    return path.encode("utf-8", "surrogateescape")


def decode_path(path: bytes) -> str:
    """Return a path as text, the inverse of ``encode_path``."""
    return path.decode("utf-8", "surrogateescape")


def folders_of(paths: Iterable[str]) -> set[str]:
    """Return every folder above some paths; each is met once, however deep the paths are."""
    folders: set[str] = set()
    for path in paths:
        folder = path.rpartition("/")[0]
        while folder and folder not in folders:
            folders.add(folder)
            folder = folder.rpartition("/")[0]
    return folders


def find_path_fault(path: str) -> str | None:
    """Return what is wrong with a path of a tree or index, or None."""
    if not path or path.startswith("/") or path.endswith("/"):
        return "is empty or absolute" if not path or path[0] == "/" else "ends with a slash"
    try:
        length = len(encode_path(path))
    except UnicodeEncodeError:
        return "cannot be stored as text"
    if length > MAX_PATH_BYTES:
        return f"is longer than {MAX_PATH_BYTES} bytes"
    if path.isascii() and not _SUSPECT.search(path):
        return None
    return next(filter(None, map(find_name_fault, path.split("/"))), None)


_SUSPECT = re.compile(r"[\\\x00~:]|//|(^|/)\.|[. ](/|$)", re.ASCII)


def find_name_fault(name: str) -> str | None:
    """Return what is wrong with one name inside a path, or None."""
    if name in ("", ".", ".."):
        return "has an empty, '.' or '..' part"
    if "/" in name or "\\" in name or "\0" in name:
        return "has a backslash or NUL in a name"
    stem = name.split(":", 1)[0]  # a stream of an NTFS file
    seen = unicodedata.normalize("NFKC", _UNSEEN.sub("", stem)).casefold()
    seen = _UNSEEN.sub("", seen).rstrip(" .")
    is_reserved = seen in _RESERVED or _SHORT_NAMES.fullmatch(seen)
    return "names .mvc or .git" if is_reserved else None
