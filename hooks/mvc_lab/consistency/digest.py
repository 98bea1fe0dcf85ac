"""A digest of a tensor's bits, made where the tensor is.

On the host it is BLAKE3. On a device, where there is no BLAKE3, the bytes are taken as 64-bit words w_j and
become one word by integer arithmetic modulo 2**64, with weights a_j and b_j that are odd and depend on the
position:

    x_j = (w_j ^ (w_j >>> 32)) * a_j        digest = sum_j (x_j ^ (x_j >>> 32)) * b_j

Every step from w_j to its summand is one-to-one (a product by an odd number can be undone, and so can the
shift, which is logical), so **a change within one word always changes the digest**, be it one bit or all 64.
When several words change, their summands change by numbers that the two products and shifts have spread over
all bits and that differ by position; they add up to 0 in about one of 2**64 cases. That holds for two values
that are swapped, or two signs that flip: a plain sum of w_j * a_j would miss the latter always, because the sign
is the highest bit and the sum of two odd weights is even; XOR would miss every swap.

Rows of 2**16 words share their weights. The digests of rows are words again and digested in the same way, until one is left.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, TypeVar

import blake3
import torch

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

DIGEST_BYTES = 16
_ROW = 1 << 16
_ROWS_AT_ONCE = 32
_LOW = (1 << 32) - 1
_WORD_BYTES = 8


class TensorDigests:
    """Digests of tensors, in order; those of a device arrive on the host while it goes on."""

    def __init__(self, tensors: Iterable[torch.Tensor | None]) -> None:
        """Digest the local bits of tensors; None has the digest of nothing."""
        self.digested_bytes = 0
        self._host: list[bytes | None] = []
        made: dict[torch.device, list[torch.Tensor]] = {}
        places: dict[torch.device, list[int]] = {}
        for index, tensor in enumerate(tensors):
            self.digested_bytes += 0 if tensor is None else tensor.nbytes
            if tensor is None or tensor.device.type == "cpu":
                self._host.append(b"" if tensor is None else digest_on_host(tensor))
                continue
            self._host.append(None)
            made.setdefault(tensor.device, []).append(digest_words(tensor))
            places.setdefault(tensor.device, []).append(index)
        self._late = [(places[device], *_fetch(words)) for device, words in made.items()]

    @property
    def is_late(self) -> bool:
        """Whether some of them come from a device."""
        return bool(self._late)

    def read(self) -> list[bytes]:
        """Return the digests; waits for a device that is not done with them."""
        for indices, words, event in self._late:
            if event is not None:
                event.synchronize()
            for index, word in zip(indices, words.tolist(), strict=True):
                self._host[index] = word.to_bytes(_WORD_BYTES, "little", signed=True)
        self._late = []
        return [digest or b"" for digest in self._host]


def _fetch(words: list[torch.Tensor]) -> tuple[torch.Tensor, torch.cuda.Event | None]:
    stacked = torch.stack(words)
    if not stacked.is_cuda:
        return stacked.cpu(), None
    host = torch.empty(stacked.shape, dtype=torch.int64, pin_memory=True)
    host.copy_(stacked, non_blocking=True)
    event = torch.cuda.Event()  # type: ignore[no-untyped-call]
    event.record(torch.cuda.current_stream(stacked.device))
    return host, event


def view_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """Return the bytes of a local tensor in the order of its elements; shared with it if that is how it lies."""
    flat = tensor.detach().resolve_conj().resolve_neg().contiguous().reshape(-1)
    return flat.view(torch.uint8)


def digest_on_host(tensor: torch.Tensor) -> bytes:
    """Return the BLAKE3 of a local tensor's bytes."""
    data = view_bytes(tensor).cpu().numpy().data
    return blake3.blake3(data).digest(length=DIGEST_BYTES)


def fold(digests: Iterable[bytes], length: int = 32) -> bytes:
    """Return one digest of several, which depends on their order and on the length of each."""
    hasher = blake3.blake3()
    for digest in digests:
        hasher.update(len(digest).to_bytes(_WORD_BYTES, "little"))
        hasher.update(digest)
    return hasher.digest(length=length)


def digest_words(tensor: torch.Tensor) -> torch.Tensor:
    """Return the digest of a local tensor's bytes as one int64 on its device; see the module."""
    words = _as_words(view_bytes(tensor))
    while True:
        whole = words[: len(words) // _ROW * _ROW].view(-1, _ROW)
        sums = [_sum_rows(some) for some in torch.split(whole, _ROWS_AT_ONCE)]
        rest = words[whole.numel() :]
        if len(rest) or not sums:
            sums.append(_sum_rows(rest.view(1, -1)))
        words = torch.cat(sums)
        if len(words) == 1:
            return words[0]


def _as_words(data: torch.Tensor) -> torch.Tensor:
    """Return bytes as 64-bit words: the last one is filled up, and their number comes after it."""
    size = len(data) // _WORD_BYTES * _WORD_BYTES
    tail = torch.zeros(2 * _WORD_BYTES, dtype=torch.uint8, device=data.device)
    tail[: len(data) - size] = data[size:]
    tail[_WORD_BYTES:].view(torch.int64).fill_(len(data))
    if data.data_ptr() % _WORD_BYTES or data.storage_offset() % _WORD_BYTES:
        data = data.clone()
    return torch.cat([data[:size].view(torch.int64), tail.view(torch.int64)])


def _sum_rows(words: torch.Tensor) -> torch.Tensor:
    first, second = _weights(words.device)
    mixed = words >> 32
    mixed.bitwise_and_(_LOW).bitwise_xor_(words).mul_(first[: words.shape[1]])
    high = mixed >> 32
    mixed.bitwise_xor_(high.bitwise_and_(_LOW)).mul_(second[: words.shape[1]])
    return mixed.sum(1)


@cache
def _weights(device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Return two rows of odd numbers, the same in every process."""
    stream = blake3.blake3(b"weights of a digest by position").digest(length=2 * _ROW * _WORD_BYTES)
    words = torch.frombuffer(bytearray(stream), dtype=torch.int64).bitwise_or(1).to(device)
    return words[:_ROW], words[_ROW:]


_Value = TypeVar("_Value")
_ONES = torch.tensor([number.bit_count() for number in range(256)], dtype=torch.uint8)


@dataclass(frozen=True, slots=True)
class BitDifference:
    """Where two rows of elements differ first, and by how much; ``first`` is None if they do not."""

    first: int | None = None
    elements: int = 0
    bits: int = 0
    max_delta: float = 0.0

    def then(self, other: BitDifference, offset: int) -> BitDifference:
        """Return the difference of this row with another one after it, which begins at ``offset``."""
        first = self.first
        if first is None and other.first is not None:
            first = offset + other.first
        return BitDifference(
            first,
            self.elements + other.elements,
            self.bits + other.bits,
            max(self.max_delta, other.max_delta),
        )


def compare_bits(ours: torch.Tensor, theirs: torch.Tensor) -> BitDifference:
    """Compare two tensors on the host, of the same form, element by element in their order."""
    mine, other = view_bytes(ours), view_bytes(theirs)
    changed = mine.bitwise_xor(other).view(-1, ours.element_size())
    places = changed.any(1).nonzero().reshape(-1)
    if not len(places):
        return BitDifference()
    bits = int(_ONES[changed[places].long()].sum())
    wide = torch.complex128 if ours.is_complex() else torch.float64
    left, right = (tensor.detach().reshape(-1)[places].to(wide) for tensor in (ours, theirs))
    # Infinite if one of two numbers is not finite and they are not equal.
    deltas = (left - right).abs().nan_to_num(nan=math.inf, posinf=math.inf)
    deltas[(left == right) | (left.isnan() & right.isnan())] = 0
    return BitDifference(int(places[0]), len(places), bits, float(deltas.max()))


def find_index(flat: int, shape: Sequence[int], offsets: Sequence[int] = ()) -> tuple[int, ...]:
    """Return the index of an element by its number, in a box that begins at ``offsets`` of a whole tensor."""
    index = []
    for size in reversed(shape):
        flat, at = divmod(flat, size)
        index.append(at)
    first = offsets or (0,) * len(shape)
    return tuple(start + at for start, at in zip(first, reversed(index), strict=True))


def find_majority(values: Mapping[int, _Value]) -> tuple[int, ...]:
    """Return the ranks of which more than half have the same; none if no value has so many."""
    (value, count), *_ = Counter(values.values()).most_common(1)
    is_most = 2 * count > len(values)
    return tuple(rank for rank, other in sorted(values.items()) if is_most and other == value)
