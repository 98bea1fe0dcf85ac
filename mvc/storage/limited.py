"""A storage that takes its time: no more bytes in a second than it may send and read."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, cast

from mvc.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from mvc.progress import ByteProgress
    from mvc.storage.protocol import Buffer, SharedStorage

_RATE = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,6})?)([KMG]?)", re.ASCII | re.IGNORECASE)
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}


def parse_rate(text: str) -> int:
    """Return bytes per second, given as ``500K``, ``2.5M`` or ``1G`` (1,024 each) or as a number."""
    match = _RATE.fullmatch(text)
    rate = int(float(match[1]) * _UNITS[match[2].upper()]) if match else 0
    if not rate:
        raise UsageError(f"{text!r} is not a valid rate", hint='write it as "500K", "20M" or "1G"')
    return rate


class RateLimit:
    """Lets bytes pass at a rate, however many threads want to pass some.

    Each pays for its bytes before it passes, in turn: so never have more passed than the time allows.

    Args:
        bytes_s: bytes per second.
        clock: seconds, from anywhere.
        sleep: waits for a number of seconds.
    """

    def __init__(
        self,
        bytes_s: int,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self._bytes_s = bytes_s
        self._clock, self._sleep = clock, sleep
        self._lock = threading.Lock()
        self._paid_until_s = clock()

    def take(self, size_bytes: int) -> None:
        """Wait until these bytes may pass."""
        with self._lock:
            now_s = self._clock()
            self._paid_until_s = max(self._paid_until_s, now_s) + size_bytes / self._bytes_s
            wait_s = self._paid_until_s - now_s
        self._sleep(wait_s)


def limit_storage(storage: SharedStorage, limit: RateLimit) -> SharedStorage:
    """Return a storage whose packs pass a limit; what is small passes as it is."""
    return cast("SharedStorage", _Limited(storage, limit))


class _Limited:
    def __init__(self, storage: SharedStorage, limit: RateLimit) -> None:
        self._storage = storage
        self._limit = limit

    def __getattr__(self, name: str) -> Any:
        return getattr(self._storage, name)

    def read_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> Sequence[Buffer]:
        self._limit.take(sum(size_bytes for _, size_bytes in ranges))
        return self._storage.read_ranges(key, ranges)

    def upload(self, key: str, path: Path, progress: ByteProgress = None) -> None:
        def passed(size_bytes: int) -> None:
            self._limit.take(size_bytes)
            if progress is not None:
                progress(size_bytes)

        self._storage.upload(key, path, passed)
