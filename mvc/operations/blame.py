"""blame: the commit that last changed each tensor, and how far it drifted along history.

The line of first parents is followed from the newest commit to the oldest, each beside the one
before it. Equal trees and files are passed over, of others only the lines of manifests that differ
are parsed, and no tensor is read. Where a merge has a tensor from another parent, the commit on that
parent's line takes the blame, as in Git.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mvc.errors import FormatError, NotFoundError, UsageError
from mvc.numbers.statistics import TensorStatistics
from mvc.operations.blame_walk import TensorVersion, Trail, follow
from mvc.tensor_names import takes
from mvc.workspace.manifests import TensorContents, find_manifest
from mvc.workspace.pathspec import select_paths
from mvc.workspace.worktree import relative_paths

if TYPE_CHECKING:
    from mvc.formats.layout import TensorView
    from mvc.history.values import CommitInfo
    from mvc.ids import GitId, TensorId
    from mvc.workspace.context import Context
    from mvc.workspace.worktree import Paths

SAMPLES = 24


@dataclass(frozen=True, slots=True)
class DriftPoint:
    """A tensor at one commit, seen from the first commit that has it.

    Attributes:
        changed: whether it differs from the one at the point before.
        statistics: of the first version and this one; None where they are not kept, and where both
            are the same.
        is_first: whether it is still the first version.
    """

    changed: bool
    statistics: TensorStatistics | None = None
    is_first: bool = False

    @property
    def distance(self) -> float | None:
        """Relative L2 distance from the first version, or None if it is not known.

        NaN where elements of either are not finite.
        """
        if self.is_first:
            return 0.0
        if self.statistics is not None and self.statistics.left_out:
            return math.nan
        return None if self.statistics is None else self.statistics.relative_l2


@dataclass(frozen=True, slots=True)
class TensorBlame:
    """Who last changed a tensor.

    Attributes:
        path: the file it is in.
        name: its key in the state dict.
        dtype: its element type.
        shape: elements per dimension.
        id: its identity.
        commit: the commit that last changed it.
        since: the first commit on the line of first parents that has it, under any name.
        versions: how many versions of it that line has.
        drift: the tensor at each of the commits that were sampled, None before it was there.
    """

    path: str
    name: str
    dtype: str
    shape: tuple[int, ...]
    id: TensorId
    commit: GitId
    since: GitId
    versions: int
    drift: tuple[DriftPoint | None, ...]


@dataclass(frozen=True, slots=True)
class Blame:
    """Who last changed each tensor of a commit.

    Attributes:
        commit: the commit that was looked at.
        tensors: its tensors, in the order of their files.
        commits: id → the commits that are named, newest first.
        samples: the commits that drift was looked at, oldest first, along first parents.
        manifests_read: how many versions of files were read.
    """

    commit: GitId
    tensors: tuple[TensorBlame, ...]
    commits: Mapping[GitId, CommitInfo]
    samples: tuple[GitId, ...]
    manifests_read: int = field(compare=False)


def blame(
    context: Context,
    revision: str = "HEAD",
    *,
    tensors: str | None = None,
    paths: Paths = (),
    samples: int = 24,
    compute: bool = False,
) -> Blame:
    """Return for each tensor the commit that last changed it, and its drift along history.

    Args:
        revision: which commit.
        tensors: only these tensors.
        paths: only these files, folders or wildcards.
        samples: at how many commits, spread evenly along first parents, to sample the drift.
        compute: read and compare what is not cached; otherwise no tensor is read.

    Raises:
        NotFoundError: no such revision, or no such tensor in it.
        UsageError: fewer than two samples.
    """
    chosen = relative_paths(context, paths)
    if samples < 2:  # noqa: PLR2004  the first and the last
        raise UsageError("drift needs two samples at least")
    start = context.history.resolve_commit(revision)
    reader = TensorContents(context)
    trails, views = _begin(context, reader, start, tensors, chosen)
    if not trails:
        what = "no tensor" if tensors is None else f"no tensor that matches {tensors!r}"
        raise NotFoundError(f"{revision} has {what}", hint=f'"mvc ls {revision}" lists them')
    line = follow(context, reader, start, trails)
    places = _sample(len(line), samples)
    points = [line[place] for place in places]
    if compute:
        from mvc.operations.blame_statistics import compute_missing  # noqa: PLC0415  brings NumPy

        compute_missing(context, line, trails, places)
    find = _kept_statistics(context, trails, places)
    pairs = zip(trails, views, strict=True)
    blamed = tuple(_tensor(trail, view, line, places, find) for trail, view in pairs)
    named = {commit for tensor in blamed for commit in (tensor.commit, tensor.since)}
    commits = _newest_first(context, line, {*named, *points})
    return Blame(start, blamed, commits, tuple(points), reader.reads)


def _newest_first(
    context: Context, line: Sequence[GitId], commits: set[GitId]
) -> dict[GitId, CommitInfo]:
    """Return commits as they follow each other on a line; those of other lines by their time."""
    infos = {commit: context.history.read_commit(commit) for commit in commits}
    ordered = {commit: infos[commit] for commit in line if commit in infos}
    others = [info for commit, info in infos.items() if commit not in ordered]
    both = [*ordered.values(), *others]  # sorted stably: clocks count in seconds
    return {info.id: info for info in sorted(both, key=lambda info: -info.commit_time_s)}


def _begin(
    context: Context,
    reader: TensorContents,
    start: GitId,
    tensors: str | None,
    paths: Sequence[str],
) -> tuple[list[Trail], list[TensorView]]:
    """Return the chosen tensors of a commit, before their history is known."""
    tree = context.history.read_tree(start)
    trails: list[Trail] = []
    views: list[TensorView] = []
    for path in select_paths(paths, tree):
        manifest = find_manifest(context, tree[path].blob)
        contents = {} if manifest is None else reader.find(tree, path)
        for view, _ in () if manifest is None else manifest.tensors():
            if tensors is None or takes(tensors, view.name):
                trails.append(Trail([TensorVersion(path, view.name, contents[view.name])]))
                views.append(view)
    return trails, views


def _sample(count: int, most: int) -> list[int]:
    """Return places of a line of commits, newest first, that lie evenly on it, oldest first."""
    if count <= most:
        return list(range(count - 1, -1, -1))
    return [round((count - 1) * (most - 1 - at) / (most - 1)) for at in range(most)]


def _kept_statistics(
    context: Context, trails: Sequence[Trail], places: Sequence[int]
) -> Callable[[TensorId, TensorId], TensorStatistics | None]:
    """Return what finds the statistics of two tensors among those that are kept."""
    from mvc.comparison.gather import PAIR, pair_key  # noqa: PLC0415  brings NumPy

    wanted = {
        pair_key(trail.versions[-1].id, version.id)
        for trail in trails
        for version in map(trail.at, places)
        if version is not None and version.content != trail.versions[-1].content
    }
    kept = context.kept.get_many(PAIR, wanted)

    def find(old: TensorId, new: TensorId) -> TensorStatistics | None:
        stored = kept.get(pair_key(old, new))
        try:
            return None if stored is None else TensorStatistics.decode(stored)
        except FormatError:  # of another version of mvc
            return None

    return find


def _tensor(
    trail: Trail,
    view: TensorView,
    line: Sequence[GitId],
    places: Sequence[int],
    find: Callable[[TensorId, TensorId], TensorStatistics | None],
) -> TensorBlame:
    first = trail.versions[-1]
    points: list[DriftPoint | None] = []
    before: bytes | None = None
    for place in places:
        version = trail.at(place)
        if version is None:
            points.append(None)
            continue
        is_first = version.content == first.content
        statistics = None if is_first else find(first.id, version.id)
        points.append(DriftPoint(before not in (None, version.content), statistics, is_first))
        before = version.content
    assert trail.blamed is not None
    return TensorBlame(
        trail.versions[0].path,
        trail.versions[0].name,
        view.dtype,
        view.shape,
        trail.versions[0].id,
        trail.blamed,
        line[first.last],
        len({version.content for version in trail.versions}),
        tuple(points),
    )
