"""Which shard maps a run checks its data against, and how: what ``shards=`` takes.

Checkpointer("runs/gpt", ..., shards="data/train.shards")
Checkpointer("runs/gpt", ..., shards={"train": ShardCheck("data/train.shards", lazy=True)})
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

import mvc.shards
from mvc import UsageError

if TYPE_CHECKING:
    from mvc.shards import ShardMap

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
        found, root = mvc.shards.ShardMap.read(self.source), self.root
        if root is None and "://" not in found.root:
            root = Path(self.source).parent / found.root
        return replace(self, source=found, root=root)

    def open(self, name: str) -> OpenCheck:
        """Return it with its map read; errors as of ``load``."""
        loaded = self.load()
        found: ShardMap = loaded.source  # type: ignore[assignment]  # it is loaded
        url = found.root if "://" in found.root else None
        root = loaded.root if url or loaded.root is not None else found.root
        return OpenCheck(name, found, None if root is None else Path(root).absolute(), url, self)


@dataclass(frozen=True, slots=True)
class OpenCheck:
    """A check with its map, and where the shards are for this rank.

    Attributes:
        name: of the map, in commits and messages.
        map: what the shards should be.
        folder: where this rank has them, or None if only a store has them.
        url: the store that has them, or None.
        check: what is asked.
    """

    name: str
    map: ShardMap
    folder: Path | None
    url: str | None
    check: ShardCheck


def as_checks(value: object) -> dict[str, ShardCheck]:
    """Return what ``shards=`` says, by the names of the maps.

    Raises:
        UsageError: not such a value, or two maps have one name.
    """
    if value is None:
        return {}
    if isinstance(value, Mapping):
        named = [(_checked_name(name), _as_check(one)) for name, one in value.items()]
    else:
        is_many = isinstance(value, Iterable) and not isinstance(value, (str, os.PathLike))
        checks = [_as_check(one) for one in value] if is_many else [_as_check(value)]  # type: ignore[attr-defined]  # just asked
        named = [(_name(check), check) for check in checks]
    found = dict(named)
    if len(found) < len(named):
        names = [name for name, _ in named]
        twice = next(name for name in names if names.count(name) > 1)
        raise UsageError(
            f"two shard maps are called {twice!r}", hint='shards={"train": ..., "more": ...}'
        )
    return found


def find_checks(loaders: Iterable[Any]) -> dict[str, ShardCheck]:
    """Return the checks that loaders bring in an attribute ``shards``; what is not a map is left out.

    Other libraries may mean something else by that name.
    """
    found: dict[str, ShardCheck] = {}
    for loader in loaders:
        value = getattr(loader, "shards", None)
        if _is_ours(value):
            found |= as_checks(value)
    return found


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


def _name(check: ShardCheck) -> str:
    if not isinstance(check.source, mvc.shards.ShardMap):
        return _checked_name(Path(check.source).name.removesuffix(_SUFFIX))
    last = check.source.root.rstrip("/").rpartition("/")[2]
    return last if _is_name(last) else _UNNAMED


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
