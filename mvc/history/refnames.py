"""Names of refs: which are valid, and what a short one stands for. Pure."""

from __future__ import annotations

import re

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
