"""The root of a remote as bytes and as a value: docs/format.md, section 9.

Everything else on the store is found from here. What it lists beyond ``LIST_ENTRIES`` moves to
*lists*, objects named by their content, so that the root stays small however long the history.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import msgspec

from mvc.chunkstore.listing import pack_key
from mvc.errors import FormatError, UnsupportedError
from mvc.history.names import is_ref_name
from mvc.ids import ID_BYTES, GitId, PackId, is_git_id, is_hex_id

V = TypeVar("V")

ROOT_KEY = "root"
VERSION = 1
MAX_ROOT_BYTES = 64 * 2**20
LIST_ENTRIES = 256
"""So many packs are named in the root itself; then they move to a list."""
MAX_LISTED = 2**20
"""No remote has more packs: of the usual length, they would hold 64 TiB."""
NONCE_BYTES = 16
_MAX_SIZE = 2**62
_MAX_HOST_CHARS = 2048
_HASHED = ("packs", "lists")


def object_name(key: str) -> str:
    """Return the key of an object without what follows its name: a pack goes with its index."""
    return key.partition(".")[0]


def is_object_name(name: str) -> bool:
    """Return whether a name is one of those that a root may name."""
    folder, _, stem = name.partition("/")
    return is_git_id(stem) if folder == "history" else folder in _HASHED and _is_id(stem)


def list_key(name: str) -> str:
    """Return where a list is on the store."""
    return f"lists/{name}"


def history_key(name: str) -> str:
    """Return where a Git pack is on the store; its index is beside it, with ``.idx``."""
    return f"history/{name}.pack"


@dataclass(frozen=True, slots=True)
class Listing:
    """Packs of chunks and Git packs, each with its length in bytes."""

    packs: Mapping[PackId, int] = field(default_factory=dict)
    history: Mapping[str, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.packs) + len(self.history)

    def __or__(self, other: Listing) -> Listing:
        return Listing({**self.packs, **other.packs}, {**self.history, **other.history})

    def names(self) -> set[str]:
        """Return what its objects are called: the folder and the name of each."""
        packs = (pack_key(pack) for pack in self.packs)
        return {object_name(key) for key in (*packs, *map(history_key, self.history))}

    def without(self, names: Iterable[str]) -> Listing:
        """Return it without some packs of either kind."""
        gone = set(names)
        return Listing(
            {name: size for name, size in self.packs.items() if name not in gone},
            {name: size for name, size in self.history.items() if name not in gone},
        )


class Channel(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is published under a name: the commit, and how often the channel has moved."""

    commit: GitId
    number: int


@dataclass(frozen=True, slots=True)
class Root:
    """What a remote holds."""

    refs: Mapping[str, GitId] = field(default_factory=dict)  # full name → id of commit or tag
    # the branch that a clone checks out, a full name that ``refs`` may lack
    head: str = "refs/heads/main"
    channels: Mapping[str, Channel] = field(default_factory=dict)  # name → what is published there
    listed: Listing = field(default_factory=Listing)  # packs named here
    lists: tuple[str, ...] = ()  # names of the lists that name the others
    hosts: tuple[str, ...] = ()  # repositories on Git hosts whose history needs the packs
    nonce: str = ""  # who wrote this version, in hex; no two versions have the same
    # names of objects (``packs/<id>``) that a sweep has taken out → when, in seconds since 1970; they are deleted
    # once a grace period has passed since
    removed: Mapping[str, int] = field(default_factory=dict)
    # names of objects that a sweep deletes → since when
    deleting: Mapping[str, int] = field(default_factory=dict)
    sweeps: int = 0  # how often a sweep has begun to delete

    def tips(self) -> list[GitId]:
        """Return the commits and tags that refs and channels name: all below them is there."""
        return [*self.refs.values(), *(channel.commit for channel in self.channels.values())]


class _Root(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    version: int = msgspec.field(name="mvc-remote")
    nonce: str
    head: str
    refs: dict[str, str]
    channels: dict[str, Channel]
    packs: dict[str, int]
    history: dict[str, int]
    lists: list[str]
    hosts: list[str] = []
    removed: dict[str, int] = {}
    deleting: dict[str, int] = {}
    sweeps: int = 0


class _List(msgspec.Struct, forbid_unknown_fields=True):
    version: int = msgspec.field(name="mvc-list")
    packs: dict[str, int]
    history: dict[str, int]


class _Version(msgspec.Struct):
    version: int = msgspec.field(name="mvc-remote", default=VERSION)
    list_version: int = msgspec.field(name="mvc-list", default=VERSION)


def encode_root(root: Root) -> bytes:
    """Return the canonical bytes of a root."""
    document = _Root(
        VERSION,
        root.nonce,
        root.head,
        _by_key(root.refs),
        _by_key(root.channels),
        _by_key(root.listed.packs),
        _by_key(root.listed.history),
        list(root.lists),
        sorted(root.hosts),
        _by_key(root.removed),
        _by_key(root.deleting),
        root.sweeps,
    )
    return msgspec.json.encode(document) + b"\n"


def parse_root(data: bytes) -> Root:
    """Return what the bytes of a root say; UnsupportedError if it is of a later version."""
    document = _decode(data, _Root, "the root of the remote")
    for name, value in document.refs.items():
        _check(is_ref_name(name) and is_git_id(value), "a ref")
    for name, channel in document.channels.items():
        _check(
            is_ref_name(f"refs/channels/{name}")
            and is_git_id(channel.commit)
            and 0 < channel.number < _MAX_SIZE,
            "a channel",
        )
    _check(all(0 < len(name) <= _MAX_HOST_CHARS for name in document.hosts), "a host")
    _check(all(_is_id(name) for name in document.lists), "a list")
    leaving = [*document.removed.items(), *document.deleting.items()]
    _check(all(is_object_name(name) and 0 < at < _MAX_SIZE for name, at in leaving), "what goes")
    _check(0 <= document.sweeps < _MAX_SIZE, "the number of sweeps")
    _check(
        is_hex_id(document.nonce, 2 * NONCE_BYTES) and is_ref_name(document.head),
        "its nonce or head",
    )
    return Root(
        {name: GitId(value) for name, value in document.refs.items()},
        document.head,
        document.channels,
        _listing(document.packs, document.history),
        tuple(document.lists),
        tuple(document.hosts),
        document.nonce,
        document.removed,
        document.deleting,
        document.sweeps,
    )


def encode_list(listing: Listing) -> bytes:
    """Return the canonical bytes of a list."""
    document = _List(VERSION, _by_key(listing.packs), _by_key(listing.history))
    return msgspec.json.encode(document) + b"\n"


def parse_list(data: bytes) -> Listing:
    """Return what the bytes of a list say; errors as of ``parse_root``."""
    document = _decode(data, _List, "a list of the remote")
    return _listing(document.packs, document.history)


def with_packs(root: Root, packs: Mapping[PackId, int], history: Mapping[str, int]) -> Root:
    """Return a root that names some packs more."""
    added = Listing(dict(packs), dict(history))
    back = added.names()
    removed = {name: at for name, at in root.removed.items() if name not in back}
    return replace(root, listed=root.listed | added, removed=removed)


def _decode(data: bytes, kind: type[V], what: str) -> V:
    if len(data) > MAX_ROOT_BYTES:
        raise FormatError(f"{what} is longer than {MAX_ROOT_BYTES:,} bytes")
    try:
        version = msgspec.json.decode(data, type=_Version)
        if max(version.version, version.list_version) > VERSION:
            raise UnsupportedError(f"{what} was written by a newer mvc", hint="upgrade mvc")
        return msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        reason = "".join(sign if sign.isprintable() else "?" for sign in str(error)[:200])
        raise FormatError(f"{what} is damaged: {reason}") from None


def _listing(packs: Mapping[str, int], history: Mapping[str, int]) -> Listing:
    _check(all(_is_id(name) for name in packs), "a pack")
    _check(all(is_git_id(name) for name in history), "a Git pack")
    sizes = [*packs.values(), *history.values()]
    _check(all(0 < size < _MAX_SIZE for size in sizes), "the length of a pack")
    return Listing({PackId(name): size for name, size in packs.items()}, dict(history))


def _is_id(name: str) -> bool:
    return is_hex_id(name, 2 * ID_BYTES)


def _check(is_right: bool, what: str) -> None:  # noqa: FBT001  reads as an assertion
    if not is_right:
        raise FormatError(f"{what} in the root of the remote is not valid")


def _by_key(values: Mapping[Any, V]) -> dict[str, V]:
    return dict(sorted(values.items()))
