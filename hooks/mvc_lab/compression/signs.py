"""One bit per element: the signs of the gradients, and a scale per tensor.

Each rank sends the signs of g = gradient + error, eight to a byte, and for each tensor the mean of |g|.
All compute the mean over the ranks of scale * sign, in the order of the ranks. That is EF-SignSGD of
Karimireddy et al. (2019); a majority of the signs (Bernstein et al. 2018) would be as many bits, but what
it leaves out of each rank's gradient is not known to that rank, so the errors could not make up for it.
What a tensor gets depends on nothing else in its bucket, so other buckets give the same bits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import distributed

from mvc_lab.compression.hook import Compression, keep_if_finite

if TYPE_CHECKING:
    from collections.abc import Sequence

    Future = torch.futures.Future[torch.Tensor]

_BITS = 8
_SCALE_BYTES = 4


class SignSgd(Compression):
    """Gradients travel as their signs, and a scale per tensor; the result is the mean over the ranks."""

    def __init__(self, *, error_feedback: bool = True, extend: bool = False) -> None:
        """Make a hook.

        Args:
            error_feedback: add what compression took from a gradient to the next one.
            extend: have ``Checkpointer.steps`` and the schedules take 10 % more steps, if gradients are
                compressed by more than 32.
        """
        super().__init__(error_feedback=error_feedback, extend=extend)

    def _expect(self, params: Sequence[torch.Tensor]) -> float:
        count = sum(one.numel() for one in params)
        return self._as_reduced(-(-count // _BITS) + _SCALE_BYTES * len(params))

    def _as_reduced(self, size_bytes: int) -> float:
        """Return how large a buffer is whose all-reduce sends as much as an all-gather of so many bytes."""
        return size_bytes * max(self.size, 2) / 2

    def reduce(self, bucket: Any) -> Future:
        """Return the mean over the ranks of the gradients in a bucket, as a future."""
        buffer = bucket.buffer()
        errors = self._add_errors(bucket) if self.error_feedback else None
        sizes = [one.numel() for one in bucket.gradients()]
        packed = pack_signs(buffer, sizes)
        self._count(bucket, self._as_reduced(packed.numel()))
        fresh = None if errors is None else buffer - unpack_signs(packed, sizes).to(buffer.dtype)
        found = [torch.empty_like(packed) for _ in range(self.size)]
        work = distributed.all_gather(found, packed, group=self._group, async_op=True)
        assert work is not None

        def decode(_: object) -> torch.Tensor:
            total = unpack_signs(found[0], sizes)
            for one in found[1:]:
                total += unpack_signs(one, sizes)
            mean: torch.Tensor = buffer.copy_(total.div_(len(found)))
            if errors is not None and fresh is not None:
                keep_if_finite(errors, fresh, mean)
            return mean

        future: Future = work.get_future().then(decode)
        return future


def pack_signs(values: torch.Tensor, sizes: Sequence[int]) -> torch.Tensor:
    """Return the bytes of flat tensors that lie one after the other: their signs, then their scales."""
    scales = torch.stack(
        [one.abs().mean(dtype=torch.float32) if len(one) else one.new_zeros(()).float()
         for one in torch.split(values, list(sizes))]
    )  # fmt: skip
    bits = torch.nn.functional.pad(values >= 0, (0, -len(values) % _BITS)).view(-1, _BITS)
    signs = (bits * _weigh(values)).sum(1, dtype=torch.uint8)
    return torch.cat([signs, scales.view(torch.uint8)])


def unpack_signs(packed: torch.Tensor, sizes: Sequence[int]) -> torch.Tensor:
    """Return what ``pack_signs`` has packed: the scale of each tensor with the signs, as float32."""
    count = sum(sizes)
    signs, scales = torch.split(packed, [-(-count // _BITS), _SCALE_BYTES * len(sizes)])
    bits = (signs[:, None] & _weigh(packed)).view(-1)[:count] != 0
    values = torch.where(bits, 1.0, -1.0)
    # Copied, because a scale may begin at any byte.
    numbers = scales.clone().view(torch.float32)
    for part, scale in zip(torch.split(values, list(sizes)), numbers, strict=True):
        part.mul_(scale)
    return values


def _weigh(like: torch.Tensor) -> torch.Tensor:
    return 1 << torch.arange(_BITS, dtype=torch.uint8, device=like.device)
