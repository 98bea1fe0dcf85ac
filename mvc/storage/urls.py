"""What the URL of a store says: which kind it is, which bucket, and where in it; and its options.

A URL never holds credentials: they come from the places that the platform's own tools use, so that
no URL in a config file, log or error can give them away.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from urllib.parse import unquote, urlsplit

from mvc.errors import UsageError
from mvc.storage.protocol import is_key

Scheme = Literal["s3", "gs", "az", "hf", "file", "memory"]

DEFAULT_TIMEOUT_S = 60
_SCHEMES: tuple[Scheme, ...] = ("s3", "gs", "az", "hf", "file", "memory")
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,254}\Z")
_LOOKS_LIKE_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")
LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
"""Hosts that are this very machine: what goes there needs no TLS."""
_NOT_HERE_HINT = (
    "credentials come from the environment or the platform's own files, never from a URL"
)


@dataclass(frozen=True, slots=True)
class StoreUrl:
    """Where a store is."""

    scheme: Scheme  # what kind of store it is
    bucket: str  # bucket, container or name; for ``hf`` namespace and bucket; empty for folders
    prefix: str  # where in the bucket, without slashes at the ends; of a folder its absolute path

    def __str__(self) -> str:
        if self.scheme == "file":
            return self.prefix
        space = "buckets/" if self.scheme == "hf" else ""
        return f"{self.scheme}://{space}{self.bucket}{'/' if self.prefix else ''}{self.prefix}"


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """How a store is reached, beside its URL."""

    # URL of an S3 server that is not Amazon's; else what the environment names
    endpoint: str | None = None
    region: str | None = None  # of the bucket; else what the environment names
    # after how many seconds without an answer a request is given up and tried again
    timeout_s: int = DEFAULT_TIMEOUT_S
    spool: Path | None = None  # the folder of objects on their way; the system's own by default
    # whether it is known to want the tags of conditional puts without quotes
    bare_tags: bool = False


def has_store_scheme(text: str) -> bool:
    """Return whether a text begins as the URL of a store does; a path does not."""
    scheme = _LOOKS_LIKE_URL.match(text)
    return scheme is not None and scheme[1] in _SCHEMES


def hide_secrets(text: str) -> str:
    """Return a URL without user, password and query, to be shown or logged."""
    return re.sub(r"(?<=//)\S*@", "", re.sub(r"[?#]\S*", "", text))


def check_characters(text: str, whose: str) -> None:
    """Refuse a URL or path that no message could show."""
    if not text or any(ord(sign) < 32 or ord(sign) == 127 for sign in text):  # noqa: PLR2004  control
        raise UsageError(f"the URL of {whose} is empty or has control characters")


def resolve_folder(path: str, base: Path | None = None) -> str:
    """Return the absolute path of a folder; a relative one starts from ``base``."""
    return str(((base or Path.cwd()) / Path(path).expanduser()).resolve())


def parse_store_url(text: str, *, base: Path | None = None) -> StoreUrl:
    """Return what ``s3://bucket/prefix``, ``file:///folder``, ``memory://name`` or another URL or path says.

    A relative path starts from ``base``, by default the current folder. UsageError: it is not the URL of a
    store, or holds credentials.
    """
    check_characters(text, "a store")
    shown = hide_secrets(text)
    scheme = _LOOKS_LIKE_URL.match(text)
    if scheme is None:
        return StoreUrl("file", "", resolve_folder(text, base))
    if scheme[1] not in _SCHEMES:
        raise UsageError(
            f"{shown!r} is not the URL of a store",
            hint="use s3://, gs://, az://, hf://buckets/, file:// or a path",
        )
    try:
        parts = urlsplit(text)
        has_port = parts.port is not None
    except ValueError as error:
        raise UsageError(f"{shown!r} is not a valid URL") from error
    if "@" in parts.netloc:
        raise UsageError(f"the URL {shown!r} holds credentials", hint=_NOT_HERE_HINT)
    if parts.query or parts.fragment or has_port:
        raise UsageError(
            f"the URL {shown!r} has more than a bucket and a prefix",
            hint=f"an endpoint belongs to the config or environment; {_NOT_HERE_HINT}",
        )
    if parts.scheme == "file":
        if parts.netloc not in ("", "localhost") or not parts.path.startswith("/"):
            raise UsageError(f"{shown!r} does not name a folder of this machine")
        return StoreUrl("file", "", resolve_folder(unquote(parts.path)))
    return _parse_bucket(parts.scheme, parts.netloc, parts.path, shown)


def _parse_bucket(scheme: str, netloc: str, path: str, shown: str) -> StoreUrl:
    bucket, prefix = netloc, path.strip("/")
    if scheme == "hf":
        namespace, _, rest = prefix.partition("/")
        name, _, prefix = rest.partition("/")
        if netloc != "buckets" or not (_BUCKET.match(namespace) and _BUCKET.match(name)):
            raise UsageError(
                f"{shown!r} does not name a bucket", hint="write hf://buckets/NAMESPACE/NAME"
            )
        bucket = f"{namespace}/{name}"
    elif not _BUCKET.match(bucket):
        raise UsageError(
            f"{shown!r} does not name a bucket", hint=f"write {scheme}://BUCKET/PREFIX"
        )
    if prefix and not is_key(prefix):
        raise UsageError(
            f"{shown!r} has a prefix with other characters than letters, digits, -, _ and ."
        )
    known: dict[str, Scheme] = {name_of_scheme: name_of_scheme for name_of_scheme in _SCHEMES}
    return StoreUrl(known[scheme], bucket, prefix)
