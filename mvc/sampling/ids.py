"""Lists of sample ids as bytes, and the digest of all that they are the last ones of.

Ids are encoded as the steps from each to the next, in as few bytes each as hold all of them, byte by
byte in planes, and zstd. What is decoded may come from a remote.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self, TypeAlias

import numpy as np
import zstandard

from mvc.errors import FormatError
from mvc.sampling.digest import SampleDigest

if TYPE_CHECKING:
    from numpy.typing import NDArray

MAX_LISTED = 1 << 18
"""Ids that a list has at most; of earlier ones there is only the digest."""
MAX_TEXT = 1024
"""Characters of a key or a name, at most."""
_MAX_KEYS_BYTES = 16 << 20
_KEYS = 0  # in place of the width of the numbers

Ids: TypeAlias = "NDArray[np.int64] | tuple[str, ...]"


@dataclass(frozen=True, slots=True, eq=False)
class IdList:
    """Samples of one source: the digest of all, and the ids of the last ones, in order."""

    digest: SampleDigest = field(default_factory=SampleDigest)
    ids: Ids = ()

    @classmethod
    def of(cls, source: str, ids: Ids) -> Self:
        """Return the list of some samples."""
        if isinstance(ids, tuple):
            return cls(SampleDigest.of_keys(source, ids), ids[-MAX_LISTED:])
        return cls(SampleDigest.of(source, ids), ids[-MAX_LISTED:])

    def join(self, later: IdList) -> IdList:
        """Return this list with a later one after it."""
        digest = self.digest + later.digest
        if not len(self.ids) or later.is_cut:
            return IdList(digest, later.ids)
        ids: Any = later.ids
        if isinstance(self.ids, tuple) or isinstance(later.ids, tuple):
            ids = (*self.ids, *later.ids) if len(later.ids) else self.ids
        else:
            ids = np.concatenate([self.ids, later.ids])
        return IdList(digest, ids[-MAX_LISTED:])

    @property
    def is_cut(self) -> bool:
        """Whether it does not list all of its samples."""
        return len(self.ids) < self.digest.count

    def after(self, count: int) -> Ids | None:
        """Return the ids of all samples but the first ``count``; None if it does not list them."""
        wanted = self.digest.count - count
        if not 0 <= wanted <= len(self.ids):
            return None
        return self.ids[len(self.ids) - wanted :]

    def since(self, source: str, before: IdList) -> IdList:
        """Return what came since an earlier list, with its ids if they are listed and prove right."""
        if before.digest.count > self.digest.count:
            return IdList()
        digest, ids = self.digest - before.digest, self.after(before.digest.count)
        if ids is None or IdList.of(source, ids).digest != digest:
            ids = ()
        return IdList(digest, ids)

    def forget(self, count: int) -> IdList:
        """Return the list without the ids of the first ``count`` samples."""
        kept = min(max(0, self.digest.count - count), len(self.ids))
        return IdList(self.digest, self.ids[len(self.ids) - kept :])

    def to_json(self) -> dict[str, Any]:
        """Return it as a state can hold it."""
        listed = {"ids": encode_ids(self.ids)} if len(self.ids) else {}
        return {"count": self.digest.count, "digest": self.digest.hex, **listed}

    @classmethod
    def parse(cls, value: object) -> Self:
        """Return a stored list; FormatError if it is malformed."""
        if not isinstance(value, Mapping):
            raise FormatError("a ledger entry is not a list of samples")
        digest = SampleDigest.parse(value.get("count"), value.get("digest"))
        ids = decode_ids(value["ids"], digest.count) if "ids" in value else ()
        return cls(digest, ids)


def encode_ids(ids: Ids) -> bytes:
    """Return ids as bytes: the steps from each to the next in as few bytes as hold all, and zstd."""
    if isinstance(ids, tuple):
        return bytes([_KEYS]) + zstandard.compress(json.dumps(ids).encode("ascii"), 3)
    steps = np.diff(ids, prepend=np.int64(0))  # modulo 2^64
    folded = ((steps << 1) ^ (steps >> 63)).view(np.uint64)
    width = max(1, -(-int(folded.max()).bit_length() // 8))
    planes = folded.astype("<u8").view(np.uint8).reshape(-1, 8)[:, :width].T
    return bytes([width]) + zstandard.compress(planes.tobytes(), 3)


def decode_ids(data: object, most: int) -> Ids:
    """Return encoded ids, ``most`` of them or fewer; FormatError if they are not ids, or more."""
    if not isinstance(data, bytes) or not data or data[0] > 8:  # noqa: PLR2004  bytes of an int64
        raise FormatError("a ledger has ids that are not encoded as such")
    most, width = min(most, MAX_LISTED), data[0]
    if width == _KEYS:
        try:
            keys = json.loads(_expand(data[1:], _MAX_KEYS_BYTES))
        except (ValueError, RecursionError):
            raise FormatError("a ledger has keys that are not JSON") from None
        if not isinstance(keys, list) or not 0 < len(keys) <= most:
            raise FormatError("a ledger lists another number of keys than it counts")
        return tuple(map(check_name, keys))
    plain = _expand(data[1:], most * width)
    if not plain or len(plain) % width:
        raise FormatError("a ledger has a truncated list of ids")
    planes = np.frombuffer(plain, np.uint8).reshape(width, -1)
    wide = np.zeros((planes.shape[1], 8), np.uint8)
    wide[:, :width] = planes.T
    folded = wide.view("<u8").ravel().astype(np.uint64)
    steps = (folded >> np.uint64(1)).view(np.int64) ^ -(folded & np.uint64(1)).view(np.int64)
    return np.cumsum(steps, dtype=np.int64)


def _expand(data: bytes, most_bytes: int) -> bytes:
    try:
        size = zstandard.frame_content_size(data)
        if not 0 <= size <= most_bytes:
            raise FormatError("a ledger lists more ids than it counts, or may")
        return zstandard.ZstdDecompressor().decompress(data, max_output_size=most_bytes)
    except zstandard.ZstdError as error:
        raise FormatError(f"a ledger has ids that cannot be read: {error}") from None


def check_name(name: object) -> str:
    """Return a name or key that is a short text; FormatError if it is not."""
    if not isinstance(name, str) or not 0 < len(name) <= MAX_TEXT:
        raise FormatError("a ledger has a name that is not a short text")
    return name
