"""What the writers of the last run still hold, as a tier that a commit is read from.

Each holds what its rank kept of the newest commit. Together they have all of it, for any number of new
ranks, wherever these are; what none of them has, or has right, the store gives.

Other machines are asked part by part, over the network. Each rank says which images it sees on its machine.
If some see what others do not, all of them listen for as long as the resume takes. A rank that does not
answer is not asked again: the store has everything, too.
"""

from __future__ import annotations

import contextlib
import threading
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from mvc import FormatError, MvcError, StorageError
from mvc.training import RunStore
from mvc_hooks.tiers.images import Images
from mvc_hooks.writer.dialing import Asking, Dialer, wait_until
from mvc_hooks.writer.holding import Holding
from mvc_hooks.writer.mesh import Server
from mvc_hooks.writer.messages import Answer, RankCrew
from mvc_hooks.writer.place import Listeners, open_listeners
from mvc_hooks.writer.turns import Turns
from mvc_hooks.writer.wire import Counts, Failed, Frame, GetForm, GetHeld, Here, RankLink

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from mvc import Repo
    from mvc.training import HeldChunks, Share
    from mvc_hooks.ranks.group import Ranks

_GRACE_S = 5.0
_ANSWER_S = 10.0
_NAMED = 3
_NOBODY = -1


class Elsewhere:
    """The other ranks of the new run, as far as they hold what this one does not."""

    def __init__(
        self,
        crew: RankCrew,
        place: Listeners,
        images: Images,
        seen: Sequence[list[tuple[str, int]]],
    ) -> None:
        """Answer and ask as one rank of a crew; ``seen`` are (commit, old rank) that each of them sees."""
        self.given_bytes = 0  # what came from them
        self._rank, self._place = crew.rank, place
        self._holders: dict[tuple[str, int], list[int]] = {}
        for rank in (*range(crew.rank, crew.ranks), *range(crew.rank)):  # not all ask the same one
            for image in seen[rank]:
                self._holders.setdefault(image, []).append(rank)
        self._lost: set[int] = set()
        self._lock = threading.Lock()
        counts, turns = Counts(), Turns()
        self._asking = Asking(Dialer(crew, counts), turns)
        self._server = Server(crew, turns, counts, _Answers(images), Holding())
        self._server.start(place.descriptors)

    def fetch_form(self, commit: str) -> bytes | None:
        """Return the form of any share of a commit, or None if no rank has one."""
        for held, rank in self._holders:
            if held == commit:
                with contextlib.suppress(StorageError):
                    return bytes(self._ask(GetForm(commit, rank)))
        return None

    def fetch_part(self, commit: str, rank: int, array: int, chunk: int) -> memoryview:
        """Return what a rank of the last run had of a chunk.

        Raises:
            StorageError: no rank that answers holds it.
        """
        part = self._ask(GetHeld(commit, rank, array, chunk))
        with self._lock:
            self.given_bytes += len(part)
        return part

    def _ask(self, question: GetForm | GetHeld) -> memoryview:
        for holder in self._holders.get((question.commit, question.rank), ()):
            if holder != self._rank and holder not in self._lost:
                try:
                    frame = self._asking.ask(holder, question, wait_until(_ANSWER_S))
                except OSError:
                    self._lost.add(holder)
                    continue
                return memoryview(frame.payload)
        raise StorageError(f"no machine holds what rank {question.rank} had")

    def close(self) -> None:
        """Stop answering and asking."""
        self._server.close()
        self._asking.close()
        self._place.close()


def find_elsewhere(ranks: Ranks, images: Images) -> Elsewhere | None:
    """Meet the other ranks if not all see the same images; all ranks have to call this."""
    seen = ranks.exchange(images.list_shares())
    if all(images_there == seen[0] for images_there in seen):
        return None
    place = None
    with contextlib.suppress(StorageError):
        place = open_listeners()
    addresses = ranks.exchange(None if place is None else place.address)
    if place is None or None in addresses:
        if place is not None:
            place.close()
        return None
    return Elsewhere(RankCrew(ranks.rank, tuple(addresses), _GRACE_S), place, images, seen)


class _Answers:
    """Answers the questions of other ranks (see ``serving.Hears``)."""

    def __init__(self, images: Images) -> None:
        self._images = images

    def hear(self, link: RankLink, frame: Frame) -> None:
        """Send what was asked for, or why that cannot be."""
        try:
            content = self._find(frame.message)
        except (MvcError, ValueError, LookupError) as error:
            message = str(getattr(error, "message", error))
            link.send(Failed(Answer(0, error="format", message=message)))
        else:
            link.send(Here(content.nbytes), content)

    def _find(self, question: object) -> memoryview:
        if isinstance(question, GetForm):
            form = self._images.find_form(question.commit, question.rank)
            if form is not None:
                return memoryview(form)
        if isinstance(question, GetHeld):
            share = self._images.open_shares(question.commit)[question.rank]
            return share.read_part(question.array, question.chunk).cast("B")
        raise ValueError("this rank holds nothing like it")

    def lose(self, link: RankLink) -> None:
        """Take no note of the end of a connection."""


@dataclass(frozen=True, slots=True)
class Given:
    """What came from memory when a rank read a commit."""

    size_bytes: int = 0  # of the chunks that did; ``away_bytes`` came from other machines
    away_bytes: int = 0
    is_whole: bool = False  # whether all chunks did
    lies: tuple[str, ...] = ()  # a line for each chunk that memory had wrong


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
        """Return what a rank had of a chunk from another machine; StorageError: no machine holds it."""
        if self.elsewhere is None:
            raise StorageError(f"no machine holds what rank {rank} had")
        return self.elsewhere.fetch_part(self.commit, rank, array, chunk)


@dataclass(slots=True)
class MemoryTier:
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
    if not any(share.size_bytes for share in given):
        return "the local store"
    is_away = any(share.away_bytes for share in given)
    memory = "the memory of several machines" if is_away else "memory"
    return memory if all(share.is_whole for share in given) else f"{memory} and the local store"


def name_lies(given: Sequence[Given]) -> list[str]:
    """Return a line for each of the first chunks that memory had wrong, on whatever rank."""
    lies = list(dict.fromkeys(line for share in given for line in share.lies))
    lines = [f"memory was wrong, so the store was read: {line}" for line in lies[:_NAMED]]
    more = len(lies) - len(lines)
    return [*lines, f"memory was wrong for {more} more chunks"] if more else lines
