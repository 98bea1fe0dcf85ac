"""Gradients in 16 bits, by PyTorch's own hooks, or in one: the signs of the gradients, and a scale per tensor.

With signs each rank sends those of g = gradient + error, eight to a byte, and for each tensor the mean of |g|.
All compute the mean over the ranks of scale * sign, in the order of the ranks. That is EF-SignSGD of
Karimireddy et al. (2019); a majority of the signs (Bernstein et al. 2018) would be as many bits, but what
it leaves out of each rank's gradient is not known to that rank, so the errors could not make up for it.
What a tensor gets depends on nothing else in its bucket, so other buckets give the same bits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import distributed
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

from mvc_lab.compression.hook import Compression, keep_if_finite, then

if TYPE_CHECKING:
    from collections.abc import Sequence

    Future = torch.futures.Future[torch.Tensor]

_BITS = 8
_SCALE_BYTES = 4


class _Cast(Compression):
    """Casts each bucket, divided by the number of ranks, sums that, and casts back."""

    _DTYPE: ClassVar[torch.dtype]
    _HOOK: ClassVar[Any]

    def __init__(self, *, error_feedback: bool = False, extend: bool = False) -> None:
        """Make a hook.

        Args:
            error_feedback: add what rounding took from a gradient to the next one.
            extend: has no effect, because gradients are never compressed by more than 32.
        """
        super().__init__(error_feedback=error_feedback, extend=extend)

    def _expect(self, params: Sequence[torch.Tensor]) -> float:
        return sum(param.numel() * self._DTYPE.itemsize for param in params)

    def reduce(self, bucket: Any) -> Future:
        """Return the mean over the ranks of the gradients in a bucket, as a future."""
        buffer, size = bucket.buffer(), self.size
        self._count(bucket, buffer.numel() * self._DTYPE.itemsize)
        if not self.error_feedback:
            return self._send(bucket)
        errors = self._add_errors(bucket)
        fresh = buffer - buffer.to(self._DTYPE).div_(size).to(buffer.dtype).mul_(size)
        return then(self._send(bucket), lambda result: keep_if_finite(errors, fresh, result))

    def _send(self, bucket: Any) -> Future:
        future: Future = self._HOOK(self._group, bucket)
        return future


class Fp16(_Cast):
    """Gradients travel as fp16, by ``fp16_compress_hook``. One above 65,504 becomes infinite."""

    _DTYPE = torch.float16
    _HOOK = staticmethod(default_hooks.fp16_compress_hook)


class Bf16(_Cast):
    """Gradients travel as bf16, by ``bf16_compress_hook``."""

    _DTYPE = torch.bfloat16
    _HOOK = staticmethod(default_hooks.bf16_compress_hook)


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
        count = sum(param.numel() for param in params)
        return self._as_reduced(-(-count // _BITS) + _SCALE_BYTES * len(params))

    def _as_reduced(self, size_bytes: int) -> float:
        """Return the size of a buffer whose all-reduce sends as much as an all-gather of these bytes."""
        return size_bytes * max(self.size, 2) / 2

    def reduce(self, bucket: Any) -> Future:
        """Return the mean over the ranks of the gradients in a bucket, as a future."""
        buffer = bucket.buffer()
        errors = self._add_errors(bucket) if self.error_feedback else None
        sizes = [gradient.numel() for gradient in bucket.gradients()]
        packed = pack_signs(buffer, sizes)
        self._count(bucket, self._as_reduced(packed.numel()))
        fresh = None if errors is None else buffer - unpack_signs(packed, sizes).to(buffer.dtype)
        every = [torch.empty_like(packed) for _ in range(self.size)]
        work = distributed.all_gather(every, packed, group=self._group, async_op=True)
        assert work is not None

        def decode(_: object) -> torch.Tensor:
            total = unpack_signs(every[0], sizes)
            for other in every[1:]:
                total += unpack_signs(other, sizes)
            mean: torch.Tensor = buffer.copy_(total.div_(len(every)))
            if errors is not None and fresh is not None:
                keep_if_finite(errors, fresh, mean)
            return mean

        future: Future = work.get_future().then(decode)
        return future


def pack_signs(values: torch.Tensor, sizes: Sequence[int]) -> torch.Tensor:
    """Return the bytes of flat tensors that lie one after the other: their signs, then their scales."""
    scales = torch.stack(
        [part.abs().mean(dtype=torch.float32) if len(part) else part.new_zeros(()).float()
         for part in torch.split(values, list(sizes))]
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
