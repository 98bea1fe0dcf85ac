"""A Git repository elsewhere, reached as Git reaches it: over HTTP, ssh, Git's own protocol or a pipe.

dulwich speaks the protocols. What a host says is untrusted: how much it may say is bounded, what it
says is checked, and whatever its bytes make a parser raise becomes one error.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

from dulwich.client import HTTPUnauthorized
from dulwich.config import StackedConfig, apply_instead_of
from dulwich.errors import GitProtocolError, NotGitRepository, SendPackError
from dulwich.objects import ZERO_SHA
from dulwich.pack import UnpackedObject

from mvc import fs
from mvc.errors import (
    ConflictError,
    FormatError,
    MvcError,
    NotFoundError,
    StorageError,
    UnsupportedError,
)
from mvc.history.git_pack import NUMBERS
from mvc.history.host_clients import Meter, find_logins, make_client, report_login
from mvc.history.host_urls import GitUrl, parse_git_url
from mvc.history.names import HEADS, is_ref_name
from mvc.ids import GitId, is_git_id
from mvc.storage.urls import LOOPBACK

if TYPE_CHECKING:
    from pathlib import Path

    from mvc.history.objects import ObjectStore
    from mvc.history.transfer import Entry

_Answer = TypeVar("_Answer")
_HEAD = b"HEAD"
_PREFIXES = [_HEAD, b"refs/"]
_PEELED = b"^{}"
_MAX_PACK_BYTES = 2**34
_MAX_HAVES = 256  # what Git itself offers before it gives up
_MAX_DETAIL_CHARS = 300
_MAIN = HEADS + "main"
_LOGIN_HINT = (
    "Git's credential helpers and ~/.netrc were asked; "
    '"git credential approve" or a helper such as "store" keeps what the host wants'
)

Move = tuple["GitId | None", "GitId | None"]
"""The value that a ref must have now, and its new one; None where it does not exist."""


@dataclass(frozen=True, slots=True)
class HostRefs:
    """The refs of a host: full name → id, and the branch that a clone checks out."""

    refs: dict[str, GitId] = field(default_factory=dict)
    head: str = _MAIN


class GitHost:
    """A repository on a Git host; every call opens a connection of its own.

    Args:
        url: of the repository.
        timeout_s: after how many seconds without an answer a host is given up.
    """

    def __init__(self, url: GitUrl, *, timeout_s: int = 60) -> None:
        self.url = url
        self._timeout_s = timeout_s
        self._login: tuple[str, str] | None = None
        self._meter = Meter(url)
        self._is_sent = False

    def read_refs(self) -> HostRefs:
        """Return the refs as they are now.

        Raises:
            NotFoundError: no repository is there.
            FormatError: what came is not a list of refs.
            StorageError: the host cannot be reached, or refuses.
        """
        answer = self._ask(lambda client, path: client.get_refs(path, ref_prefix=_PREFIXES))
        if answer.object_format not in (None, "sha1"):
            kind = _clean(answer.object_format)
            raise UnsupportedError(f"{self.url} names objects by {kind}, not SHA-1")
        return _parse_refs(answer.refs, answer.symrefs)

    def fetch(self, wants: Iterable[GitId], haves: Haves, path: Path) -> None:
        """Write a pack with all that some commits lead to and others do not; errors are those of ``read_refs``."""
        names: list[Any] = [object_id.encode() for object_id in wants]
        with fs.DurableFile(path.parent) as file:
            left_bytes = _MAX_PACK_BYTES

            def write(data: bytes) -> int:
                nonlocal left_bytes
                left_bytes -= len(data)
                if left_bytes < 0:
                    raise FormatError(f"{self.url} sends a pack without an end")
                self._meter.left_bytes += len(data)
                file.write([data])
                return len(data)

            self._ask(
                lambda client, at: client.fetch_pack(at, lambda *_, **__: names, haves, write)
            )
            file.publish(path)

    def push(
        self, moves: Mapping[str, Move], objects: ObjectStore, entries: Sequence[Entry]
    ) -> None:
        """Send objects and move refs: all of them or none, where the host can.

        Raises:
            ConflictError: a ref is not what it should be, or the host refused to move one.
            StorageError: the host cannot be reached, or refuses; nothing moved.
        """
        self._is_sent = False
        try:
            self._push(moves, objects, entries, is_atomic=len(moves) > 1)
        except (StorageError, FormatError):
            if not self._is_sent:
                raise
            now = self.read_refs().refs  # the answer may have got lost behind a push that was done
            if any(now.get(name) != new for name, (_, new) in moves.items()):
                raise

    def _push(
        self,
        moves: Mapping[str, Move],
        objects: ObjectStore,
        entries: Sequence[Entry],
        *,
        is_atomic: bool,
    ) -> None:
        def move(there: Mapping[bytes, bytes]) -> Any:
            for name, (old, _) in moves.items():
                now = there.get(name.encode())
                if now != (old and old.encode()):
                    raise ConflictError(
                        f"{name} moved on the remote meanwhile",
                        hint='run "mvc fetch", then try again',
                    )
            self._is_sent = True
            news = {name.encode(): new for name, (_, new) in moves.items()}
            return {name: new.encode() if new else ZERO_SHA for name, new in news.items()}

        def unpack(object_id: GitId) -> UnpackedObject:
            kind, data = objects.read(object_id)
            sha = bytes.fromhex(object_id)
            return UnpackedObject(NUMBERS[kind], decomp_chunks=[data], sha=sha)

        def generate(*_: object, **__: object) -> tuple[int, Iterator[UnpackedObject]]:
            return len(entries), (unpack(object_id) for object_id, _ in entries)

        try:
            result = self._ask(
                lambda client, at: client.send_pack(at, move, generate, atomic=is_atomic),
                to_push=True,
            )
        except StorageError as error:
            if is_atomic and "atomic push" in error.message:
                self._push(moves, objects, entries, is_atomic=False)
                return
            raise
        self._check_taken(result.ref_status or {}, moves, is_atomic=is_atomic)

    def _check_taken(
        self, status: Mapping[bytes, str | None], moves: Mapping[str, Move], *, is_atomic: bool
    ) -> None:
        refused = {_text(name): why for name, why in status.items() if why}
        if refused:
            reasons = "; ".join(f"{name}: {_clean(why)}" for name, why in refused.items())
            rest = sorted(moves.keys() - refused.keys())
            moved = "" if is_atomic or not rest else f"; {', '.join(rest)} moved"
            raise ConflictError(
                f"{self.url} refused {reasons}{moved}", hint='"mvc fetch" shows what is there now'
            )

    def _ask(self, call: Callable[[Any, str], _Answer], *, to_push: bool = False) -> _Answer:
        """Return what a call gives, with credentials if the host wants some."""
        # The user's ``insteadOf`` may lead elsewhere.
        text = apply_instead_of(self._config, str(self.url), push=to_push)
        url = self.url if text == str(self.url) else parse_git_url(text)
        answer = self._try(url, call, self._login)
        if not isinstance(answer, HTTPUnauthorized):
            return answer
        if url.scheme == "http" and url.host not in LOOPBACK:
            raise StorageError(
                f"{self.url} asks for credentials, which are not sent unencrypted",
                hint="use https",
            )
        for login in find_logins(url):
            answer = self._try(url, call, (login.user, login.password))
            report_login(url, login, is_good=not isinstance(answer, HTTPUnauthorized))
            if not isinstance(answer, HTTPUnauthorized):
                self._login = login.user, login.password
                return answer
        raise StorageError(f"{self.url} does not let us in", hint=_LOGIN_HINT)

    def _try(
        self,
        url: GitUrl,
        call: Callable[[Any, str], _Answer],
        login: tuple[str, str] | None,
    ) -> _Answer | HTTPUnauthorized:
        self._meter = Meter(url)
        client, path, opened = make_client(url, self._config, self._meter, login, self._timeout_s)
        try:
            return call(client, path)
        except HTTPUnauthorized as error:
            return error
        except MvcError:
            raise
        except NotGitRepository:
            raise NotFoundError(f"{self.url} is not a Git repository") from None
        except (GitProtocolError, SendPackError, OSError) as error:
            raise StorageError(f"{self.url}: {_describe(error)}") from None
        except Exception as error:  # noqa: BLE001  hostile bytes make dulwich raise anything
            raise FormatError(
                f"{self.url} does not speak Git's protocol: {_clean(str(error)) or type(error).__name__}"
            ) from None
        finally:
            client.close()
            for connection in opened:
                with suppress(OSError, GitProtocolError):
                    connection.close()

    @cached_property
    def _config(self) -> StackedConfig:
        """What user and machine say about Git: never a repository, whose config may be a stranger's."""
        try:
            return StackedConfig(StackedConfig.default_backends())
        except (OSError, ValueError) as error:
            raise FormatError(f"the Git config of the user is damaged: {error}") from None


class Haves:
    """What is offered to a host as known here: some tips, then what they are built upon.

    Args:
        objects: of the repository.
        tips: commits and tags; what is not here is passed over.
    """

    def __init__(self, objects: ObjectStore, tips: Iterable[GitId]) -> None:
        self._objects = objects
        headers = {tip: objects.find_header(tip) for tip in tips}
        commits = [tip for tip, header in headers.items() if header and header[0] == "commit"]
        self._pending = deque(commits)
        self._seen = set(self._pending)
        self._tips = len(self._pending)
        self._left = max(_MAX_HAVES, self._tips)
        self.shallow = {commit.encode() for commit in objects.shallow}  # dulwich tells the host

    def __next__(self) -> bytes | None:
        """Return the next id, or None at the end."""
        if not self._pending or not self._left:
            return None
        self._left -= 1
        self._tips -= 1
        commit = self._pending.popleft()
        for parent in self._objects.read_commit(commit).parents:
            if parent not in self._seen:
                self._seen.add(parent)
                self._pending.append(parent)
        return commit.encode()

    def ack(self, _: bytes) -> None:
        """Offer just the other tips: something in common was found."""
        self._left = max(0, min(self._left, self._tips))

    def nak(self) -> None:
        """Go on."""


def _parse_refs(refs: Mapping[Any, Any], symrefs: Mapping[Any, Any]) -> HostRefs:
    """Return what a host says of its refs, checked."""
    ids: dict[str, GitId] = {}
    for name, value in refs.items():
        if name == _HEAD or name.endswith(_PEELED) or value is None:
            continue
        text, object_id = _text(name), _text(value)
        if not (is_ref_name(text) and is_git_id(object_id)):
            raise FormatError("a ref of the host is not valid")
        ids[text] = GitId(object_id)
    head = _text(symrefs.get(_HEAD, b""))
    if head not in ids:  # it may be unborn, or an old server does not say
        branches = sorted(name for name in ids if name.startswith(HEADS))
        same = [name for name in branches if ids[name] == _text(refs.get(_HEAD) or b"")]
        head = next((name for name in (_MAIN, *same, *branches) if name in ids), _MAIN)
    return HostRefs(ids, head)


def _text(name: bytes) -> str:
    return name.decode("utf-8", "replace")


def _describe(error: Exception) -> str:
    if isinstance(error, SendPackError) and error.args and isinstance(error.args[0], bytes):
        return _clean(_text(error.args[0]))
    reason = str(getattr(error.__cause__, "reason", None) or error)
    return _clean(reason.rpartition("): ")[2]) or type(error).__name__


def _clean(text: str) -> str:
    """Return what a host says as one short line that does nothing to a terminal."""
    # dulwich puts a question mark for what it takes out, line ends too.
    return re.sub(r"[^ -~]+", " ", text).strip(" ?")[:_MAX_DETAIL_CHARS]
