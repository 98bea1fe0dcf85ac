"""What becomes of every tensor of a checkpoint, or of a model in several files: decided from manifests."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from blake3 import blake3

from mvc.errors import UnsupportedError, UsageError
from mvc.merging.rules import SIDES
from mvc.merging.table import MergeRow, Outcome, merge_names
from mvc.workspace.models import read_tree_model
from mvc.workspace.tensors import ModelTensor

if TYPE_CHECKING:
    from mvc.formats.layout import Segment
    from mvc.history.values import TreeEntry
    from mvc.workspace.context import Context

Tensors: TypeAlias = Mapping[str, ModelTensor]
Resolve: TypeAlias = Callable[[str, str, MergeRow[ModelTensor]], ModelTensor]
"""(strategy, path, row) → the tensor that a method makes of a conflict; it is not read yet."""
Fit: TypeAlias = Callable[[str, MergeRow[ModelTensor]], MergeRow[ModelTensor]]
"""(path, row) → the row with its versions made to fit each other."""
_READ_BYTES = 2**22
_BY_METHOD = (Outcome.MODIFY_MODIFY, Outcome.ADD_ADD)


@dataclass(slots=True)
class DecidedTensors:
    """The planned merge of one file's tensors."""

    # those that it has then, ours where there is a conflict
    result: dict[str, ModelTensor] = field(default_factory=dict)
    # (tensor, what happened) of those that nothing decides
    conflicts: list[tuple[str, str]] = field(default_factory=list)
    taken: Counter[str] = field(default_factory=Counter)  # how many came from where


def decide_tensors(
    tensors: Sequence[Tensors],
    places: Mapping[str, str],
    find_strategy: Callable[[str, str], str | None],
    resolve: Resolve,
    fit: Fit | None = None,
) -> dict[str, DecidedTensors]:
    """Decide about all tensors of a base and its sides; return path of the result → its tensors.

    ``places`` says in which file the result has each name, ``find_strategy`` takes that and the name.
    """
    found = {path: DecidedTensors() for path in places.values()}
    cuts = {tensor.chunk_bytes for one in tensors for tensor in one.values()}
    version = _version if len(cuts) <= 1 else _version_by_bytes
    for row in merge_names(tensors[0], tensors[1:], version, lambda one: one.elements > 1):
        path = places[row.name]
        of_file = found[path]
        fitted = row if fit is None else fit(path, row)
        source, tensor = _decide(path, fitted, partial(find_strategy, path), resolve)
        if source == "conflict":
            of_file.conflicts.append((row.name, row.reason + _describe(row)))
        of_file.taken[source] += 1
        if tensor is not None:
            of_file.result[row.name] = tensor
    return found


def read_tensors(context: Context, tree: Mapping[str, TreeEntry]) -> dict[str, ModelTensor]:
    """Return name → tensor; segments of several tensors go by the first."""
    found: dict[int, ModelTensor] = {}
    for tensor in read_tree_model(context, tree, "").tensors:
        found.setdefault(id(tensor.segment), tensor)
    return {one.name: one for one in found.values()}


def _version(tensor: ModelTensor) -> Hashable:
    return find_shape(tensor.segment), tensor.chunks


def find_shape(segment: Segment) -> Hashable:
    """Return the requirements of a place in a file on the tensor stored there."""
    views = tuple(replace(view, name="") for view in segment.tensors)
    return segment.dtype, views, segment.size_bytes


def _version_by_bytes(tensor: ModelTensor) -> Hashable:
    """Return a key that is equal for equal bytes, however they are cut: the hash of all bytes."""
    read, digest = tensor.source.read_into, blake3()
    for start in range(0, tensor.segment.size_bytes, _READ_BYTES):
        piece = bytearray(min(_READ_BYTES, tensor.segment.size_bytes - start))
        read(tensor.start + start, memoryview(piece))
        digest.update(piece)
    return find_shape(tensor.segment), digest.digest()


def _describe(row: MergeRow[ModelTensor]) -> str:
    """Describe how the dtypes or shapes in a conflict differ, if they do."""
    kinds = dict.fromkeys(
        f"{side.view.dtype}[{','.join(map(str, side.view.shape))}]" for side in row.sides if side
    )
    return f" ({' and '.join(kinds)})" if len(kinds) > 1 else ""


def _decide(
    path: str,
    row: MergeRow[ModelTensor],
    find_strategy: Callable[[str], str | None],
    resolve: Resolve,
) -> tuple[str, ModelTensor | None]:
    """Return where the result of a row comes from, and the tensor."""
    if not row.outcome.is_conflict:
        side = row.decision.side or 0
        is_new = row.outcome in (Outcome.THEIRS, Outcome.REMOVE) and side > 0
        word = "theirs" if is_new else "kept" if row.outcome is Outcome.KEEP else "ours"
        return word, row.result
    strategy = find_strategy(row.name)
    if strategy in SIDES:
        if strategy == "theirs" and len(row.sides) > 2:  # noqa: PLR2004  ours and theirs
            raise UsageError(
                f'"theirs" does not say which of {len(row.sides) - 1} branches to take '
                f"{row.name!r} from",
                hint="merge them one after another",
            )
        versions = {"ours": row.sides[0], "theirs": row.sides[-1], "base": row.base}
        return strategy, versions[strategy]
    if strategy is not None and row.outcome in _BY_METHOD and _is_whole(row):
        with contextlib.suppress(UnsupportedError):  # whole numbers have no mean
            first = next(side for side in row.sides if side is not None)
            return "merged", replace(resolve(strategy, path, row), segment=first.segment)
    return "conflict", row.sides[0]


def _is_whole(row: MergeRow[ModelTensor]) -> bool:
    """Return whether each version fills its segment in order; tied tensors may share it."""
    segments = [side.segment for side in (row.base, *row.sides) if side is not None]
    return all(replace(segment, tensors=segment.tensors[:1]).is_plain for segment in segments)
