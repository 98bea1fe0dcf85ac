"""When to store a chunk as a difference to another one, or as the rounding of others.

The spans say which stored chunk each may resemble (the same tensor's in the parent commit) and of
which chunks it may be the exact rounding (the fp32 master's). These are hints: bases are read and
hashed before anything is built on them, a rounding is done and compared, and a difference is kept
only if it is really smaller.

A base costs time: it has to be read, decoded and hashed. So unless it must insist, a session takes
a *look* first (``looks``): of every group of spans a few chunks are compared with their bases by
sample, and only if that promises a gain worth its time is the group stored as differences. In groups
without a verdict each new chunk is sampled itself.

Chains are kept short, because each link costs a reader nearly as much as the chunk itself. So looks
compare with the last chunk of a chain as well, and a difference is taken to that unless one further
up is much nearer. And nothing is stored as the rounding of what is, or rests on, a rounding itself:
that would have no end.

*Light* differences, of the few words that a step of reinforcement learning changes, cost a reader
little, and taken to an older version they would add up. So a chain of them may be long: until its
differences together are as long as the chunk. Whatever else a session may spend goes into
*folding* the longest chains: those chunks become differences to one far down.

How a chunk is encoded depends on what was added in which order, never on how far the threads are: a
chunk that this session stores counts from the next ``add`` on, and is read only from where it is at
hand, since its pack may not be published yet.
"""

from __future__ import annotations

import enum
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import wait
from typing import TYPE_CHECKING

import numpy as np

from mvc.chunkstore.chains import Buffers, ReadSlot
from mvc.chunkstore.looks import (
    FOLDED_SHARE,
    LIGHT,
    STEP_SHARE,
    DeltaVerdict,
    Look,
    choose_looks,
    judge,
    judge_groups,
    may_grow,
    plan_folds,
)
from mvc.errors import MvcError
from mvc.formats.casts import round_words
from mvc.formats.decoding import Encoding
from mvc.formats.deltas import ESTIMATE_BYTES, MIN_DELTA_BYTES, encode_delta, estimate_delta
from mvc.formats.encoding import EncodedChunk, EncodeScratch, encode_cast, encode_chunk
from mvc.formats.pack import MAX_BASES, MAX_DEPTH
from mvc.ids import ChunkId, hash_chunk

if TYPE_CHECKING:
    from mvc.chunkstore.parallel import NiceThreads
    from mvc.chunkstore.reader import ChunkReader
    from mvc.chunkstore.values import ChunkSpan
    from mvc.sources import ByteSource

MAX_CHAIN = 2
"""Differences between a chunk and whole bytes, as writers make them unless they are light."""


class DeltaMode(enum.Enum):
    """When chunks are stored as differences: never, if that saves a quarter, or if smaller."""

    NEVER = "never"
    AUTO = "auto"
    ALWAYS = "always"


class EncodeSlot(Buffers):
    """The memory that one chunk needs on its way to a pack."""

    def __init__(self) -> None:
        super().__init__()
        self.scratch = EncodeScratch()


class _Memory(threading.local):
    """What bases and looks take: of a thread and not of a slot, since no result lies in it."""

    def __init__(self) -> None:
        self.reads = ReadSlot()
        self.scratch = EncodeScratch()
        self.held: ChunkId | None = None


class RelativeEncoder:
    """Encodes chunks with the help of others; safe to use from many threads.

    ``at_hand`` are chunks whose plain bytes lie in another source, at an offset, where reading them
    is cheaper; they are hashed like all others. ``is_written`` returns True if an earlier ``add``
    of this session wrote a chunk, False if this one does, None if it is not of this session.
    ``exact``: take bases as they are named, since the caller has looked at chains.
    """

    def __init__(
        self,
        reader: ChunkReader,
        mode: DeltaMode,
        at_hand: Mapping[ChunkId, tuple[ByteSource, int]],
        is_written: Callable[[ChunkId], bool | None],
        *,
        exact: bool = False,
    ) -> None:
        self._reader = reader
        self._catalog = reader.catalog
        self._mode = mode
        self._at_hand = at_hand
        self._is_written = is_written
        self._exact = exact
        self._written: dict[ChunkId, tuple[int, ChunkId]] = {}
        self._memory = _Memory()
        self._verdicts: dict[int, DeltaVerdict] = {}
        self._has_looked = False
        self._folds: dict[ChunkId, ChunkId] = {}
        self._chains: dict[tuple[ChunkId, int], dict[ChunkId, int]] = {}

    def encode(self, span: ChunkSpan, plain: memoryview, slot: EncodeSlot) -> EncodedChunk:
        """Return a chunk as it is stored best; valid until the next use of the slot."""
        if span.cast is not None and self._is_rounding(span, plain, slot):
            return encode_cast(span.cast, tuple(master for master, _ in span.masters))
        base, share = self._choose(span, plain)
        data = None if base is None else self._read_base(base, span.size_bytes)
        if base is None or data is None:
            return encode_chunk(plain, span.dtype, slot.scratch)
        return encode_delta(plain, data, base, span.dtype, slot.scratch, share)

    def _choose(self, span: ChunkSpan, plain: memoryview) -> tuple[ChunkId | None, float | None]:
        """Return the base to try, and the share that such chunks take whole if a gain is known."""
        insists = self._mode is DeltaMode.ALWAYS
        verdict = self._verdicts.get(span.group)
        if verdict is not None and not (verdict.gains or insists):
            return None, None
        bases = self._find_bases(span, may_begin=verdict is not None or not self._has_looked)
        if bases and verdict is None and (len(bases) > 1 or not insists):
            look = self._compare(span, plain, bases)
            verdict = None if look is None else judge([look])
        gains = verdict is not None and verdict.gains
        if not bases or not (gains or insists):
            return None, None
        is_last = verdict is None or verdict.to_last
        if verdict is None or verdict.light is None:
            bases = bases[-MAX_CHAIN:]
        elif bases[0] in self._folds:
            bases, is_last = [self._folds[bases[0]]], True
        return bases[-1 if is_last else 0], verdict.whole if verdict and gains else None

    def _compare(self, span: ChunkSpan, plain: memoryview, bases: Sequence[ChunkId]) -> Look | None:
        """Look at a span by sample; None if no base can be read."""
        look = self._compare_with(span, plain, bases)
        if look is None or look.near <= LIGHT or len(bases) <= MAX_CHAIN:
            return look
        return self._compare_with(span, plain, bases[-MAX_CHAIN:])

    def _compare_with(
        self, span: ChunkSpan, plain: memoryview, bases: Sequence[ChunkId]
    ) -> Look | None:
        whole, shares = 0, []
        sample_bytes = min(span.size_bytes, ESTIMATE_BYTES)
        for base in dict.fromkeys((bases[0], bases[-1])):
            data = self._read_base(base, span.size_bytes)
            if data is not None:
                scratch = self._memory.scratch
                as_delta, whole = estimate_delta(plain, data, span.dtype, scratch)
                shares.append(as_delta / sample_bytes)
        return Look(span, whole / sample_bytes, shares[0], shares[-1]) if shares else None

    def note(self, chunk_id: ChunkId, body: EncodedChunk) -> None:
        """Take note of a record that this session has written."""
        if body.bases:
            self._written[chunk_id] = (body.encoding, body.bases[0])

    def forget(self) -> None:
        """Give back the memory of this thread, at the end; what others took goes with them."""
        self._memory.__dict__.clear()
        self._chains.clear()

    def _find_bases(self, span: ChunkSpan, *, may_begin: bool = True) -> list[ChunkId]:
        """Return what a span may be a difference to, each the base of the one before it.

        Unless light differences ``may_begin``, only a row with some in it is returned as it is:
        every chunk would have to be compared with one base more.
        """
        if self._mode is DeltaMode.NEVER or span.base is None or span.size_bytes < MIN_DELTA_BYTES:
            return []
        if self._exact:
            return [span.base]
        chain = self._find_chain(span.base, span.size_bytes)
        grows = may_grow(chain, span.size_bytes)
        if grows and not may_begin:
            grows = min(list(chain.values())[:-1], default=0) <= LIGHT * span.size_bytes
        return list(chain)[0 if grows else -MAX_CHAIN :]

    def _find_chain(self, wanted: ChunkId | None, size_bytes: int) -> dict[ChunkId, int]:
        """Return a chunk, its base, and so on; nothing if something is missing or does not fit.

        With the bytes that each takes as a difference: 0 if it is whole, and -1 if it is a rounding.
        """
        if wanted is None or self._is_written(wanted) is not None:
            return {}
        key = wanted, size_bytes
        chain = self._chains.get(key, {})
        if chain:
            return chain
        while wanted is not None and wanted not in chain:
            copies = [c for c in self._catalog.find_all(wanted) if c.plain_size_bytes == size_bytes]
            if not copies:
                return {}
            is_delta = all(copy.encoding == Encoding.DELTA for copy in copies)
            is_whole = any(not copy.bases for copy in copies)
            chain[wanted] = copies[0].stored_size_bytes if is_delta else 0 if is_whole else -1
            wanted = copies[0].bases[0] if is_delta else None
        if self._catalog.contains_each(chain).all():
            self._chains[key] = chain
            return chain
        return {}

    def _read_base(self, chunk_id: ChunkId, size_bytes: int) -> memoryview | None:
        """Return a chunk, hashed, in memory that the next call uses again; None if there is none."""
        memory = self._memory
        data = memory.reads.buffer("relative", size_bytes)
        if memory.held != chunk_id:
            memory.held = chunk_id if self._read(chunk_id, data) else None
        return None if memory.held is None else data

    def _read(self, chunk_id: ChunkId, plain: memoryview) -> bool:
        """Fill ``plain`` with a chunk, hashed; return False if it cannot be read."""
        place = self._at_hand.get(chunk_id)
        if place is not None:
            source, offset = place
            try:
                source.read_into(offset, plain)
            except (MvcError, OSError):
                pass  # not at hand any more
            else:
                if hash_chunk(plain) == chunk_id:
                    return True
        if self._is_written(chunk_id) is not None and not self._exact:
            return False
        try:
            self._reader.read_chunk(chunk_id, plain, self._memory.reads, "")
        except MvcError:
            return False  # damaged: storing without it is safe, and fsck reports it
        return True

    def _is_rounding(self, span: ChunkSpan, plain: memoryview, slot: EncodeSlot) -> bool:
        """Round the masters and compare."""
        assert span.cast is not None
        rest = np.frombuffer(plain, np.uint8)
        if not 0 < len(span.masters) <= MAX_BASES:
            return False
        for master, size_bytes in span.masters:
            half = size_bytes // 2
            self._memory.held = None
            memory = self._memory.reads.buffer("relative", size_bytes + half)
            words, rounded = memory[:size_bytes], np.frombuffer(memory[size_bytes:], np.uint8)
            if not size_bytes or size_bytes % 4 or half > rest.size:
                return False
            # A master has to be there (before this ``add``), and must not rest on a cast.
            is_there = self._is_written(master)
            if is_there is None:
                is_there = bool(self._catalog.contains_each([master])[0])
            if not is_there or self._rests_on_cast(master) or not self._read(master, words):
                return False
            arena = slot.scratch.arena
            round_words(span.cast, np.frombuffer(words, np.uint8), rounded, arena)
            if not np.array_equal(rounded, rest[:half]):
                return False
            rest = rest[half:]
        return not rest.size

    def _rests_on_cast(self, chunk_id: ChunkId) -> bool:
        for _ in range(MAX_DEPTH):  # records may refer in a circle
            record = self._written.get(chunk_id)
            if record is None:
                copies = list(self._catalog.find_all(chunk_id))
                if not copies or any(not copy.bases for copy in copies):
                    return False
                record = copies[0].encoding, copies[0].bases[0]
            encoding, chunk_id = record
            if encoding != Encoding.DELTA:
                return True
        return True

    def look(self, source: ByteSource, spans: Sequence[ChunkSpan], crew: NiceThreads) -> None:
        """Find out for which groups of spans differences promise a gain."""
        self._verdicts, self._has_looked = {}, False
        if self._mode is DeltaMode.NEVER or self._exact:
            return
        jobs = [crew.submit(self._look_at, source, span) for span in choose_looks(spans)]
        try:
            looks = [job.result() for job in jobs]
        finally:
            for job in jobs:
                job.cancel()
            wait(jobs)
        self._has_looked = bool(jobs)
        # Equal samples tell nothing of the chunks that did change.
        telling = [look for look in looks if look and look.near and look.last]
        self._verdicts = judge_groups(spans, telling)
        self._folds = self._plan_folds(spans)

    def _plan_folds(self, spans: Sequence[ChunkSpan]) -> dict[ChunkId, ChunkId]:
        """Return base → the one to take in its place, for chains that are to get shorter."""
        spare_bytes, chains = 0.0, []
        for span in spans:
            verdict = self._verdicts.get(span.group)
            if span.base is not None and verdict is not None and verdict.light is not None:
                spare_bytes += (STEP_SHARE - verdict.light) * span.size_bytes / FOLDED_SHARE
                chains.append(self._find_chain(span.base, span.size_bytes))
        return plan_folds(chains, spare_bytes)

    def _look_at(self, source: ByteSource, span: ChunkSpan) -> Look | None:
        bases = self._find_bases(span)
        if not bases:
            return None
        plain = self._memory.reads.buffer("plain", span.size_bytes)
        source.read_into(span.offset, plain)
        return None if hash_chunk(plain) == span.base else self._compare(span, plain, bases)
