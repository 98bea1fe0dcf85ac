"""The data that models learn from: maps of its shards."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from mvc import operations
from mvc.repo.opening import OpenRepo

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mvc.operations import data_add, data_maps, data_places, data_seen, data_who  # noqa: F401
    from mvc.operations.data_add import DataAddResult
    from mvc.operations.data_maps import MapDiff, MapInfo
    from mvc.operations.data_seen import DataSeen
    from mvc.operations.data_who import WhoSaw
    from mvc.repo.opening import Progress, StrPath
    from mvc.shards.checking import Level, MapReport
    from mvc.shards.places import ShardPlace
    from mvc.shards.shard_map import MapChanges, ShardMap


class Data(OpenRepo):
    """Maps of shards: which files a data set has, and what is in them.

    A map is named by its path, with or without ``.shards``, or by the last part of that.
    """

    def add_data(
        self,
        source: str,
        *,
        name: str | None = None,
        store: bool = False,
        dtype: str | None = None,
        folder: StrPath | None = None,
        progress: Progress = None,
    ) -> DataAddResult:
        """Make or renew the map of some shards, and stage it. Only what changed is read.

        Args:
            source: a folder, a file, a pattern such as ``data/*.parquet`` or ``data/**/*.tar``, or the
                URL of one: ``s3://bucket/train``.
            name: path of the map, without ``.shards``; by default that of the folder.
            store: also add the shards themselves, as ``add`` does; else they stay where they are,
                and a rule in ``.mvcignore`` leaves them out of ``add`` and ``status``.
            dtype: NumPy's name for the type of the numbers in ``.bin`` files, such as ``uint16``, to count
                them; by default as in the map that is renewed.
            folder: what relative paths start from; the worktree by default.
            progress: called with bytes read since the last call.

        Raises:
            NotFoundError: there is no such folder, or no shard in it.
            ConflictError: a shard changed while it was read, or the map's file is that of other shards.
            UnsupportedError: a shard is a link.
            UsageError: no such dtype, or no file that it is for.
        """
        cwd = self.worktree if folder is None else Path(folder)
        return operations.data_add.add_data(
            self._context, source, cwd=cwd, name=name, store=store, dtype=dtype, progress=progress
        )

    def name_data(self, revision: str | None = None, name: str | None = None) -> list[str]:
        """Return the paths of the maps of a revision, or of one; by default those of the worktree.

        Raises:
            NotFoundError: no such revision or map.
            UsageError: several maps have this name.
        """
        return operations.data_maps.name_maps(self._context, revision, name)

    def list_data(self, revision: str | None = None, name: str | None = None) -> list[MapInfo]:
        """Return the maps of a revision, or the one of a name; by default those of the worktree.

        Raises:
            NotFoundError: no such revision or map.
            UsageError: several maps have this name.
            FormatError: the file of that name is not a map.
        """
        return operations.data_maps.list_maps(self._context, revision, name)

    def diff_data(
        self, old: str | None = None, new: str | None = None, *, name: str | None = None
    ) -> list[MapDiff]:
        """Compare the maps of two revisions, or of one (HEAD) with the worktree; no shard is read.

        Raises:
            NotFoundError: no such revision or map.
            FormatError: the file of that name is not a map.
        """
        return operations.data_maps.diff_maps(self._context, old, new, name)

    def verify_data(
        self, name: str | None = None, *, level: Level = "normal", progress: Progress = None
    ) -> list[tuple[str, MapReport]]:
        """Compare maps of the worktree with their shards; return the path and a report of each.

        Args:
            name: one map; all by default.
            level: ``quick`` reads no content, ``normal`` what stat data and tags do not prove unchanged,
                ``full`` every byte.
            progress: called with bytes read since the last call.

        Raises:
            NotFoundError: no such map.
            FormatError: the file of that name is not a map.
            StorageError: a store does not answer.
        """
        return operations.data_maps.verify_maps(self._context, name, level=level, progress=progress)

    def check_shards(
        self,
        shard_map: ShardMap,
        place: ShardPlace,
        *,
        level: Level = "normal",
        threads: int = 1,
        share: tuple[int, int] = (0, 1),
    ) -> MapReport:
        """As ``mvc.shards.check_shards``, with what this repository knows of files that were hashed before.

        Raises:
            StorageError: the place cannot be listed.
        """
        return operations.data_places.check_known(
            self._context, shard_map, place, level=level, threads=threads, share=share
        )

    def remove_data(self, name: str, shards: Sequence[str] = ()) -> tuple[str, MapChanges]:
        """Remove a map, or some shards from it, and stage that; content is left where it is.

        Returns:
            The map's path, and what it lost.

        Raises:
            NotFoundError: no such map, or it has no such shard.
        """
        return operations.data_maps.remove_data(self._context, name, shards)

    def seen_data(
        self, revision: str = "HEAD", since: str | None = None, *, prove: bool = False
    ) -> DataSeen:
        """Return which samples the state of a commit saw since its parent, and which were skipped.

        Args:
            revision: which commit.
            since: since this one; if it is on another line, since the two parted.
            prove: compute the digest from the plan and the ids, and compare it with the commit's.

        Raises:
            NotFoundError: no such revision, or it does not say which samples it saw.
            FormatError: what it says of them is malformed.
        """
        return operations.data_seen.list_seen(self._context, revision, since, prove=prove)

    def who_saw(
        self,
        sample: str | None = None,
        *,
        shard: str | None = None,
        revision: str = "HEAD",
        everything: bool = False,
    ) -> WhoSaw:
        """Return which commits saw a sample, or any sample of a shard.

        Args:
            sample: ``source:index``, an index or a key.
            shard: in place of a sample, the path of a shard in its map.
            revision: look at it and its first parents.
            everything: look at all branches.

        Raises:
            NotFoundError: no such revision, source or shard, or no commit says what it saw.
            UsageError: no sample, or one that may be of several sources.
        """
        return operations.data_who.find_who(
            self._context, sample, shard=shard, revision=revision, everything=everything
        )
