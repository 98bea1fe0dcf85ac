"""The statistics that drift along history needs and that are not kept yet: computed, and kept."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from mvc.comparison.gather import gather
from mvc.comparison.pairs import TensorPair
from mvc.workspace.models import read_tree_model

if TYPE_CHECKING:
    from mvc.ids import GitId
    from mvc.operations.blame_walk import TensorVersion, Trail
    from mvc.workspace.context import Context
    from mvc.workspace.tensors import ModelTensor


def compute_missing(
    context: Context, line: Sequence[GitId], trails: Sequence[Trail], places: Sequence[int]
) -> None:
    """Compare the first version of each tensor with those at some places of a line."""
    models = _Models(context, line)
    for place in places:
        versions = [(trail.oldest, trail.at(place)) for trail in trails]
        sides = [
            (models.find(old, old.last), models.find(new, place))
            for old, new in versions
            if new is not None and new.content != old.content
        ]
        pairs = [TensorPair(*both) for both in sides if all(map(models.is_there, both))]
        # One commit after the other, so that what was done before Ctrl-C is kept.
        gather(context, pairs, threads=context.store.threads)


class _Models:
    """The tensors of commits, to be read; manifests are parsed once each."""

    def __init__(self, context: Context, line: Sequence[GitId]) -> None:
        self._context = context
        self._line = line
        self._tensors: dict[tuple[int, str], dict[str, ModelTensor]] = {}

    def is_there(self, tensor: ModelTensor) -> bool:
        """Return whether the store has a tensor: what was released is not compared."""
        return self._context.store.contains_all(tensor.chunks or ())

    def find(self, version: TensorVersion, place: int) -> ModelTensor:
        key = (place, version.path)
        if key not in self._tensors:
            commit = self._line[place]
            entry = self._context.history.read_tree(commit)[version.path]
            model = read_tree_model(self._context, {version.path: entry}, commit, commit)
            self._tensors[key] = {tensor.name: tensor for tensor in model.tensors}
        return self._tensors[key][version.name]
