"""The walk of ``blame``: each tensor is followed from a commit back to where it came from."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import TYPE_CHECKING

from mvc.formats.manifest_lines import content_id

if TYPE_CHECKING:
    from mvc.history.values import CommitInfo, TreeEntry
    from mvc.ids import GitId, TensorId
    from mvc.workspace.context import Context
    from mvc.workspace.manifests import TensorContents

    Tree = Mapping[str, TreeEntry]
    Place = tuple[str, str]


@dataclass(slots=True)
class TensorVersion:
    """A tensor as it is from one commit of a line up to ``last``, the oldest that has it so."""

    path: str
    name: str
    content: bytes
    last: int = 0

    @property
    def id(self) -> TensorId:
        """Its identity."""
        return content_id(self.content)


@dataclass(slots=True)
class Trail:
    """A tensor on its way back; ``versions`` are newest first, ``blamed`` changed it last."""

    versions: list[TensorVersion]
    blamed: GitId | None = None
    ended: bool = field(default=False)

    @property
    def oldest(self) -> TensorVersion:
        """The version that was met last."""
        return self.versions[-1]

    def at(self, place: int) -> TensorVersion | None:
        """Return what it was at a commit of the line, counted from the newest; None before it."""
        number = bisect_left(self.versions, place, key=attrgetter("last"))
        return self.versions[number] if number < len(self.versions) else None


def follow(
    context: Context, reader: TensorContents, start: GitId, trails: Sequence[Trail]
) -> list[GitId]:
    """Follow tensors to the root along first parents; return that line.

    Their blame may leave the line at merges.
    """
    line, left = _follow_line(context, reader, start, trails, whole=True)
    while left:
        parent, group = left.popitem()
        others = [
            Trail([TensorVersion(path, name, trail.versions[0].content)])
            for trail, (path, name) in group
        ]
        _, more = _follow_line(context, reader, parent, others, whole=False)
        for (trail, _), other in zip(group, others, strict=True):
            trail.blamed = other.blamed
        origin = {id(other): trail for (trail, _), other in zip(group, others, strict=True)}
        for commit, pairs in more.items():
            left.setdefault(commit, []).extend((origin[id(other)], place) for other, place in pairs)
    return line


def _follow_line(
    context: Context, reader: TensorContents, start: GitId, trails: Sequence[Trail], *, whole: bool
) -> tuple[list[GitId], dict[GitId, list[tuple[Trail, Place]]]]:
    """Follow tensors along first parents, to the root or (``whole`` False) until all are blamed.

    Return the line, and by other parents of merges the tensors that they have as well.
    """
    history = context.history
    line: list[GitId] = []
    left: dict[GitId, list[tuple[Trail, Place]]] = {}
    info: CommitInfo | None = history.read_commit(start)
    tree: Tree = history.read_tree(info.tree) if info else {}
    while info is not None:
        line.append(info.id)
        parent = history.read_commit(info.parents[0]) if info.parents else None
        followed = [
            trail for trail in trails if not trail.ended and (whole or trail.blamed is None)
        ]
        if not whole and not followed:
            break
        before: Tree = {} if parent is None else tree
        if parent is not None and parent.tree != info.tree:
            before = history.read_tree(parent.tree)
        changed = followed
        if parent is not None:
            changed = _step(reader, followed, tree, before, len(line))
        for trail in followed:
            if not trail.ended and parent is not None:
                trail.oldest.last = len(line)
        _blame(context, reader, info, changed, left)
        info, tree = parent, before
    return line, left


def _step(
    reader: TensorContents, trails: Iterable[Trail], tree: Tree, before: Tree, place: int
) -> list[Trail]:
    """Take tensors from a commit to its first parent, ``place`` on the line.

    Return those that differ there, as they are in the commit itself being their last but one version.
    """
    changed: list[Trail] = []
    missing: list[Trail] = []
    tables: dict[str, Mapping[str, bytes] | None] = {}
    for trail in trails:
        version = trail.oldest
        path = version.path
        if path not in tables:
            is_same = before.get(path) == tree[path]
            tables[path] = None if is_same else reader.find(before, path)
        table = tables[path]
        if table is None:
            continue
        known = table.get(version.name)
        if known is None:
            missing.append(trail)
        elif known != version.content:
            trail.versions.append(TensorVersion(path, version.name, known, place))
            changed.append(trail)
    return changed + (_find_moved(reader, missing, tree, before, place) if missing else [])


def _find_moved(
    reader: TensorContents, missing: Sequence[Trail], tree: Tree, before: Tree, place: int
) -> list[Trail]:
    """Follow tensors that had another name or file before; return those that are new or changed."""
    gone: dict[bytes, list[Place]] = {}
    files: dict[str, list[str]] = {}
    for path, entry in before.items():
        if tree.get(path) == entry:
            continue
        now = reader.find(tree, path)
        for name, content in reader.find(before, path).items():
            if name not in now:
                gone.setdefault(content, []).append((path, name))
                files.setdefault(name, []).append(path)
    changed: list[Trail] = []
    for trail in missing:
        version = trail.oldest
        places = gone.get(version.content)
        if places:
            path, name = next((pair for pair in places if pair[1] == version.name), places[0])
            places.remove((path, name))
            trail.versions.append(TensorVersion(path, name, version.content, place))
            continue
        changed.append(trail)
        paths = files.get(version.name, [])
        if len(paths) == 1:  # its file was renamed and changed in one commit
            table = reader.find(before, paths[0])
            trail.versions.append(TensorVersion(paths[0], version.name, table[version.name], place))
        else:
            trail.ended = True
    return changed


def _blame(
    context: Context,
    reader: TensorContents,
    info: CommitInfo,
    changed: Iterable[Trail],
    left: dict[GitId, list[tuple[Trail, Place]]],
) -> None:
    """Blame a commit for tensors that differ from its first parent, or another parent for them."""
    waiting = [trail for trail in changed if trail.blamed is None]
    for parent in info.parents[1:]:
        if not waiting:
            break
        other = context.history.read_tree(context.history.read_commit(parent).tree)
        rest: list[Trail] = []
        for trail in waiting:
            version = trail.versions[-1] if trail.ended else trail.versions[-2]
            if reader.find(other, version.path).get(version.name) == version.content:
                left.setdefault(parent, []).append((trail, (version.path, version.name)))
                trail.blamed = parent  # for now: that line is followed later
            else:
                rest.append(trail)
        waiting = rest
    for trail in waiting:
        trail.blamed = info.id
