"""The data of a run against its shard maps: before the first step, before a commit, after a rollback.

Every rank opens its own maps and looks at its own folder; ranks of one machine that have one folder
divide its shards. Then all tell all, so that they go on or stop together, with the same words.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import mvc.shards
from mvc import StorageError, UsageError
from mvc.interpreter import module_command
from mvc_data.shards import Finding, describe_changes, join_findings, refuse_findings, spell_ranks
from mvc_hooks.snapshot.memory import keep_from_children
from mvc_hooks.writer.place import name_node

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path
    from typing import Literal

    from mvc import MvcError, Repo
    from mvc.shards import MapReport, ShardFault, ShardMap
    from mvc_data.shards import OpenCheck, ShardCheck
    from mvc_hooks.ranks.group import Ranks

_DEATH_S = 10.0


class LazyCheck:
    """Hashes the shards of one folder when they are opened; every rank has its share of them."""

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
        # Whether opens are seen; otherwise all shards are hashed, one after the other.
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


_Result = TypeVar("_Result")
_MOST = 4  # how many errors one message has


class DataGuard:
    """Checks the data of a run; every rank makes one."""

    def __init__(self, checks: Mapping[str, ShardCheck], ranks: Ranks, repo: Repo) -> None:
        """Take what is asked; ``repo`` may know files that were hashed before."""
        self._checks, self._ranks, self._repo = checks, ranks, repo
        self._opened: list[OpenCheck] = []
        self._places: list[tuple[int, ...]] = []
        self._lazy: list[LazyCheck] = []
        self.is_lazy = False
        self._findings: list[Finding] = []
        self.maps: dict[str, ShardMap] = {}  # name → shard map, once they are read
        # seconds: how long the check before the first step took; is_watching: whether lazy checks
        # see what is opened; otherwise they hash all in turn.
        self.seconds, self.is_watching = 0.0, True

    # Before the first step.

    def check(self) -> None:
        """Read the maps and check the data; every rank must call it.

        Raises:
            DataError: what differs, on all ranks.
            UsageError: ranks were given other maps.
        """
        started_s, ranks = time.perf_counter(), self._ranks
        named = [(name, asked.verify, asked.lazy) for name, asked in self._checks.items()]
        _check_alike(ranks.exchange(named))
        if not named:
            return
        self._open()
        self._compare_trees()
        reports = self._look()
        self.is_lazy = any(check.lazy for check in self._checks.values())

        def watch() -> None:
            """Begin the lazy checks, each a process, which may well not start."""
            for opened, report in zip(self._opened, reports, strict=True):
                if opened.check.lazy and opened.folder is not None and report is not None:
                    paths = report.left, report.proven
                    self._lazy.append(LazyCheck(opened.name, opened.map, opened.folder, *paths))

        self._attempt(watch)
        watches = ranks.exchange(all(lazy.is_watching for lazy in self._lazy))
        self.is_watching, self.seconds = all(watches), time.perf_counter() - started_s

    def _open(self) -> None:
        """Read the maps of all ranks, and find which of them share a folder."""
        ranks = self._ranks

        self._opened = self._attempt(
            lambda: [check.open(name) for name, check in self._checks.items()]
        )
        self.maps = {opened.name: opened.map for opened in self._opened}
        keys = [_find_place(opened, ranks.rank) for opened in self._opened]
        for each in zip(*ranks.exchange(keys), strict=True):
            same = tuple(rank for rank, key in enumerate(each) if key == each[ranks.rank])
            self._places.append(same)

    def _compare_trees(self) -> None:
        """Check that all ranks have the same maps; they tell what differs, if something does."""
        ranks = self._ranks
        trees = ranks.exchange([opened.map.tree for opened in self._opened])
        findings: list[Finding] = []
        for at, opened in enumerate(self._opened):
            if len({each[at] for each in trees}) == 1:
                continue
            first = mvc.shards.ShardMap.parse(ranks.share(opened.map.encode()))
            if opened.map.tree != first.tree:
                changes = describe_changes(mvc.shards.compare_maps(first, opened.map))
                fact = f"rank 0 has one with a difference: {changes}"
                findings.append(Finding(opened.name, "", "other", fact, (ranks.rank,)))
        self._refuse(findings)

    def _look(self) -> list[MapReport | None]:
        """Look at this rank's share of everything; DataError on all ranks if one found something.

        Returns:
            What was found in the folder of each map; None for one that only a store has.
        """
        threads = max(1, (os.cpu_count() or 1) // max(map(len, self._places)))
        pairs = zip(self._opened, self._places, strict=True)
        looks = self._attempt(lambda: [self._look_at(*pair, threads) for pair in pairs])
        self._refuse([finding for _, findings in looks for finding in findings])
        return [report for report, _ in looks]

    def _attempt(self, act: Callable[[], _Result]) -> _Result:
        """Return what something comes to on this rank; on all an error that names the ranks where it fails."""
        result, errors = self._ranks.attempt(act)
        if errors:
            raise _name_ranks(errors, self._ranks.size)
        return result

    def _look_at(
        self, opened: OpenCheck, same: tuple[int, ...], threads: int
    ) -> tuple[MapReport | None, list[Finding]]:
        share = same.index(self._ranks.rank), len(same)
        level: Literal["quick", "normal", "full"] = "normal"
        if opened.check.verify == "full":
            level = "full"
        report: MapReport | None = None
        faults: list[ShardFault] = []
        if opened.folder is not None:
            place = mvc.shards.open_place(str(opened.folder), "/")
            in_folder = "quick" if opened.check.lazy else level
            report = self._repo.data.check(
                opened.map, place, level=in_folder, threads=threads, share=share
            )
            faults += report.faults
        if opened.url is not None and (share[0] == 0 or level == "full"):
            # Of objects, size and tag are taken for their bytes; with a copy here they are all there is to ask.
            is_full = level == "full" and opened.folder is None
            place = mvc.shards.open_place(opened.url, "/")
            in_store: Literal["full", "quick"] = "full" if is_full else "quick"
            part = share if is_full else (0, 1)
            faults += self._repo.data.check(
                opened.map, place, level=in_store, threads=threads, share=part
            ).faults
        return report, [
            Finding(opened.name, fault.path, fault.kind, fault.detail, same) for fault in faults
        ]

    def _refuse(self, findings: Sequence[Finding]) -> None:
        """Raise DataError on all ranks if one has found something; every rank must call it."""
        self._findings += findings
        every = join_findings(
            finding for theirs in self._ranks.exchange(self._findings) for finding in theirs
        )
        if every:
            raise refuse_findings(every)

    # Later.

    def settle(self) -> None:
        """Wait for the check of all shards that were opened before; every rank must call it.

        Raises:
            DataError: one of them is damaged, or an earlier call has found one.
        """
        if not self.is_lazy:
            return
        findings = self._attempt(lambda: [each for lazy in self._lazy for each in lazy.settle()])
        places = {
            opened.name: same for opened, same in zip(self._opened, self._places, strict=True)
        }
        self._refuse([replace(finding, ranks=places[finding.map]) for finding in findings])

    def check_again(self) -> None:
        """Check what has changed on disk since; every rank must call it, after a rollback.

        Raises:
            DataError: what differs, on all ranks.
        """
        if self._checks:
            self._look()
            self.settle()

    def close(self) -> None:
        """End the processes of lazy checks."""
        while self._lazy:
            self._lazy.pop().close()


def _find_place(opened: OpenCheck, rank: int) -> tuple[object, ...]:
    """Return what ranks that have the same folder, on one machine, have in common."""
    if opened.folder is None:
        return (name_node(), opened.url)
    try:
        status = opened.folder.stat()
    except OSError:  # what is not there is missed by each rank for itself
        return (rank,)
    return (name_node(), status.st_dev, status.st_ino)


def _check_alike(said: Sequence[list[tuple[str, str, bool]]]) -> None:
    for rank, checks in enumerate(said):
        if checks != said[0]:
            texts = [
                ", ".join(name for name, *_ in each) or "nothing" for each in (said[0], checks)
            ]
            if texts[0] == texts[1]:
                texts = [str(each) for each in (said[0], checks)]
            raise UsageError(
                f"shards= differs: rank 0 checks {texts[0]}, rank {rank} {texts[1]}",
                hint="pass the same on all ranks; only the folders may differ",
            )


def _name_ranks(errors: Mapping[int, MvcError], size: int) -> MvcError:
    """Return an error that says which ranks had which; its kind and hint are the first one's."""
    first = next(iter(errors.values()))
    if size == 1:
        return first
    ranks: dict[str, list[int]] = {}
    for rank, error in errors.items():
        ranks.setdefault(error.message, []).append(rank)
    texts = [f"{spell_ranks(same)}: {text}" for text, same in ranks.items()]
    more = [f"and {len(texts) - _MOST:,} more"] if len(texts) > _MOST else []
    return type(first)("; ".join([*texts[:_MOST], *more]), hint=first.hint)
