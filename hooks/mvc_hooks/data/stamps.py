"""Which files were hashed, and what they were then."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mvc_hooks.data.lazy_worker import Stamp


class Stamps:
    """Path of file → stamp and hash."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[Stamp, bytes]] = {}

    def find(self, path: str, stamp: Stamp) -> bytes | None:
        """Return the hash of a file that has not changed since."""
        known = self._known.get(path)
        return known[1] if known is not None and known[0] == stamp else None

    def note(self, path: str, stamp: Stamp, digest: bytes) -> None:
        """Note the hash of a file."""
        self._known[path] = stamp, digest

    def save(self) -> None:
        """Keep them for the next process."""
