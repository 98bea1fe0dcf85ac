"""What a storage key may look like: one check for every storage."""

from __future__ import annotations

import re

from mvc.errors import UsageError

MAX_KEY_CHARS = 512
_PART = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*\Z")


def is_key(key: str) -> bool:
    """Tell whether ``key`` is a relative path of plain names: no ``..``, no hidden name."""
    return 0 < len(key) <= MAX_KEY_CHARS and all(_PART.match(part) for part in key.split("/"))


def check_key(key: str) -> None:
    """Refuse a key that is empty, absolute, too long, or has a part that is hidden or not plain."""
    if not is_key(key):
        raise UsageError(f"{key!r} is not a storage key")


def check_prefix(prefix: str) -> None:
    """Refuse what is not a folder prefix: empty, or a key followed by ``/``."""
    if prefix and not (prefix.endswith("/") and is_key(prefix[:-1])):
        raise UsageError(f"{prefix!r} is not a storage prefix")
