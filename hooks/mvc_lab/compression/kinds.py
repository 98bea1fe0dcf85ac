"""The compressing hooks: PowerSGD, casts to fp16 and bf16, and signs.

PowerSGD is PyTorch's hook (Vogels et al. 2019): gradients as products of two narrow matrices. It keeps per bucket
the errors, in the order of its parameters, and the factors Q that the next step starts from (P is computed from Q
before it is read, so it is not part of the state). In the memory of a bucket Qs lie by the shape of the gradient as
a matrix, shapes in the order in which they first come, and those of one shape in the order of the parameters.
Before each call the memory is put into the order of the bucket at hand. The first Q is drawn from the name of its
parameter, on all ranks alike, where PyTorch draws by bucket.

With signs each rank sends those of g = gradient + error, eight to a byte, and for each tensor the mean of |g|.
All compute the mean over the ranks of scale * sign, in the order of the ranks. That is EF-SignSGD of
Karimireddy et al. (2019); a majority of the signs (Bernstein et al. 2018) would be as many bits, but what
it leaves out of each rank's gradient is not known to that rank, so the errors could not make up for it.
What a tensor gets depends on nothing else in its bucket, so other buckets give the same bits.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import distributed
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as power_sgd

from mvc import UsageError
from mvc_hooks.checks import check_count
from mvc_hooks.parts.tree import Difference, Steps, find_at
from mvc_lab.compression.hook import (
    BucketMemory,
    BucketPiece,
    Compression,
    Layout,
    compare_memory,
    keep_if_finite,
    then,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    Future = torch.futures.Future[torch.Tensor]

_LEAST_RATE = 2
_EPSILON = 1e-8  # a column of zeros, as of a layer that was not used, must not become NaN


class PowerSgd(Compression):
    """Matrices travel as two factors with ``rank`` columns; vectors, and what would not shrink to half, whole.

    Args:
        rank: columns of the factors, from 1 on; more are closer, and send more.
        start_step: backward passes whose gradients travel whole, at least 2; a tenth of all is
            what PyTorch recommends.
        error_feedback: add what compression took from a gradient to the next one.
        extend: have ``Checkpointer.steps`` and the schedules take 10 % more steps, if gradients are
            compressed by more than 32.
    """

    _SETTINGS = ("error_feedback", "rank", "start_step")

    def __init__(
        self,
        rank: int,
        *,
        start_step: int = 1000,
        error_feedback: bool = True,
        extend: bool = False,
    ) -> None:
        super().__init__(error_feedback=error_feedback, extend=extend)
        self.rank = check_count("rank of PowerSgd", rank, 1)
        self.start_step = check_count("start_step of PowerSgd", start_step, 2)
        self._state: Any = power_sgd.PowerSGDState(
            None,
            matrix_approximation_rank=rank,
            start_powerSGD_iter=start_step,
            min_compression_rate=_LEAST_RATE,
            use_error_feedback=error_feedback,
            orthogonalization_epsilon=_EPSILON,
        )
        self._errors = BucketMemory(self._state.error_dict)
        self._factors = BucketMemory(self._state.q_memory_dict)

    def check(self, name: str, param: torch.nn.Parameter) -> None:
        """Refuse scalars, too."""
        super().check(name, param)
        if not param.dim():
            raise UsageError(
                f"PowerSgd cannot compress the gradient of {name}, a scalar",
                hint="give the parameter the shape (1,)",
            )

    def _shrink(self, shape: Sequence[int]) -> tuple[int, int, int] | None:
        """Return rows, columns and rank of a gradient, or None if it travels whole."""
        rows, columns = shape[0], torch.Size(shape[1:]).numel()
        rank = min(rows, columns, self.rank)
        pays = (rows + columns) * rank * _LEAST_RATE < rows * columns
        return (rows, columns, rank) if pays else None

    def _expect(self, params: Sequence[torch.Tensor]) -> float:
        sent = 0
        for param in params:
            form = self._shrink(param.shape)
            count = param.numel() if form is None else (form[0] + form[1]) * form[2]
            sent += count * param.element_size()
        return sent

    # The hook.

    def reduce(self, bucket: Any) -> Future:
        """Return the mean over the ranks of the gradients in a bucket, as a future."""
        state, buffer, index = self._state, bucket.buffer(), bucket.index()
        state.process_group = self._group
        if state.iter < state.start_powerSGD_iter:
            self._count(bucket, buffer.numel() * buffer.element_size())
            return power_sgd.powerSGD_hook(state, bucket)
        self._prepare(bucket)
        before = state.total_numel_after_compression
        # The hook replaces the errors, and changes the factors in place.
        errors, factors = state.error_dict.get(index), state.q_memory_dict[index].clone()
        future = power_sgd.powerSGD_hook(state, bucket)
        sent = state.total_numel_after_compression - before
        self._count(bucket, sent * buffer.element_size())
        future = then(future, lambda result: self._keep(index, errors, factors, result))
        if buffer.device.type == "cpu":  # over gloo, with several at once, it waits for itself
            future.wait()
        return future

    def _keep(
        self, index: int, errors: torch.Tensor | None, factors: torch.Tensor, result: torch.Tensor
    ) -> None:
        state = self._state
        if errors is not None:
            keep_if_finite(errors, state.error_dict[index], result)
            state.error_dict[index] = errors
        keep_if_finite(factors, state.q_memory_dict[index], result)
        state.q_memory_dict[index] = factors

    def _prepare(self, bucket: Any) -> None:
        """Bring the memory of a bucket into the order that the hook expects."""
        index, buffer, layout = bucket.index(), bucket.buffer(), self._fit_errors(bucket)
        compressed = self._order(layout)
        factors = tuple(BucketPiece(piece.name, piece.shape[1:]) for piece in compressed)

        def draw(piece: BucketPiece) -> torch.Tensor:
            generator = torch.Generator().manual_seed(zlib.crc32(piece.name.encode()))
            return torch.randn(piece.shape, generator=generator).to(buffer)

        if not self._factors.fit(index, factors, draw):
            self._state.p_memory_dict.pop(index, None)
        if not factors:
            self._state.q_memory_dict[index] = buffer.new_empty(0)
        if index not in self._state.p_memory_dict:
            count = sum(piece.shape[0] * piece.shape[2] for piece in compressed)
            self._state.p_memory_dict[index] = buffer.new_empty(count)

    def _order(self, layout: Layout) -> list[BucketPiece]:
        """Return rows, columns and rank of what is compressed in a bucket, in the order of its memory."""
        by_shape: dict[tuple[int, ...], list[BucketPiece]] = {}
        for piece in layout:
            form = self._shrink(piece.shape)
            if form is not None:
                by_shape.setdefault(form[:2], []).append(BucketPiece(piece.name, form))
        return [piece for pieces in by_shape.values() for piece in pieces]

    # The part.

    def capture(self) -> dict[str, Any]:
        """Return settings, counts, and errors and factors by the name of the parameter."""
        return super().capture() | {"factors": self._factors.by_name(), "passes": self._state.iter}

    def compare(self, live: Any, stored: Any, path: Steps) -> Iterator[Difference]:
        """Compare the factors, too."""
        yield from super().compare(live, stored, path)
        if not isinstance(find_at(stored, ("settings",)), dict):
            return
        wanted = {}
        for name, param in self._params.items():
            form = self._shrink(param.shape)
            if form is not None:
                wanted[name] = param.detach().new_empty(form[1:])
        yield from compare_memory(wanted, find_at(stored, ("factors",)), (*path, "factors"))

    def restore(self, stored: Any) -> None:
        """Take all of it; tensors go where the parameters are."""
        super().restore(stored)
        self._factors.put(self._place(stored["factors"]))
        self._state.p_memory_dict.clear()
        self._state.iter = stored["passes"]


_BITS = 8
_SCALE_BYTES = 4


class _Cast(Compression):
    """Casts each bucket, divided by the number of ranks, sums that, and casts back.

    Args:
        error_feedback: add what rounding took from a gradient to the next one.
        extend: has no effect, because gradients are never compressed by more than 32.
    """

    _DTYPE: ClassVar[torch.dtype]
    _HOOK: ClassVar[Any]

    def __init__(self, *, error_feedback: bool = False, extend: bool = False) -> None:
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
    """Gradients travel as their signs, and a scale per tensor; the result is the mean over the ranks.

    Args:
        error_feedback: add what compression took from a gradient to the next one.
        extend: have ``Checkpointer.steps`` and the schedules take 10 % more steps, if gradients are
            compressed by more than 32.
    """

    def __init__(self, *, error_feedback: bool = True, extend: bool = False) -> None:
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
