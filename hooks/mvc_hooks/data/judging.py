"""What the bytes of one shard say, compared with its map: pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mvc_hooks.data.findings import Finding

if TYPE_CHECKING:
    from mvc import Shard, ShardMap

_SHOWN = 12


class Judge:
    """Judges the shards of one map, by its name in messages."""

    def __init__(self, name: str, shard_map: ShardMap) -> None:
        self._name = name
        self._by_hash = {one.sha256: one.path for one in reversed(shard_map.shards)}
        self._sizes = {one.size_bytes for one in shard_map.shards}

    def missing(self, shard: Shard) -> Finding:
        """Return that a shard is not there."""
        return Finding(self._name, shard.path, "missing", "is missing")

    def unreadable(self, shard: Shard, reason: str) -> Finding:
        """Return that a shard cannot be read."""
        return Finding(self._name, shard.path, "unreadable", f"cannot be read: {reason}")

    def surplus(self, path: str, size_bytes: int) -> Finding:
        """Return that a file is in no map."""
        return Finding(self._name, path, "extra", f"is not in the map ({size_bytes:,} bytes)")

    def stale(self, shard: Shard, fact: str) -> Finding:
        """Return that a listing is not what the store holds."""
        return Finding(self._name, shard.path, "stale", fact)

    def needs_hash(self, shard: Shard, size_bytes: int) -> bool:
        """Return whether the content of a file tells more than its size: it may be another shard."""
        return size_bytes == shard.size_bytes or size_bytes in self._sizes

    def judge(self, shard: Shard, size_bytes: int, sha256: bytes | None) -> Finding | None:
        """Return what is wrong with the content of a file; None: it is what the map says."""
        if size_bytes == shard.size_bytes and sha256 in (shard.sha256, None):
            return None
        other = None if sha256 is None else self._by_hash.get(sha256)
        if other is not None:
            return Finding(self._name, shard.path, "swapped", f"holds what {other} should hold")
        if size_bytes != shard.size_bytes:
            fact = f"changed: it has {size_bytes:,} bytes, not {shard.size_bytes:,}"
        else:
            assert sha256 is not None
            found, wanted = sha256.hex()[:_SHOWN], shard.sha256.hex()[:_SHOWN]
            fact = f"changed: its SHA-256 is {found}, not {wanted}"
        return Finding(self._name, shard.path, "changed", fact)
