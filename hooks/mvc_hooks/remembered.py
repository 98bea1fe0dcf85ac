"""What the writers of the last run still hold, as a tier that a commit is read from.

Each holds what its rank kept of the newest commit. Together they have all of it, for any number of new
ranks; what one of them lacks, or has wrong, the store gives.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mvc import FormatError, StorageError
from mvc_hooks.lingering import find_remembered

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from mvc import HeldChunks, Repo, Share
    from mvc_hooks.lingering import Remembered

_NAMED = 3


@dataclass(frozen=True, slots=True)
class _Images:
    """The images of the ranks of a run that are held (see ``mvc.Peers``)."""

    images: Mapping[int, memoryview]

    def find_image(self, rank: int) -> memoryview | None:
        """Return the image of a rank."""
        return self.images.get(rank)

    def fetch_part(self, rank: int, array: int, chunk: int) -> bytes:  # noqa: ARG002  as of Peers
        """Say that nobody holds the image of a rank."""
        raise StorageError(f"nobody holds what rank {rank} had")


@dataclass(slots=True)
class Memory:
    """The tier of memory of a branch, on this machine.

    Attributes:
        chunks: what was read from there last, if anything is held of that commit.
    """

    repo: Repo
    branch: str
    chunks: HeldChunks | None = None
    _found: list[Remembered] = field(default_factory=list)

    def look(self) -> None:
        """Look for what is held."""
        self._found = find_remembered(self.repo.git_dir, self.branch)

    @contextlib.contextmanager
    def reading(self, commit: str) -> Iterator[None]:
        """Meanwhile, read chunks of a commit from memory first."""
        self.chunks = self._find(commit)
        if self.chunks is None:
            yield
            return
        with self.repo.reading_nearby(self.chunks):
            yield

    def _find(self, commit: str) -> HeldChunks | None:
        files: dict[str, memoryview] = {}
        shares: dict[int, Share] = {}
        for one in self._found:
            if one.held.commit != commit:
                continue
            if one.held.form == (0, 0):
                files |= one.files
                continue
            with contextlib.suppress(FormatError):  # not what it says
                share = self.repo.open_share(one.memory[: one.held.form[0]], one.form)
                first = next(iter(shares.values()), share)
                if share.rank == one.held.rank and share.digest == first.digest:
                    shares[share.rank] = share
                    files |= share.own_files()
        if not files and not shares:
            return None
        any_share = next(iter(shares.values()), None)
        images = _Images({rank: share.image for rank, share in shares.items()})
        return self.repo.find_held(files, commit, share=any_share, peers=images)

    def name_tier(self) -> str:
        """Return where the commit that was read last came from, in words."""
        chunks = self.chunks
        if chunks is None or not chunks.given_bytes:
            return "the local store"
        is_whole = not chunks.missed and not chunks.lies
        return "memory" if is_whole else "memory and the local store"

    def name_lies(self) -> list[str]:
        """Return a line for each of the first chunks that memory had wrong."""
        lies = [] if self.chunks is None else self.chunks.lies
        told = [f"memory was wrong, so the store was read: {one}" for one in lies[:_NAMED]]
        more = len(lies) - len(told)
        return [*told, f"memory was wrong for {more} more chunks"] if more else told

    def close(self, *, is_done: bool) -> None:
        """Let go of it; ``is_done``: no later run will want what is held."""
        self.chunks = None
        for one in self._found:
            one.close(is_done=is_done)
        self._found.clear()
