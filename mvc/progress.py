"""How long work tells how far it is.

A ``progress`` argument is called with the bytes done since its last call. Where it also has a
method ``expect``, it is told first how many bytes are to come, as often as more turn up: enough
for a bar that knows the time left.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


def announce(progress: Callable[[int], None] | None, size_bytes: int) -> None:
    """Tell a progress callback, where it wants to know, that so many bytes will come."""
    expect = getattr(progress, "expect", None)
    if expect is not None:
        expect(size_bytes)
