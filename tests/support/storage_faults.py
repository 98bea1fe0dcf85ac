"""A storage that fails as real ones do: answers get lost, reads come short, writes are refused."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter

from mvc.errors import ConflictError, CorruptionError, StorageError

FAULTS = ("before", "lost", "twice", "short", "slow", "unordered")
"""What can go wrong with a call.

``before``: the store answers 503, and nothing was done. ``lost``: it was done, but the answer got
lost. ``twice``: it was done, the answer got lost, and the client asked again by itself. ``short``: a
read ended early. ``slow``: it takes a while. ``unordered``: a listing has no order.
"""
_SLOW_S = 0.002
_READS = ("read_into", "read", "read_ranges", "read_tagged", "is_current", "find_size", "list")


class FaultyStorage:
    """Passes everything on to another storage, but for what ``plan`` says.

    Args:
        storage: where the calls go.
        plan: asked before each call, with its name and number; returns one of ``FAULTS`` or None.

    Attributes:
        calls: names of the calls so far.
        faults: how often something went wrong, by fault.
    """

    def __init__(self, storage, plan):
        self._storage = storage
        self._plan = plan
        self.calls = []
        self.faults = Counter()
        self._lock = threading.Lock()

    def __getattr__(self, name):
        method = getattr(self._storage, name)
        if not callable(method):
            return method

        def call(*args, **kwargs):
            with self._lock:
                self.calls.append(name)
                fault = self._plan(name, len(self.calls))
                if fault is not None:
                    self.faults[fault] += 1
            if name == "create":
                return _FaultyObject(method(*args, **kwargs), fault)
            return _fail(name, fault, lambda: method(*args, **kwargs))

        return call


class _FaultyObject:
    """An object on its way, of which the fault strikes when it is published."""

    def __init__(self, pending, fault):
        self._pending = pending
        self._fault = fault

    def __getattr__(self, name):
        return getattr(self._pending, name)

    def publish(self, key):
        _fail("publish", self._fault, lambda: self._pending.publish(key))

    def __enter__(self):
        self._pending.__enter__()
        return self

    def __exit__(self, *exc_info):
        self._pending.__exit__(*exc_info)


def _fail(name, fault, call):
    if fault == "before":
        raise StorageError(f"cannot {name}: the store answers 503")
    if fault == "short" and name in _READS:
        raise CorruptionError(f"cannot {name}: the answer ends early")
    if fault == "slow":
        time.sleep(_SLOW_S)
    result = call()
    if fault == "unordered" and name == "list":
        return iter(list(result)[::-1])
    if fault == "lost":
        raise StorageError(f"cannot {name}: the answer got lost")
    if fault == "twice":
        if name == "replace":
            raise ConflictError("has been replaced meanwhile")
        if name in ("delete", "upload"):
            call()
    return result


def seeded(seed, rate, kinds=FAULTS):
    """Return a plan in which a share of the calls fails by chance, the same with each run of one thread."""
    dice = random.Random(seed)
    return lambda _name, _number: dice.choice(kinds) if dice.random() < rate else None
