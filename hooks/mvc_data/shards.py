"""Which shard maps a run checks its data against, and how: what ``shards=`` takes.

Checkpointer("runs/gpt", ..., shards="data/train.shards")
Checkpointer("runs/gpt", ..., shards={"train": ShardCheck("data/train.shards", lazy=True)})

And what a check finds wrong, by rank: values, and the words for them.

The state of a commit of a run names each map by its tree hash, and the commit has the map itself as a file,
``train.shards``. Later commits leave it as it is, so it is stored once for as long as it does not change,
and what works on files of commits works on it: ``git log -p``, ``mvc diff``, ``mvc data diff``.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

import mvc.shards
from mvc import ConflictError, MvcError, NotFoundError, UsageError
from mvc_hooks.run.extensions import DATA

if TYPE_CHECKING:
    from mvc import Repo
    from mvc.shards import MapChanges, ShardMap
    from mvc_hooks.parts.restoring import StateSource


Verify = Literal["quick", "full"]
ShardSource: TypeAlias = "str | os.PathLike[str] | ShardMap"
ShardChecks: TypeAlias = "ShardSource | ShardCheck | Iterable[ShardSource | ShardCheck] | Mapping[str, ShardSource | ShardCheck]"
_SUFFIX = ".shards"
_UNNAMED = "data"


@dataclass(frozen=True, slots=True)
class ShardCheck:
    """How the data of one map is checked before the first step.

    Attributes:
        source: the file of the map, or the map.
        root: the folder where this rank has the shards; defaults to the root of the map. For a map
            whose root is a URL, the folder that they are copied to.
        verify: ``quick`` hashes what changed since it was last hashed, by the times and sizes of files;
            ``full`` hashes everything.
        lazy: hash a shard when it is first opened, at low priority, and have each commit wait for the
            shards that were opened before it.
    """

    source: ShardSource
    root: str | os.PathLike[str] | None = None
    verify: Verify = "quick"
    lazy: bool = False

    def __post_init__(self) -> None:
        source: object = self.source
        if source == "" or not isinstance(source, (str, os.PathLike, mvc.shards.ShardMap)):
            raise UsageError(f"{source!r} is not a shard map", hint='shards="data/train.shards"')
        root: object = self.root
        if root is not None and (root == "" or not isinstance(root, (str, os.PathLike))):
            raise UsageError(f"root is {root!r}, not the path of a folder")
        if self.verify not in get_args(Verify):
            raise UsageError(f"verify is {self.verify!r}, not one of {', '.join(get_args(Verify))}")
        if type(self.lazy) is not bool:
            raise UsageError(f"lazy is {self.lazy!r}, neither True nor False")
        if self.lazy and self.verify == "full":
            raise UsageError('verify="full" and lazy=True contradict each other')

    def load(self) -> ShardCheck:
        """Return it with the map in place of its file, so that the file is read once.

        Raises:
            NotFoundError, FormatError: there is no such map, or it is damaged.
        """
        if isinstance(self.source, mvc.shards.ShardMap):
            return self
        shard_map, root = mvc.shards.ShardMap.read(self.source), self.root
        if root is None and "://" not in shard_map.root:
            root = Path(self.source).parent / shard_map.root
        return replace(self, source=shard_map, root=root)

    def open(self, name: str) -> OpenCheck:
        """Return it with its map read; errors as of ``load``."""
        loaded = self.load()
        shard_map: ShardMap = loaded.source  # type: ignore[assignment]  # it is loaded
        url = shard_map.root if "://" in shard_map.root else None
        root = loaded.root if url or loaded.root is not None else shard_map.root
        folder = None if root is None else Path(root).absolute()
        return OpenCheck(name, shard_map, folder, url, self)


@dataclass(frozen=True, slots=True)
class OpenCheck:
    """A check with its map, and where the shards are for this rank."""

    name: str  # of the map, in commits and messages
    map: ShardMap  # what the shards should be
    folder: Path | None  # where this rank has them, or None if only a store has them
    url: str | None  # the store that has them, or None
    check: ShardCheck  # what is asked


def as_checks(value: object) -> dict[str, ShardCheck]:
    """Return what ``shards=`` says, by the names of the maps.

    Raises:
        UsageError: not such a value, or two maps have one name.
    """
    if value is None:
        return {}
    if isinstance(value, Mapping):
        return {_checked_name(name): _as_check(source) for name, source in value.items()}
    is_many = isinstance(value, Iterable) and not isinstance(value, (str, os.PathLike))
    checks: dict[str, ShardCheck] = {}
    for source in value if is_many else [value]:  # type: ignore[attr-defined]  # just asked
        check = _as_check(source)
        if isinstance(check.source, mvc.shards.ShardMap):
            last = check.source.root.rstrip("/").rpartition("/")[2]
            name = last if _is_name(last) else _UNNAMED
        else:
            name = _checked_name(Path(check.source).name.removesuffix(_SUFFIX))
        if name in checks:
            raise UsageError(
                f"two shard maps are called {name!r}", hint='shards={"train": ..., "more": ...}'
            )
        checks[name] = check
    return checks


def find_checks(loaders: Iterable[Any]) -> dict[str, ShardCheck]:
    """Return the checks that loaders bring in an attribute ``shards``; what is not a map is left out.

    Other libraries may mean something else by that name.
    """
    checks: dict[str, ShardCheck] = {}
    for loader in loaders:
        value = getattr(loader, "shards", None)
        if _is_ours(value):
            checks |= as_checks(value)
    return checks


def _is_ours(value: object) -> bool:
    if isinstance(value, Mapping):
        return bool(value) and all(map(_is_ours, value.values()))
    if isinstance(value, (list, tuple)):
        return bool(value) and all(map(_is_ours, value))
    if isinstance(value, (str, os.PathLike)):
        return os.fspath(value).endswith(_SUFFIX)
    return isinstance(value, (mvc.shards.ShardMap, ShardCheck))


def _as_check(value: Any) -> ShardCheck:
    return value if isinstance(value, ShardCheck) else ShardCheck(value)


def _is_name(name: object) -> bool:
    return (
        isinstance(name, str)
        and name.strip(".") != ""
        and not any(sign.isspace() or sign in "=/\\\0" for sign in name)
    )


def _checked_name(name: object) -> str:
    if not isinstance(name, str) or not _is_name(name):
        raise UsageError(
            f"{name!r} cannot name a shard map: no spaces, '=' or '/'",
            hint='shards={"train": "..."} gives it another name',
        )
    return name


_MOST = 20
_HINT = "restore these files, or run `mvc data add` again if they are meant to be as they are"


class DataError(ConflictError):
    """Data that a run reads is not what its shard map says; ``findings`` are all of them."""

    kind = "data"

    def __init__(
        self, message: str, *, hint: str | None = None, findings: Sequence[Finding] = ()
    ) -> None:
        super().__init__(message, hint=hint)
        self.findings = tuple(findings)


@dataclass(frozen=True, slots=True, order=True)
class Finding:
    """One way in which data differs from its map.

    Attributes:
        map: name of the map.
        path: of the shard, relative to the root of the map; "" for what is about the whole map.
        kind: ``missing``, ``changed``, ``swapped``, ``stale``, ``extra``, or ``other`` of a map.
        fact: what was found, in words.
        ranks: which ranks found it, or share the folder in which it was found.
    """

    map: str
    path: str
    kind: str
    fact: str
    ranks: tuple[int, ...] = (0,)

    def __str__(self) -> str:
        # A name may hold line breaks, codes of terminals, and what no log file can be written with.
        path = self.path if self.path.isprintable() else repr(self.path)
        what = f"shard {path} of {self.map}" if path else f"map {self.map}"
        return f"{spell_ranks(self.ranks)}: {self.kind} {what}: {self.fact}"


def spell_ranks(ranks: Iterable[int]) -> str:
    """Return ranks in words, runs of them as ranges: ``ranks 0-3, 8``."""
    ordered = sorted(set(ranks))
    runs = []
    for _, pairs in groupby(enumerate(ordered), key=lambda pair: pair[1] - pair[0]):
        run = [rank for _, rank in pairs]
        runs.append(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]))
    return f"rank{'s' if len(ordered) > 1 else ''} {', '.join(runs)}"


def join_findings(findings: Iterable[Finding]) -> list[Finding]:
    """Return findings in the order of their paths, with equal ones of several ranks as one."""
    ranks = defaultdict[tuple[str, str, str, str], set[int]](set)
    for finding in findings:
        ranks[finding.map, finding.path, finding.kind, finding.fact].update(finding.ranks)
    return sorted(Finding(*key, tuple(sorted(own))) for key, own in ranks.items())


def refuse_findings(findings: Sequence[Finding]) -> DataError:
    """Return the error that says what was found, the first lines of it."""
    lines = list(map(str, findings[:_MOST]))
    if len(findings) > _MOST:
        lines.append(f"and {len(findings) - _MOST:,} more")
    fact = "the data is not what its shard map says"
    text = f"{fact}: {lines[0]}" if len(lines) == 1 else "\n  ".join([f"{fact}:", *lines])
    return DataError(text, hint=_HINT, findings=findings)


SHARDS = "shards"  # name of the trees in the entry ``data_record``, and of what ``allow`` allows
_MOST_TEXT_BYTES = 32 * 2**20  # a longer map does not fit into a message to the writer
_SHOWN = 12


@dataclass(frozen=True, slots=True)
class OtherMap:
    """A map that is not the one that a commit saw; ``old_tree`` is that one's, ``changes`` are words."""

    name: str
    old_tree: str
    tree: str
    changes: str

    def is_allowed(self, allow: Sequence[str]) -> bool:
        """Return whether a pattern allows it."""
        path = f"data.{SHARDS}.{self.name}"
        return any(pattern == SHARDS or fnmatchcase(path, pattern) for pattern in allow)

    def as_change(self) -> tuple[str, object, object]:
        """Return it as a change of the environment."""
        return (
            f"{SHARDS}.{self.name}",
            self.old_tree[:_SHOWN],
            f"{self.tree[:_SHOWN]} ({self.changes})",
        )


def find_other_maps(
    repo: Repo, commit: str, source: StateSource, maps: Mapping[str, ShardMap]
) -> list[OtherMap]:
    """Return which maps of a run are not those that a commit, whose state is ``source``, saw."""
    if not maps:
        return []
    data = source.outline().get(DATA)
    trees = data.get(SHARDS) if isinstance(data, Mapping) else None
    different = []
    for name, tree in trees.items() if isinstance(trees, Mapping) else ():
        now = maps.get(name)
        if now is None or tree == now.tree or not isinstance(tree, str):
            continue
        old = read_map(repo, commit, name)
        words = "what was added or changed is not known: the commit lacks the map"
        if old is not None and old.tree == tree:
            words = describe_changes(mvc.shards.compare_maps(old, now))
        different.append(OtherMap(name, tree, now.tree, words))
    return different


def refuse_maps(
    others: Sequence[OtherMap], allow: Sequence[str] = (), *, hint: str | None = None
) -> None:
    """Raise ConflictError if there are other maps than a commit's that no pattern allows."""
    refused = [other for other in others if not other.is_allowed(allow)]
    if refused:
        names = "; ".join(f"{change.name} ({change.changes})" for change in refused)
        raise ConflictError(
            f"the data is not that of the commit: {names}",
            hint=hint or f'nothing was changed; allow=["{SHARDS}"] goes on with the current shards',
        )


def list_texts(
    repo: Repo, tip: str | None, maps: Mapping[str, ShardMap]
) -> tuple[dict[str, bytes], list[str]]:
    """Return the files of maps that a commit lacks, and a line for each that is too long for one."""
    texts, doubts = dict[str, bytes](), []
    for name, shard_map in maps.items():
        data = shard_map.encode()
        if len(data) > _MOST_TEXT_BYTES:
            doubts.append(f"the map {name} is too long to be in commits: they only name its tree")
        elif not tip or _read_text(repo, tip, map_path(name)) != data:
            texts[map_path(name)] = data
    return texts, doubts


def map_path(name: str) -> str:
    """Return which file of a commit is the map of a name."""
    return f"{name}.{SHARDS}"


def read_map(repo: Repo, commit: str, name: str) -> ShardMap | None:
    """Return the map of a name in a commit of a run, or None if there is none that can be read."""
    data = _read_text(repo, commit, map_path(name))
    if data is None:
        return None
    try:
        return mvc.shards.ShardMap.parse(data)
    except MvcError:
        return None


def _read_text(repo: Repo, commit: str, path: str) -> bytes | None:
    try:
        return repo.read_file(commit, path)
    except NotFoundError:
        return None


def describe_changes(changes: MapChanges) -> str:
    """Return in words what differs between two maps."""
    kinds = ("added", "removed", "changed", "moved")
    counts = {kind: len(getattr(changes, kind)) for kind in kinds}
    return ", ".join(f"{count:,} {kind}" for kind, count in counts.items() if count)
