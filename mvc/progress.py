"""How long work reports its progress.

A ``progress`` argument is called with the bytes done since its last call. If it also has a method
``expect``, that is called first with the bytes to come, and again whenever more turn up: enough
for a bar that shows the time left.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    ByteProgress = Callable[[int], None] | None


def announce(progress: ByteProgress, size_bytes: int) -> None:
    """Announce bytes to come to a progress callback that has ``expect``."""
    expect = getattr(progress, "expect", None)
    if expect is not None:
        expect(size_bytes)
