"""Gradients in 16 bits, by PyTorch's own hooks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

from mvc_lab.compression.hook import Compression, keep_if_finite, then

if TYPE_CHECKING:
    from collections.abc import Sequence

    Future = torch.futures.Future[torch.Tensor]


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
        return sum(one.numel() * self._DTYPE.itemsize for one in params)

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
