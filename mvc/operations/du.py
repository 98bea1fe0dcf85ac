"""du: what branches, commits, tags, files and tensors cost in the store, alone and shared.

*Alone* is what would be freed if only this one were gone: a branch deleted, a commit's content
released, and ``gc`` run. Nothing else that has a name may need it, neither directly nor because a
chunk of it is stored as a difference from it. *Shared* is the rest of what it needs. So the
``alone`` of two that share something leave that out, and add up to less than both together.

Everything is read once (``holdings``). For each list, users are numbered, the chunks that their
versions name are collected, and both are counted (``shares``). Reflogs do not count as users: what
only they hold is listed separately, and so is what is kept only as the base of something else.
Bytes are those of chosen copies (``chunkstore.copies``), with their record headers.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from operator import attrgetter
from typing import TYPE_CHECKING

import numpy as np

from mvc.errors import UsageError
from mvc.fs import folder_bytes
from mvc.history.names import HEADS, TAGS
from mvc.upkeep.holdings import KeptContent, ManifestContent, Needs, Owners, Totals, Union
from mvc.upkeep.versions import reach
from mvc.workspace.ranges import list_commits

if TYPE_CHECKING:
    from mvc.chunkstore.copies import Numbers
    from mvc.ids import GitId
    from mvc.workspace.context import Context

KINDS = ("branch", "tag", "commit", "file", "tensor")
USUAL_KINDS = KINDS[:-1]

_RUNS = 4


@dataclass(frozen=True, slots=True)
class DuEntry:
    """What one branch, tag, commit, file or tensor costs.

    Attributes:
        kind: ``branch``, ``tag``, ``commit``, ``file``, ``tensor`` or ``selection``.
        name: its name; a commit's id, a file's path, or empty for bytes between tensors.
        raw_bytes: what its versions take as plain files, each version once.
        alone_bytes: stored bytes that would be freed if only it were gone.
        shared_bytes: stored bytes that it needs and others need too.
        commit: the commit that a branch, tag or commit stands for, or None.
        subject: subject of that commit, or empty.
        path: the file of a tensor, or None.
        versions: how many different versions of files are in it.
    """

    kind: str
    name: str
    raw_bytes: int
    alone_bytes: int
    shared_bytes: int
    commit: GitId | None = None
    subject: str = ""
    path: str | None = None
    versions: int = 0

    @property
    def stored_bytes(self) -> int:
        """All that it needs."""
        return self.alone_bytes + self.shared_bytes

    @property
    def ratio(self) -> float | None:
        """Stored bytes to raw bytes; None if there are no raw bytes."""
        return self.stored_bytes / self.raw_bytes if self.raw_bytes else None


@dataclass(frozen=True, slots=True)
class DuTotals:
    """What the whole repository takes.

    Attributes:
        raw_bytes: all file versions as plain files, each version once; released ones left out.
        versions: how many file versions these are.
        commits: commits that refs, HEAD and reflogs reach.
        packs: how many there are.
        pack_bytes: their length.
        index_bytes: length of pack indexes.
        object_bytes: length of Git objects: manifests, trees, commits, plain files.
        needed_bytes: stored bytes of chunks that file versions need, bases included.
        base_bytes: those of them that no version names, kept as bases of others.
        reflog_bytes: those of them that only reflogs still reach.
        unneeded_bytes: stored bytes that nothing needs; gc frees them once they are old enough.
        statistics_bytes: length of the cache of computed statistics, which may be deleted.
    """

    raw_bytes: int
    versions: int
    commits: int
    packs: int
    pack_bytes: int
    index_bytes: int
    object_bytes: int
    needed_bytes: int
    base_bytes: int
    reflog_bytes: int
    unneeded_bytes: int
    statistics_bytes: int = 0

    @property
    def ratio(self) -> float | None:
        """Needed stored bytes to raw bytes; None if there are no raw bytes."""
        return self.needed_bytes / self.raw_bytes if self.raw_bytes else None


@dataclass(frozen=True, slots=True)
class DuReport:
    """What everything costs; the largest ``alone`` first in every list.

    Attributes:
        totals: of the whole repository.
        selection: what the commits that were asked for cost together; None for all.
        branches: one entry each; empty if not asked for, like all that follow.
        tags: one entry each.
        commits: one entry each.
        files: one entry per path.
        tensors: one entry per path and name.
    """

    totals: DuTotals
    selection: DuEntry | None
    branches: tuple[DuEntry, ...]
    tags: tuple[DuEntry, ...]
    commits: tuple[DuEntry, ...]
    files: tuple[DuEntry, ...]
    tensors: tuple[DuEntry, ...]


def du(
    context: Context, *revisions: str, by: Iterable[str] = ("branch", "tag", "commit", "file")
) -> DuReport:
    """Return what is stored and for what: alone, shared, and its size as plain files.

    Args:
        revisions: only these commits: ``A`` is that one, ``A..B`` are those of B that A lacks;
            defaults to all that branches and tags reach.
        by: which lists to make, of ``branch``, ``tag``, ``commit``, ``file``, ``tensor``.

    Raises:
        UsageError: no such kind of list.
    """
    for kind in by:
        if kind not in KINDS:
            raise UsageError(f"cannot list by {kind!r}", hint=f"one of {', '.join(KINDS)}")
    chosen = list_commits(context, revisions)
    survey = _Survey(context, chosen if revisions else None, with_tensors="tensor" in by)
    refs = list(survey.list_refs()) if "branch" in by or "tag" in by else []
    return DuReport(
        totals=survey.sum_up(),
        selection=survey.weigh_selection(" ".join(revisions)) if revisions else None,
        branches=_sorted(entry for entry in refs if entry.kind == "branch" and "branch" in by),
        tags=_sorted(entry for entry in refs if entry.kind == "tag" and "tag" in by),
        commits=_sorted(survey.list_commits() if "commit" in by else ()),
        files=_sorted(survey.list_files() if "file" in by else ()),
        tensors=_sorted(survey.list_tensors() if "tensor" in by else ()),
    )


def _sorted(entries: Iterable[DuEntry]) -> tuple[DuEntry, ...]:
    """Sort by weight; what weighs the same keeps its order."""
    weight = attrgetter("alone_bytes", "shared_bytes", "raw_bytes")
    return tuple(sorted(entries, key=weight, reverse=True))


@dataclass(slots=True)
class _Run:
    """What one ref needs; goes on to a ref that reaches it."""

    union: Union
    tip: GitId | None = None
    commits: set[GitId] = field(default_factory=set)
    versions: set[tuple[str, GitId]] = field(default_factory=set)


class _Survey:
    """One look at a repository, from which all lists are made; ``chosen``: None means all."""

    def __init__(
        self, context: Context, chosen: Sequence[GitId] | None, *, with_tensors: bool
    ) -> None:
        self._context = context
        self._copies = context.here.copies()
        self._needs = Needs(self._copies)
        self._holdings = holdings = KeptContent(context, self._copies, with_tensors=with_tensors)
        self._is_all = chosen is None
        wanted = holdings.named if chosen is None else set(chosen)
        self._chosen = [commit for commit in holdings.commits if commit in wanted]
        named = (commit for commit in holdings.commits if commit in holdings.named)
        self._rest = [commit for commit in named if commit not in wanted]

    def sum_up(self) -> DuTotals:
        holdings, copies = self._holdings, self._copies
        union = Union(self._needs)
        direct = np.zeros(len(self._needs), np.bool_)
        named = holdings.contents_of(holdings.named)
        for content in chain(named, holdings.contents(holdings.staged.values())):
            union.add(content.chunks)
            direct[content.chunks] = True
        named_bytes = union.bytes
        for content in holdings.contents_of(holdings.commits.keys() - holdings.named):
            union.add(content.chunks)
            direct[content.chunks] = True
        versions = self._versions(holdings.commits) | set(holdings.staged.items())
        listing = self._context.here.list_packs()
        return DuTotals(
            raw_bytes=self._raw(versions),
            versions=len(versions),
            commits=len(holdings.commits),
            packs=len(copies.indexes),
            pack_bytes=sum(listing.packs.values()),
            index_bytes=sum(listing.indexes.values()),
            object_bytes=folder_bytes(self._context.git_dir / "objects"),
            statistics_bytes=self._context.kept.size_bytes,
            needed_bytes=union.bytes,
            base_bytes=int(self._needs.sizes[union.mask & ~direct].sum()),
            reflog_bytes=union.bytes - named_bytes,
            unneeded_bytes=int(copies.sizes.sum()) - union.bytes,
        )

    def weigh_selection(self, name: str) -> DuEntry:
        owners, union = Owners(self._needs, 1), Union(self._needs)
        for content in self._holdings.contents_of(self._chosen):
            owners.add(content.chunks, 0, 0)
            union.add(content.chunks)
        alone = self._count_alone(owners)[0]
        return self._weigh("selection", name, self._versions(self._chosen), alone, union.bytes)

    def list_refs(self) -> Iterator[DuEntry]:
        """Yield what branches and tags cost, those that point to chosen commits."""
        users = {name: number for number, name in enumerate(self._holdings.refs)}
        alone = self._count_alone_by_commit(len(users), self._holdings.find_holders(users))
        wanted = None if self._is_all else set(self._chosen)
        for name, run in self._follow_refs():
            tip = self._holdings.refs[name]
            kind = "branch" if name.startswith(HEADS) else "tag"
            if name.startswith((HEADS, TAGS)) and (wanted is None or tip in wanted):
                short = name.removeprefix(HEADS).removeprefix(TAGS)
                own, all_bytes = alone[users[name]], run.union.bytes
                yield self._weigh(kind, short, run.versions, own, all_bytes, commit=tip)

    def list_commits(self) -> Iterator[DuEntry]:
        users = {commit: number for number, commit in enumerate(self._chosen)}
        rest = dict.fromkeys(self._rest, len(users))
        holders = {commit: (user, user) for commit, user in (users | rest).items()}
        alone = self._count_alone_by_commit(len(users), holders)
        totals = Totals(self._needs, len(users))
        for commit, user in users.items():
            for content in self._holdings.contents_of([commit]):
                totals.add(content.chunks, user)
            totals.finish()
        for commit, user in users.items():
            versions = self._versions([commit])
            own, needed = alone[user], totals.bytes[user]
            yield self._weigh("commit", commit, versions, own, needed, commit=commit)

    def list_files(self) -> Iterator[DuEntry]:
        """Yield what each path costs, all its versions together."""
        files = self._files()
        owners, totals = Owners(self._needs, len(files)), Totals(self._needs, len(files))
        for number, blobs in enumerate(files.values()):
            for content in self._holdings.contents(blobs):
                owners.add(content.chunks, number, number)
                totals.add(content.chunks, number)
            totals.finish()
        alone = self._count_alone(owners)
        for number, (path, blobs) in enumerate(files.items()):
            versions = {(path, blob) for blob in blobs}
            own, needed = alone[number], totals.bytes[number]
            yield self._weigh("file", path, versions, own, needed, path=path)

    def list_tensors(self) -> Iterator[DuEntry]:
        """Yield what each tensor of each path costs, all its versions together."""
        holdings, files = self._holdings, self._files()
        numbers = self._number_tensors(files)
        owners, totals = Owners(self._needs, len(numbers)), Totals(self._needs, len(numbers))
        raw = np.zeros(len(numbers), np.int64)
        versions = np.zeros(len(numbers), np.int64)
        lookup = np.zeros(len(holdings.names), np.int32)
        for path, blobs in files.items():
            for content in holdings.contents(blobs):
                parts = content.parts
                assert parts is not None
                views = sorted(set(parts.names.tolist()))
                lookup[views] = [numbers[path, name] for name in views]
                chunks, users = parts.expand(lookup[parts.names])
                owners.add_each(chunks, users)
                totals.add(chunks, users)
                np.add.at(raw, lookup[parts.names], parts.sizes)
                versions[lookup[views]] += 1
            totals.finish()
        alone = self._count_alone(owners)
        names = list(holdings.names)
        for (path, name), number in numbers.items():
            own = int(alone[number])
            yield DuEntry(
                "tensor",
                names[name] or "",
                int(raw[number]),
                own,
                int(totals.bytes[number]) - own,
                path=path,
                versions=int(versions[number]),
            )

    def _number_tensors(self, files: Mapping[str, Collection[GitId]]) -> dict[tuple[str, int], int]:
        numbers: dict[tuple[str, int], int] = {}
        for path, blobs in files.items():
            for content in self._holdings.contents(blobs):
                assert content.parts is not None
                used = content.parts.names[(content.parts.counts > 0)]
                for name in dict.fromkeys([*used.tolist(), *content.parts.names[1:].tolist()]):
                    numbers.setdefault((path, name), len(numbers))
        return numbers

    def _follow_refs(self) -> Iterator[tuple[str, _Run]]:
        """Yield all that each ref needs; a ref that reaches another goes on from there."""
        holdings = self._holdings
        places = {commit: place for place, commit in enumerate(holdings.commits)}
        runs: list[_Run] = []
        for name in sorted(holdings.refs, key=lambda name: -places[holdings.refs[name]]):
            tip = holdings.refs[name]
            reached = reach(holdings.parents, [tip])
            earlier = (run for run in runs if run.tip in reached)
            run = max(earlier, key=lambda run: len(run.commits), default=None)
            if run is None:
                run = _Run(Union(self._needs))
                runs = [*runs[1 - _RUNS :], run]
            fresh = reached - run.commits
            for content in holdings.contents_of(fresh):
                run.union.add(content.chunks)
            run.versions |= self._versions(fresh)
            run.tip, run.commits = tip, reached
            yield name, run

    def _count_alone_by_commit(
        self, users: int, holders: Mapping[GitId, tuple[int, int]]
    ) -> Numbers:
        """Return what each user alone needs, given the least and greatest user of each commit.

        Blobs that many commits share are counted once, or this would be quadratic.
        """
        found: dict[GitId, tuple[int, int]] = {}
        for commit, (low, high) in holders.items():
            for blob in self._holdings.files(commit).values():
                known = found.get(blob, (low, high))
                found[blob] = (min(known[0], low), max(known[1], high))
        owners = Owners(self._needs, users)
        for blob, (low, high) in found.items():
            for content in self._holdings.contents([blob]):
                owners.add(content.chunks, low, high)
        self._add_others(owners, self._holdings.contents(self._holdings.staged.values()))
        return owners.count_alone()

    def _count_alone(self, owners: Owners) -> Numbers:
        """Return what each user alone needs, once the users in chosen commits are added."""
        if not self._is_all:
            staged = self._holdings.contents(self._holdings.staged.values())
            self._add_others(owners, chain(self._holdings.contents_of(self._rest), staged))
        return owners.count_alone()

    def _add_others(self, owners: Owners, contents: Iterable[ManifestContent]) -> None:
        for content in contents:
            owners.add(content.chunks, owners.others, owners.others)

    def _files(self) -> dict[str, dict[GitId, None]]:
        """Return path → the blobs of its versions in the chosen commits."""
        found: dict[str, dict[GitId, None]] = {}
        trees = [self._holdings.files(commit) for commit in self._chosen]
        for tree in [*trees, self._holdings.staged] if self._is_all else trees:
            for path, blob in tree.items():
                found.setdefault(path, {})[blob] = None
        return found

    def _weigh(
        self,
        kind: str,
        name: str,
        versions: Collection[tuple[str, GitId]],
        alone: int,
        needed: int,
        *,
        commit: GitId | None = None,
        path: str | None = None,
    ) -> DuEntry:
        subject = "" if commit is None else self._holdings.commits[commit].subject
        own, shared = int(alone), int(needed) - int(alone)
        raw, count = self._raw(versions), len(versions)
        return DuEntry(kind, name, raw, own, shared, commit, subject, path, count)

    def _versions(self, commits: Iterable[GitId]) -> set[tuple[str, GitId]]:
        return {item for commit in commits for item in self._holdings.files(commit).items()}

    def _raw(self, versions: Iterable[tuple[str, GitId]]) -> int:
        contents = (self._holdings.content(blob) for _, blob in versions)
        return sum(content.size_bytes for content in contents if content is not None)
