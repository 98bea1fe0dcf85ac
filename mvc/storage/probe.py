"""What a store keeps of its promises: asked of it once, since not all that speak S3 do the same.

Refs move by a put on a condition. A store that ignores the condition loses updates and says nothing, so
nobody may push to one. What is written for this lies below ``check/`` and is removed at the end.
"""

from __future__ import annotations

import contextlib
import os
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from mvc.errors import ConflictError, CorruptionError, StorageError
from mvc.storage.object_store import ObjectStorage

if TYPE_CHECKING:
    from mvc.storage.protocol import SharedStorage, Tagged

FOLDER = "check/"
_WRITERS = 20
_ROUNDS = 3
_LARGE_BYTES = 9 * 2**20  # more than a part, which stores treat in another way
_ANSWER_S = 30


@dataclass(frozen=True, slots=True)
class Promise:
    """One thing that stores promise.

    Attributes:
        name: in a few words.
        kept: whether the store keeps it; None if it could not be asked.
        needed: whether refs or content rely on it.
        detail: what was seen.
    """

    name: str
    kept: bool | None
    needed: bool
    detail: str


@dataclass(frozen=True, slots=True)
class ProbeReport:
    """What a store keeps.

    Attributes:
        promises: in the order in which they were asked.
        tags: how the tag of a conditional put has to be written: ``quoted``, as HTTP says, or ``bare``.
    """

    promises: tuple[Promise, ...]
    tags: Literal["quoted", "bare"]

    @property
    def failed(self) -> tuple[Promise, ...]:
        """What is needed and not kept."""
        return tuple(promise for promise in self.promises if promise.needed and not promise.kept)

    @property
    def ok(self) -> bool:
        """Whether refs and content are safe there."""
        return not self.failed


def probe_refs(storage: SharedStorage) -> ProbeReport:
    """Return whether refs are safe on a store: about ten small requests."""
    with _probing(storage) as prober:
        prober.ask_refs(writers=2, rounds=1)
        return prober.report()


def probe_store(storage: SharedStorage) -> ProbeReport:
    """Return all that a store keeps of its promises; errors as of ``probe_refs``."""
    with _probing(storage) as prober:
        prober.ask_refs(writers=_WRITERS, rounds=_ROUNDS)
        prober.ask_content()
        prober.ask_extras()
        return prober.report()


@contextlib.contextmanager
def _probing(storage: SharedStorage) -> Iterator[_Prober]:
    prober = _Prober(storage)
    try:
        yield prober
    finally:
        with contextlib.suppress(StorageError):
            storage.delete(*prober.keys)


class _Prober:
    def __init__(self, storage: SharedStorage) -> None:
        self._storage = storage
        self._folder = f"{FOLDER}{os.urandom(8).hex()}/"
        self._promises: list[Promise] = []
        self._quoted = True
        self.keys: list[str] = []

    def report(self) -> ProbeReport:
        return ProbeReport(tuple(self._promises), "quoted" if self._quoted else "bare")

    def _key(self, name: str) -> str:
        self.keys.append(self._folder + name)
        return self.keys[-1]

    def _tell(self, name: str, kept: bool | None, detail: str, *, needed: bool = False) -> None:  # noqa: FBT001
        self._promises.append(Promise(name, kept, needed, detail))

    def _put(self, key: str, data: bytes, tag: str | None, *, quoted: bool) -> bool:
        """Put on a condition; return whether the store says that it held."""
        if isinstance(self._storage, ObjectStorage):
            return self._storage.put_if(key, data, tag, quoted=quoted)
        try:
            self._storage.replace(key, data, tag)
        except ConflictError:
            return False
        return True

    def _look(self, key: str) -> Tagged:
        tagged = self._storage.read_tagged(key)
        if tagged is None:
            raise StorageError(f"the store has no {key}, which was just written")
        return tagged

    def _read(self, key: str) -> bytes:
        return self._look(key).data

    def _tag(self, key: str) -> str:
        return self._look(key).tag

    def ask_refs(self, *, writers: int, rounds: int) -> None:
        key = self._key("ref")
        self._storage.replace(key, b"one", None)
        said = self._put(key, b"two", None, quoted=True)
        kept = not said and self._read(key) == b"one"
        detail = "refused" if kept else "an object that exists was overwritten" + self._blame(key)
        self._tell("create only what is not there", kept, detail, needed=True)

        first = self._tag(key)
        self._ask_swap(key)
        before = self._read(key)
        said = self._put(key, b"stale", first, quoted=self._quoted)
        kept = not said and self._read(key) == before
        detail = "a stale tag is refused" if kept else "a stale tag is taken: updates get lost"
        self._tell("replace nothing else", kept, detail, needed=True)

        kept = all(self._race_once(key, writers, number) for number in range(rounds))
        times = f"{rounds} times" if rounds > 1 else "once"
        detail = f"tried {times}" if kept else "several writers won, or one that lost was stored"
        self._tell(f"one winner of {writers} writers", kept, detail, needed=True)

    def _ask_swap(self, key: str) -> None:
        """Ask which form of the right tag is taken; one has to be."""
        taken: dict[bool, bool] = {}
        for quoted in (True, False):
            data = b"quoted" if quoted else b"bare"
            self._put(key, data, self._tag(key), quoted=quoted)
            # What the store says does not count: an answer may be lost, and the put done.
            taken[quoted] = self._read(key) == data
            if taken[quoted] or not isinstance(self._storage, ObjectStorage):
                break
        self._quoted = taken[True] or not any(taken.values())
        detail = (
            "by the tag, quoted" if taken[True] else "by the bare tag; the quoted one is refused"
        )
        if not any(taken.values()):
            detail = "the right tag is refused, quoted and bare" + self._blame(key)
        self._tell("replace what is known", any(taken.values()), detail, needed=True)

    def _race_once(self, key: str, writers: int, number: int) -> bool:
        tag, start, won = self._tag(key), threading.Barrier(writers), list[bytes]()

        def write(writer: int) -> None:
            data = b"%d of %d" % (writer, number)
            start.wait()
            with contextlib.suppress(StorageError):  # some say so to those who lost
                if self._put(key, data, tag, quoted=self._quoted):
                    won.append(data)

        threads = [threading.Thread(target=write, args=(writer,)) for writer in range(writers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return won in ([self._read(key)], [])

    def _blame(self, key: str) -> str:
        return ": turn the versions of the bucket off" if self._version(key) else ""

    def _version(self, key: str) -> str | None:
        if not isinstance(self._storage, ObjectStorage) or not self._storage.is_s3:
            return None
        version = self._tag(key).partition("\n")[2]
        return version if version not in ("", "null") else None

    def ask_content(self) -> None:
        keys, data = [self._key(f"object-{name}") for name in "cab"], bytes(range(256)) * 400
        for key in keys:
            with self._storage.create(self._folder) as file:
                file.write([data])
                file.publish(key)
        seen = {info.key: info.size_bytes for info in self._storage.list(self._folder)}
        kept = all(seen.get(key) == len(data) for key in keys)
        self._tell("list what was just put", kept, "at once" if kept else "some is missing")
        ranges = [(5, 7), (90_000, 300), (len(data) - 1, 1)]
        try:
            parts = [bytes(part) for part in self._storage.read_ranges(keys[0], ranges)]
            kept = parts == [data[at : at + size] for at, size in ranges]
            detail = "exact" if kept else "the bytes are others than those asked for"
        except (StorageError, CorruptionError) as error:
            kept, detail = False, error.message
        self._tell("read ranges", kept, detail, needed=True)

    def ask_extras(self) -> None:
        """Ask what mvc does not rely on, but who runs the store may want to know."""
        key, data = self._key("large"), bytes(_LARGE_BYTES)
        taken = [self._put(key, data, None, quoted=True) for _ in range(2)]
        kept = taken == [True, False]
        self._tell("conditions on 9 MiB", kept, "kept" if kept else "ignored, or refused")
        if not isinstance(self._storage, ObjectStorage):
            return
        version = self._version(key)
        if self._storage.is_s3:
            detail = "on: old roots pile up, unless a rule of the bucket removes them"
            self._tell("versions of the bucket", version is None, detail if version else "off")
        self._ask_signed(self._storage)

    def _ask_signed(self, storage: ObjectStorage) -> None:
        key = self._key("signed")
        storage.replace(key, b"signed", None)
        for name, ask in (
            ("no redirects", self._ask_redirect),
            ("delete on a condition", self._ask_delete),
        ):
            try:
                kept, detail = ask(storage, key)
            except (StorageError, OSError):
                kept, detail = None, "could not be asked"
            self._tell(name, kept, detail)

    def _ask_redirect(self, storage: ObjectStorage, key: str) -> tuple[bool, str]:
        status = _ask(storage.sign("GET", key), "GET", {})
        return status < 300, f"the store answers {status}"  # noqa: PLR2004  all that follows is none

    def _ask_delete(self, storage: ObjectStorage, key: str) -> tuple[bool, str]:
        status = _ask(storage.sign("DELETE", key), "DELETE", {"If-Match": '"' + "0" * 32 + '"'})
        kept = storage.find_size(key) is not None
        return (
            kept,
            f"refused with {status}" if kept else "the condition is ignored; mvc asks for none",
        )


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        """Follow none."""


def _ask(url: str, method: str, headers: dict[str, str]) -> int:
    """Return the status that a signed request is answered with."""
    request = urllib.request.Request(url, method=method, headers=headers)  # noqa: S310  signed for http(s)
    opener: Callable[..., Any] = urllib.request.build_opener(_NoRedirects).open
    try:
        with opener(request, timeout=_ANSWER_S) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code
