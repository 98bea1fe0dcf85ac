"""A storage that fails as real ones do: answers get lost, reads come short, writes are refused."""

from __future__ import annotations

from mvc.errors import ConflictError, StorageError


class FaultyStorage:
    """Passes everything on to another storage, but for what ``plan`` says.

    ``plan`` is asked before each call with (name, number of the call) and returns None, ``"before"``
    (nothing was done), ``"lost"`` (done, but the answer got lost) or ``"twice"`` (done, and the
    client asked again).
    """

    def __init__(self, storage, plan):
        self._storage = storage
        self._plan = plan
        self.calls = []

    def __getattr__(self, name):
        method = getattr(self._storage, name)

        def call(*args, **kwargs):
            self.calls.append(name)
            fault = self._plan(name, len(self.calls))
            if fault == "before":
                raise StorageError(f"cannot {name}: the store answers 503")
            result = method(*args, **kwargs)
            if fault == "lost":
                raise StorageError(f"cannot {name}: the answer got lost")
            if fault == "twice" and name == "replace":
                raise ConflictError("has been replaced meanwhile")
            return result

        return call
