"""verify, the unit layer: do two models hold the same tensors, to the bit or within a tolerance?

Each may be a revision, the worktree, plain files or a live state dict. Stat data is not trusted: of
files all that has to be is read, also of those that the index knows.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from mvc.comparison.checks import TensorCheck, check_pairs
from mvc.comparison.pairs import pair_models
from mvc.errors import ConflictError, NotFoundError, UsageError
from mvc.fs import stat_descriptor
from mvc.numbers.deviation import Tolerance
from mvc.progress import announce
from mvc.sources import FileSource
from mvc.workspace.context import Context, threads_of
from mvc.workspace.models import open_model

if TYPE_CHECKING:
    from mvc.ids import GitId
    from mvc.workspace.models import Operand
    from mvc.workspace.tensors import ModelTensor


@dataclass(frozen=True, slots=True)
class ModelCheck:
    """The result of comparing two models.

    Attributes:
        old: what the old side is called.
        new: what the new side is called.
        old_commit: the commit of the old side, if it is in one.
        new_commit: that of the new side.
        tolerance: how far elements may be apart; None asks for equal bits.
        tensors_total: tensors of both sides, a pair counted once.
        size_bytes: bytes of those of the new side.
        tensors: those that are not the same to the bit, in the order of the new side.
    """

    old: str
    new: str
    old_commit: GitId | None
    new_commit: GitId | None
    tolerance: Tolerance | None
    tensors_total: int
    size_bytes: int
    tensors: tuple[TensorCheck, ...]

    @property
    def failed(self) -> list[TensorCheck]:
        """The tensors that fail."""
        return [tensor for tensor in self.tensors if not tensor.is_within]

    @property
    def passed(self) -> bool:
        """Whether all tensors are the same, or within the tolerance."""
        return not self.failed


def verify_models(
    context: Context | None,
    old: Operand,
    new: Operand = None,
    *,
    atol: float | None = None,
    rtol: float | None = None,
) -> ModelCheck:
    """Compare two models tensor by tensor: to the bit, or within a tolerance.

    Tensors whose ids are equal are not read. NaN equals NaN, an infinity itself.

    Args:
        old: a revision, ``REV:PATH``, a checkpoint file, a folder of them, a state dict (nested, of
            arrays or tensors), or None for the worktree.
        new: the same.
        atol: how far apart elements may be; with it, or ``rtol``, dtypes may differ too.
        rtol: how far apart they may be, as a multiple of the old one.

    Raises:
        ConflictError: a file changed while it was read.
    """
    tolerance = _check_tolerance(atol, rtol)
    with ExitStack() as stack:
        models = [stack.enter_context(open_model(context, operand)) for operand in (old, new)]
        sides = [
            replace(model, tensors=tuple(map(_without_trust, model.tensors))) for model in models
        ]
        for side in sides:
            if not side.tensors:
                raise NotFoundError(f"{side.label} holds no tensor")
        pairs = pair_models(sides[0], sides[1])
        # Of a tensor without an id the bytes are read and hashed.
        unnamed = (one for pair in pairs for one in pair.sides if one.chunks is None)
        announce(sum(one.size_bytes for one in unnamed))
        threads = threads_of(context)
        checks = check_pairs(pairs, tolerance=tolerance, threads=threads)
        _check_unchanged(tensor for side in sides for tensor in side.tensors)
    return ModelCheck(
        sides[0].label,
        sides[1].label,
        sides[0].commit,
        sides[1].commit,
        tolerance,
        len(pairs),
        sum(tensor.size_bytes for tensor in sides[1].tensors),
        tuple(checks),
    )


def _check_tolerance(atol: float | None, rtol: float | None) -> Tolerance | None:
    if atol is None and rtol is None:
        return None
    for name, value in (("atol", atol), ("rtol", rtol)):
        if value is not None and not 0 <= value < float("inf"):
            raise UsageError(f"{name} {value} is not a tolerance", hint="such as 1e-5")
    return Tolerance(atol or 0.0, rtol or 0.0)


def _without_trust(tensor: ModelTensor) -> ModelTensor:
    """Return a tensor of a file as if the index did not know its chunks."""
    if not isinstance(tensor.source, FileSource):
        return tensor
    return replace(tensor, chunks=None, chunk_bytes=0)


def _check_unchanged(tensors: Iterable[ModelTensor]) -> None:
    """Check that no file changed while it was read."""
    for source in {id(tensor.source): tensor.source for tensor in tensors}.values():
        if isinstance(source, FileSource) and stat_descriptor(source.descriptor) != source.stat:
            raise ConflictError(
                f"{source.path} changed while it was read",
                hint="verify it again once nothing writes to it",
            )
