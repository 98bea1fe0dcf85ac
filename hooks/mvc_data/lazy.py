"""The lazy check, as the training sees it: a process hashes what is opened, and is asked before a commit."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from typing import TYPE_CHECKING, Any

from mvc import StorageError
from mvc.interpreter import module_command
from mvc_data.shards import Finding
from mvc_hooks.snapshot.memory import keep_from_children

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from mvc.shards import ShardMap

_DEATH_S = 10.0


class LazyCheck:
    """Hashes the shards of one folder when they are opened; every rank has its share of them.

    Attributes:
        is_watching: whether opens are seen; otherwise all shards are hashed, one after the other.
    """

    def __init__(
        self,
        name: str,
        shard_map: ShardMap,
        folder: Path,
        unproven: Sequence[str],
        proven: Sequence[str] = (),
    ) -> None:
        """Begin to watch some shards of a map, by paths; the proven ones are hashed only if they change."""
        self._name = name
        self._owners = {shard.sha256.hex(): shard.path for shard in reversed(shard_map.shards)}
        paths = {*unproven, *proven}
        self._shards = {
            str(folder / shard.path): shard for shard in shard_map.shards if shard.path in paths
        }
        command = module_command("mvc_data.lazy_worker")
        try:
            self._process = subprocess.Popen(  # noqa: S603  our own interpreter and module
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=-1
            )
        except OSError as error:
            raise StorageError(f"cannot start the check of shards: {error.strerror}") from error
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._to, self._from = self._process.stdin, self._process.stdout
        keep_from_children(self)
        files = [str(folder / path) for path in proven]
        self._tell({"shards": list(self._shards), "proven": files, "process": os.getpid()})
        self.is_watching = bool(self._hear()["is_watching"])

    def settle(self) -> list[Finding]:
        """Wait until all that was opened before this call is hashed; return what is newly found wrong."""
        self._tell({})
        said = self._hear()
        checked = [(self._shards[path], digest) for path, digest in said["checked"]]
        wrong = {shard.path: digest for shard, digest in checked if digest != shard.sha256.hex()}
        findings = []
        for path, digest in wrong.items():
            owner = self._owners.get(digest)
            fact = "has another content" if owner is None else f"holds what {owner!r} should hold"
            kind = "swapped" if owner in wrong else "changed"
            findings.append(Finding(self._name, path, kind, fact))
        for path, why in said["failed"]:
            fact = f"cannot be read: {why}"
            findings.append(Finding(self._name, self._shards[path].path, "missing", fact))
        return findings

    def _tell(self, message: object) -> None:
        with contextlib.suppress(BrokenPipeError):  # there will be no answer
            self._to.write(json.dumps(message).encode() + b"\n")
            self._to.flush()

    def _hear(self) -> Any:
        line = self._from.readline()
        if not line:
            code = self._process.wait()
            raise StorageError(
                f"the process that checks shards ended with code {code}: not all that was opened is checked",
                hint="start the run again; without lazy=True all shards are checked before the first step",
            )
        return json.loads(line)

    def close(self) -> None:
        """End the process; what it has not hashed stays unchecked."""
        self.drop_in_child()
        try:
            self._process.wait(_DEATH_S)
        except subprocess.TimeoutExpired:  # in the middle of a long shard
            self._process.kill()
            self._process.wait()

    def drop_in_child(self) -> None:
        """Close the pipes in a forked child, which are its parent's."""
        for pipe in (self._to, self._from):
            with contextlib.suppress(OSError):
                pipe.close()
