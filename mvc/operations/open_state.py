"""open_state: the state of a commit, to be read value by value and box by box.

What is not asked for is not read: a box of a tensor costs the chunks that it meets.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from mvc.dtypes import TORCH_NAMES
from mvc.errors import CorruptionError, FormatError, NotFoundError, UsageError
from mvc.formats.manifest import StoredSegment
from mvc.numbers.boxes import Box, TensorPart, is_inside
from mvc.operations.load_state import fill_reads
from mvc.states.document import STATE_FILE, Document, Node, parse_document
from mvc.states.elements import get_torch_element
from mvc.states.factory import NumpyFactory
from mvc.states.outline import ArrayOutline, decode_outline
from mvc.states.reads import get_form, load_torch
from mvc.states.refusals import format_path
from mvc.states.state import find_node, read_node
from mvc.workspace.models import select_tensors
from mvc.workspace.released import check_content
from mvc.workspace.state_files import TensorSizes, read_state_text, read_state_tree
from mvc.workspace.tensors import ModelTensor, StoredPiece, read_runs, stored_tensors
from mvc.workspace.worktree import relative_paths

if TYPE_CHECKING:
    from mvc.history.values import TreeEntry
    from mvc.ids import GitId
    from mvc.workspace.context import Context
    from mvc.workspace.worktree import Paths

    Shape = tuple[int, ...]
    BoxRequest = tuple[Sequence[object], Sequence[int], Sequence[int], memoryview]


@dataclass(frozen=True, slots=True, eq=False)
class _Place:
    """A tensor that a file has in the order of its elements, and its shape there."""

    tensor: ModelTensor
    shape: Shape
    item_bytes: int


class StoredState(ABC):
    """The state of a commit; ``outline`` is it with an ``ArrayOutline`` in place of every array.

    A path is the keys and indexes that lead to a value. Not shared between threads.
    """

    outline: dict[Any, Any]

    def __init__(self, context: Context) -> None:
        """Read from a repository."""
        self._context = context

    @abstractmethod
    def load(self, path: Sequence[object], framework: str = "torch") -> Any:
        """Return one value, be it an array, a scalar, or a container with all that is in it.

        Raises:
            NotFoundError: there is nothing at that path.
        """

    @abstractmethod
    def _find(self, path: Sequence[object]) -> _Place | None:
        """Return where a tensor is; None if no file has it in the order of its elements."""

    @abstractmethod
    def _check(self, paths: Iterable[str]) -> None:
        """Raise ReleasedError if content of files was released."""

    def read_boxes(self, boxes: Iterable[BoxRequest]) -> None:
        """Fill buffers with boxes of tensors, chunks in parallel, each read once and verified.

        Args:
            boxes: path of a tensor, offsets and sizes of a box of it, and a buffer for the box's
                elements in C order.

        Raises:
            NotFoundError: there is no tensor at a path.
            UsageError: a box that is not inside of its tensor, or a buffer of another size.
        """
        runs: list[tuple[StoredPiece, TensorPart, memoryview]] = []
        for path, offsets, sizes, target in boxes:
            box, place = Box(tuple(offsets), tuple(sizes)), self._find(path)
            if place is None:
                self._cut(path, box, target)
                continue
            part = TensorPart(place.shape, box, place.item_bytes)
            _check_box(path, part, target)
            tensor = place.tensor
            stored = StoredSegment(tensor.segment, tensor.chunks or ())
            runs += [
                (StoredPiece(tensor.path, stored, run), part, target)
                for run in part.cut(tensor.chunk_bytes)
            ]
        self._read(runs)

    def _read(self, runs: list[tuple[StoredPiece, TensorPart, memoryview]]) -> None:
        def take(index: int, chunk: memoryview) -> None:
            planned, part, target = runs[index]
            start = planned.run.part_offset
            part.take(planned.run, chunk, target[start : start + planned.run.part_bytes])

        try:
            read_runs(self._context, [run for run, _, _ in runs], take)
        except CorruptionError:  # damaged, or released?
            self._check({run.path for run, _, _ in runs})
            raise

    def _cut(self, path: Sequence[object], box: Box, target: memoryview) -> None:
        """Fill a buffer with a box of a tensor that no file has in the order of its elements."""
        value = np.asarray(self.load(path, framework="numpy"))
        _check_box(path, TensorPart(value.shape, box, value.itemsize), target)
        ends = zip(box.offsets, box.sizes, strict=True)
        part = np.ascontiguousarray(value[tuple(slice(at, at + size) for at, size in ends)])
        target[:] = part.reshape(-1).view(np.uint8).data


def _check_box(path: Sequence[object], part: TensorPart, target: memoryview) -> None:
    if not is_inside(part.shape, part.box):
        raise UsageError(f"{format_path(path)} of shape {list(part.shape)} has no box {part.box}")
    if len(target) != part.size_bytes:
        raise UsageError(
            f"the box of {format_path(path)} has {part.size_bytes:,} bytes, its buffer {len(target):,}"
        )


class _TrainingState(StoredState):
    """A commit with a ``state.json``."""

    def __init__(
        self, context: Context, commit: GitId, tree: Mapping[str, TreeEntry], document: Document
    ) -> None:
        super().__init__(context)
        self._commit, self._tree, self._document = commit, tree, document
        self.outline = decode_outline(document)
        self._tensors_of = cache(self._list_tensors)

    def load(self, path: Sequence[object], framework: str = "torch") -> Any:
        """Return one value."""
        load = NumpyFactory if framework == "numpy" else load_torch
        sizes = TensorSizes(self._context, self._tree)
        plan = read_node(self._document, find_node(self._document.state, path), sizes, load)
        try:
            fill_reads(self._context, self._tree, plan.reads)
        except CorruptionError:
            self._check({read.file for read in plan.reads})
            raise
        return plan.build()

    def _check(self, paths: Iterable[str]) -> None:
        files = [(path, self._tree[path].blob) for path in sorted(paths)]
        check_content(self._context, files, commit=self._commit)

    def _list_tensors(self, path: str) -> dict[str, ModelTensor]:
        blob = self._tree[path].blob
        manifest = self._context.manifests.read(blob)
        version = path, blob, self._commit
        return {tensor.name: tensor for tensor in stored_tensors(self._context, version, manifest)}

    def _find(self, path: Sequence[object]) -> _Place | None:
        node = _get_tensor(find_node(self._document.state, path), path)
        if "offset" in node:  # a view of others' memory
            return None
        element, shape = get_form(node)
        tensor = None
        if node["in"] in self._tree:
            tensor = self._tensors_of(node["in"]).get(node["name"])
        if tensor is None or tensor.segment.size_bytes != tensor.size_bytes:
            raise FormatError(f"there is no tensor {node['name'][:80]!r} in {node['in'][:80]!r}")
        whole = TensorPart(shape, Box((0,) * len(shape), shape), element.size_bytes)
        if whole.size_bytes != tensor.size_bytes:
            raise FormatError(f"{format_path(path)} is not as large as its tensor")
        return _Place(tensor, shape, element.size_bytes)


def _get_tensor(node: object, path: Sequence[object]) -> Node:
    if not isinstance(node, dict) or node.get("$") not in ("tensor", "ndarray"):
        raise NotFoundError(f"{format_path(path)} is no tensor")
    return node


class _Checkpoints(StoredState):
    """A commit of checkpoint files: its tensors, by name."""

    def __init__(self, context: Context, revision: str, paths: Sequence[str]) -> None:
        super().__init__(context)
        selected = select_tensors(context, revision, paths, None, "mvc checkout {}")
        self._tensors = {tensor.name: tensor for tensor in selected}
        names = ((tensor, TORCH_NAMES.get(tensor.view.dtype)) for tensor in selected)
        self.outline = {
            tensor.name: ArrayOutline("tensor", name, tensor.view.shape)
            for tensor, name in names
            if name
        }

    def _get(self, path: Sequence[object]) -> ModelTensor:
        tensor = self._tensors.get(str(path[0])) if len(path) == 1 else None
        if tensor is None:
            raise NotFoundError(f"there is no tensor {format_path(path)}")
        return tensor

    def load(self, path: Sequence[object], framework: str = "torch") -> Any:
        """Return one tensor."""
        return self._get(path).read(framework)

    def _check(self, paths: Iterable[str]) -> None:
        """Do nothing: that was checked when they were selected."""

    def _find(self, path: Sequence[object]) -> _Place | None:
        tensor = self._get(path)
        name = TORCH_NAMES.get(tensor.view.dtype)
        is_plain = tensor.view.strides is None and tensor.segment.size_bytes == tensor.size_bytes
        if name is None or not is_plain or tensor.chunks is None:  # several shards, for one
            return None
        return _Place(tensor, tensor.view.shape, get_torch_element(name).size_bytes)


def open_state(
    context: Context, revision: str = "HEAD", *, folder: str | None = None, paths: Paths = ()
) -> StoredState:
    """Return the state of a commit to be read in parts; of a commit of files, their tensors.

    Args:
        revision: which commit.
        folder: as for ``outline_state``.
        paths: only the tensors of these files, folders or wildcards, by their names.

    Raises:
        ConflictError: two files hold a tensor of the same name: say which with ``paths``.
    """
    chosen = relative_paths(context, paths)
    commit = context.history.resolve(revision)
    tree = read_state_tree(context, commit, folder)
    if folder is None and (chosen or STATE_FILE not in tree):
        return _Checkpoints(context, revision, chosen)
    document = parse_document(read_state_text(context, commit, revision, folder))
    return _TrainingState(context, commit, tree, document)
