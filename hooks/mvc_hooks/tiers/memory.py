"""What the writers of the last run still hold, as a tier that a commit is read from.

Each holds what its rank kept of the newest commit. Together they have all of it, for any number of new
ranks, wherever these are; what none of them has, or has right, the store gives.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from mvc import FormatError, StorageError
from mvc.training import RunStore
from mvc_hooks.tiers.elsewhere import find_elsewhere
from mvc_hooks.tiers.images import Images

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from mvc import Repo
    from mvc.training import HeldChunks, Share
    from mvc_hooks.ranks.group import Ranks
    from mvc_hooks.tiers.elsewhere import Elsewhere

_NAMED = 3
_NOBODY = -1


@dataclass(frozen=True, slots=True)
class Given:
    """What came from memory when a rank read a commit.

    Attributes:
        size_bytes: of the chunks that did; ``away_bytes`` came from other machines.
        is_whole: whether all chunks did.
        lies: a line for each chunk that memory had wrong.
    """

    size_bytes: int = 0
    away_bytes: int = 0
    is_whole: bool = False
    lies: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Peers:
    """The ranks of the last run, as far as their images are held (see ``mvc.training.Peers``)."""

    commit: str
    shares: Mapping[int, Share]
    elsewhere: Elsewhere | None

    def find_image(self, rank: int) -> memoryview | None:
        """Return the image of a rank that is held on this machine."""
        share = self.shares.get(rank)
        return None if share is None else share.image

    def fetch_part(self, rank: int, array: int, chunk: int) -> memoryview:
        """Return what a rank had of a chunk from another machine.

        Raises:
            StorageError: nobody holds it.
        """
        if self.elsewhere is None:
            raise StorageError(f"nobody holds what rank {rank} had")
        return self.elsewhere.fetch_part(self.commit, rank, array, chunk)


@dataclass(slots=True)
class Memory:
    """The tier of memory of a branch; every rank of the new run has one."""

    repo: Repo
    branch: str
    _images: Images | None = None
    _elsewhere: Elsewhere | None = None
    _chunks: HeldChunks | None = field(default=None, repr=False)

    def look(self, ranks: Ranks) -> None:
        """Look for what is held, here and where the other ranks are; all of them have to."""
        self._images = Images(self.repo, self.branch)
        self._elsewhere = find_elsewhere(ranks, self._images)

    @contextlib.contextmanager
    def reading(self, commit: str) -> Iterator[None]:
        """Meanwhile, read chunks of a commit from memory first."""
        self._chunks = self._find(commit)
        if self._chunks is None:
            yield
            return
        with RunStore(self.repo).reading_nearby(self._chunks):
            yield

    def _find(self, commit: str) -> HeldChunks | None:
        if self._images is None:
            return None
        files, shares = self._images.find_files(commit), self._images.open_shares(commit)
        any_share = next(iter(shares.values()), None) or self._fetch_share(commit)
        if not files and any_share is None:
            return None
        peers = _Peers(commit, shares, self._elsewhere)
        return RunStore(self.repo).find_held(files, commit, share=any_share, peers=peers)

    def _fetch_share(self, commit: str) -> Share | None:
        """Return a share, of nothing, that says what all of them have."""
        form = None if self._elsewhere is None else self._elsewhere.fetch_form(commit)
        if form is None:
            return None
        with contextlib.suppress(FormatError):
            return replace(
                RunStore(self.repo).open_share(memoryview(b""), form), rank=_NOBODY, own=()
            )
        return None

    def tell(self) -> Given:
        """Return what came from memory when a commit was read last."""
        chunks = self._chunks
        if chunks is None:
            return Given()
        away_bytes = 0 if self._elsewhere is None else self._elsewhere.given_bytes
        is_whole = not chunks.missed and not chunks.lies
        return Given(chunks.given_bytes, away_bytes, is_whole, tuple(chunks.lies))

    def close(self, *, is_done: bool) -> None:
        """Let go of it; ``is_done``: no later run will want what is held."""
        self._chunks = None
        if self._elsewhere is not None:
            self._elsewhere.close()
        if self._images is not None:
            self._images.close(is_done=is_done)


def name_tiers(given: Sequence[Given]) -> str:
    """Return where the state of all ranks came from, in words."""
    if not any(one.size_bytes for one in given):
        return "the local store"
    is_away = any(one.away_bytes for one in given)
    memory = "the memory of several machines" if is_away else "memory"
    return memory if all(one.is_whole for one in given) else f"{memory} and the local store"


def name_lies(given: Sequence[Given]) -> list[str]:
    """Return a line for each of the first chunks that memory had wrong, on whatever rank."""
    lies = list(dict.fromkeys(line for one in given for line in one.lies))
    told = [f"memory was wrong, so the store was read: {one}" for one in lies[:_NAMED]]
    more = len(lies) - len(told)
    return [*told, f"memory was wrong for {more} more chunks"] if more else told
