"""The lists of ``du``: each kind of user against all others of its kind.

Everything is read once (``holdings``). For each list, users are numbered, the chunks that their
versions name are collected, and both are counted (``shares``).
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from mvc.upkeep.costs import DuEntry, DuTotals
from mvc.upkeep.holdings import Holdings
from mvc.upkeep.shares import Needs, Owners, Totals, Union

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from mvc.chunkstore.copies import Numbers
    from mvc.ids import GitId
    from mvc.workspace.context import Context

_BRANCH, _TAG = "refs/heads/", "refs/tags/"
_RUNS = 4


@dataclass(slots=True)
class _Run:
    """What one ref needs; goes on to a ref that reaches it."""

    union: Union
    tip: GitId | None = None
    commits: set[GitId] = field(default_factory=set)
    versions: set[tuple[str, GitId]] = field(default_factory=set)


class Survey:
    """One look at a repository, from which all lists are made.

    Args:
        context: the repository.
        chosen: the commits to list and to look for files in; None means all that refs reach.
        with_tensors: whether tensors will be listed.

    Raises:
        FormatError: the history is damaged.
    """

    def __init__(
        self, context: Context, chosen: Sequence[GitId] | None, *, with_tensors: bool
    ) -> None:
        self._context = context
        self._copies = context.store.copies()
        self._needs = Needs(self._copies)
        self._holdings = Holdings(context, self._copies, with_tensors=with_tensors)
        holdings = self._holdings
        self._is_all = chosen is None
        wanted = holdings.named if chosen is None else set(chosen)
        self._chosen = [commit for commit in holdings.commits if commit in wanted]
        self._rest = [
            commit
            for commit in holdings.commits
            if commit in holdings.named and commit not in wanted
        ]

    def sum_up(self) -> DuTotals:
        """Return what the whole repository takes."""
        holdings, copies = self._holdings, self._copies
        union = Union(self._needs)
        direct = np.zeros(len(self._needs), np.bool_)
        late = [commit for commit in holdings.commits if commit not in holdings.named]
        for blobs in (self._blobs(holdings.named), holdings.staged.values()):
            for content in holdings.contents(blobs):
                union.add(content.chunks)
                direct[content.chunks] = True
        named_bytes = union.bytes
        for chunks in holdings.chunks_of(late):
            union.add(chunks)
            direct[chunks] = True
        versions = {item for one in holdings.commits for item in holdings.files(one).items()}
        versions |= set(holdings.staged.items())
        listing = self._context.store.list_packs()
        pack_bytes, index_bytes = sum(listing.packs.values()), sum(listing.indexes.values())
        return DuTotals(
            raw_bytes=self._raw(versions),
            versions=len(versions),
            commits=len(holdings.commits),
            packs=len(copies.indexes),
            pack_bytes=pack_bytes,
            index_bytes=index_bytes,
            object_bytes=_folder_bytes(self._context.git_dir / "objects"),
            needed_bytes=union.bytes,
            base_bytes=int(self._needs.sizes[union.mask & ~direct].sum()),
            reflog_bytes=union.bytes - named_bytes,
            unneeded_bytes=int(copies.sizes.sum()) - union.bytes,
        )

    def weigh_selection(self, name: str) -> DuEntry:
        """Return what the chosen commits cost together."""
        owners = Owners(self._needs, 1)
        self._assign(owners, self._chosen, 0)
        self._assign_rest(owners)
        union = Union(self._needs)
        for chunks in self._holdings.chunks_of(self._chosen):
            union.add(chunks)
        versions = {
            item for commit in self._chosen for item in self._holdings.files(commit).items()
        }
        alone = int(owners.count_alone()[0])
        return DuEntry(
            "selection",
            name,
            self._raw(versions),
            alone,
            union.bytes - alone,
            versions=len(versions),
        )

    def list_refs(self) -> Iterator[DuEntry]:
        """Yield what branches and tags cost, those that point to chosen commits."""
        holdings = self._holdings
        users = {name: number for number, name in enumerate(holdings.refs)}
        alone = self._count_alone(len(users), *_find_holders(holdings, users))
        wanted = None if self._is_all else set(self._chosen)
        for name, run in self._follow_refs():
            tip = holdings.refs[name]
            kind = "branch" if name.startswith(_BRANCH) else "tag"
            if (wanted is not None and tip not in wanted) or not name.startswith((_BRANCH, _TAG)):
                continue
            own = int(alone[users[name]])
            yield DuEntry(
                kind,
                name.removeprefix(_BRANCH if kind == "branch" else _TAG),
                self._raw(run.versions),
                own,
                run.union.bytes - own,
                tip,
                holdings.commits[tip].subject,
                versions=len(run.versions),
            )

    def list_commits(self) -> Iterator[DuEntry]:
        """Yield what each chosen commit costs."""
        holdings = self._holdings
        users = {commit: number for number, commit in enumerate([*self._chosen, *self._rest])}
        alone = self._count_alone(len(users), users, users)
        totals = Totals(self._needs, len(users))
        for commit in self._chosen:
            for chunks in holdings.chunks_of([commit]):
                totals.add(chunks, users[commit])
            totals.finish()
        for commit in self._chosen:
            own = int(alone[users[commit]])
            versions = set(holdings.files(commit).items())
            yield DuEntry(
                "commit",
                commit,
                self._raw(versions),
                own,
                int(totals.bytes[users[commit]]) - own,
                commit,
                holdings.commits[commit].subject,
                versions=len(versions),
            )

    def list_files(self) -> Iterator[DuEntry]:
        """Yield what each path costs, all its versions together."""
        files = self._files()
        owners = Owners(self._needs, len(files))
        totals = Totals(self._needs, len(files))
        for number, blobs in enumerate(files.values()):
            for content in self._holdings.contents(blobs):
                owners.add(content.chunks, number, number)
                totals.add(content.chunks, number)
            totals.finish()
        if not self._is_all:
            self._assign_rest(owners)
        alone = owners.count_alone()
        for number, (path, blobs) in enumerate(files.items()):
            raw = sum(content.size_bytes for content in self._holdings.contents(blobs))
            own = int(alone[number])
            shared = int(totals.bytes[number]) - own
            yield DuEntry("file", path, raw, own, shared, path=path, versions=len(blobs))

    def list_tensors(self) -> Iterator[DuEntry]:
        """Yield what each tensor of each path costs, all its versions together."""
        holdings, files = self._holdings, self._files()
        numbers = self._number_tensors(files)
        owners = Owners(self._needs, len(numbers))
        totals = Totals(self._needs, len(numbers))
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
        if not self._is_all:
            self._assign_rest(owners)
        alone = owners.count_alone()
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
            reached = holdings.reach(tip)
            run = max(
                (one for one in runs if one.tip in reached),
                key=lambda one: len(one.commits),
                default=None,
            )
            if run is None:
                run = _Run(Union(self._needs))
                runs = [*runs[1 - _RUNS :], run]
            for chunks in holdings.chunks_of(reached - run.commits):
                run.union.add(chunks)
            for commit in reached - run.commits:
                run.versions.update(holdings.files(commit).items())
            run.tip, run.commits = tip, reached
            yield name, run

    def _count_alone(
        self, users: int, least: Mapping[GitId, int], greatest: Mapping[GitId, int]
    ) -> Numbers:
        """Return what each user alone needs, given the least and greatest user of each commit.

        Blobs that many commits share are counted once, or this would be quadratic.
        """
        found: dict[GitId, tuple[int, int]] = {}
        for commit, low in least.items():
            high = greatest[commit]
            for blob in self._holdings.files(commit).values():
                known = found.get(blob, (low, high))
                found[blob] = (min(known[0], low), max(known[1], high))
        owners = Owners(self._needs, users)
        for blob, (low, high) in found.items():
            for content in self._holdings.contents([blob]):
                owners.add(content.chunks, low, high)
        self._assign_staged(owners)
        return owners.count_alone()

    def _files(self) -> dict[str, dict[GitId, None]]:
        """Return path → the blobs of its versions in the chosen commits."""
        found: dict[str, dict[GitId, None]] = {}
        for commit in self._chosen:
            for path, blob in self._holdings.files(commit).items():
                found.setdefault(path, {})[blob] = None
        for path, blob in self._holdings.staged.items() if self._is_all else ():
            found.setdefault(path, {})[blob] = None
        return found

    def _assign(self, owners: Owners, commits: Iterable[GitId], user: int) -> None:
        for chunks in self._holdings.chunks_of(commits):
            owners.add(chunks, user, user)

    def _assign_rest(self, owners: Owners) -> None:
        self._assign(owners, self._rest, owners.others)
        self._assign_staged(owners)

    def _assign_staged(self, owners: Owners) -> None:
        for content in self._holdings.contents(self._holdings.staged.values()):
            owners.add(content.chunks, owners.others, owners.others)

    def _blobs(self, commits: Iterable[GitId]) -> Iterator[GitId]:
        return (blob for commit in commits for blob in self._holdings.files(commit).values())

    def _raw(self, versions: Iterable[tuple[str, GitId]]) -> int:
        contents = (self._holdings.content(blob) for _, blob in versions)
        return sum(content.size_bytes for content in contents if content is not None)


def _find_holders(
    holdings: Holdings, users: Mapping[str, int]
) -> tuple[dict[GitId, int], dict[GitId, int]]:
    """Return commit → the least and the greatest ref that reaches it.

    A commit that two refs reach is never looked at by a third: all before it have two as well.
    """
    least: dict[GitId, int] = {}
    greatest: dict[GitId, int] = {}
    for name, user in users.items():
        pending = [holdings.refs[name]]
        while pending:
            commit = pending.pop()
            low = least.setdefault(commit, user)
            if commit in greatest and (low != greatest[commit] or low == user):
                continue
            greatest[commit] = user  # refs come in ascending order
            pending.extend(holdings.commits[commit].parents)
    return least, greatest


def _folder_bytes(folder: os.PathLike[str]) -> int:
    size_bytes = 0
    for place, _, names in os.walk(folder):
        for name in names:
            try:
                size_bytes += os.lstat(os.path.join(place, name)).st_size
            except FileNotFoundError:
                continue  # gc removed it
    return size_bytes
