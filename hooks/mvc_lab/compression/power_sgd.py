"""Gradients as products of two narrow matrices, by PyTorch's PowerSGD hook (Vogels et al. 2019).

The hook keeps per bucket the errors, in the order of its parameters, and the factors Q that the next
step starts from (P is computed from Q before it is read, so it is not part of the state). In the memory
of a bucket Qs lie by the shape of the gradient as a matrix, shapes in the order in which they first
come, and those of one shape in the order of the parameters. Before each call the memory is put into the
order of the bucket at hand. The first Q is drawn from the name of its parameter, on all ranks alike,
where PyTorch draws by bucket.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as power_sgd

from mvc import UsageError
from mvc_hooks.checks import check_count
from mvc_hooks.parts.tree import find_at
from mvc_lab.compression.hook import Compression, compare_memory, keep_if_finite, then
from mvc_lab.compression.memory import BucketMemory, BucketPiece

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from mvc_hooks.parts.tree import Difference, Steps
    from mvc_lab.compression.memory import Layout

    Future = torch.futures.Future[torch.Tensor]

_LEAST_RATE = 2
_EPSILON = 1e-8  # a column of zeros, as of a layer that was not used, must not become NaN


class PowerSgd(Compression):
    """Matrices travel as two factors with ``rank`` columns; vectors, and what would not shrink to half, whole.

    Attributes:
        rank: columns of the factors.
        start_step: backward passes before compression begins.
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
        """Make a hook.

        Args:
            rank: columns of the factors, from 1 on; more are closer, and send more.
            start_step: backward passes whose gradients travel whole, at least 2; a tenth of all is
                what PyTorch recommends.
            error_feedback: add what compression took from a gradient to the next one.
            extend: have ``Checkpointer.steps`` and the schedules take 10 % more steps, if gradients are
                compressed by more than 32.
        """
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

    def _check(self, name: str, param: torch.nn.Parameter) -> None:
        super()._check(name, param)
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
        index, buffer, layout = bucket.index(), bucket.buffer(), self._lay_out(bucket)
        if self.error_feedback:
            self._errors.fit(index, layout, lambda piece: buffer.new_zeros(piece.size))
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
        return super().capture() | {
            "factors": self._factors.by_name(),
            "passes": self._state.iter,
        }

    def _compare_memory(self, stored: Any, path: Steps) -> Iterator[Difference]:
        yield from super()._compare_memory(stored, path)
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
