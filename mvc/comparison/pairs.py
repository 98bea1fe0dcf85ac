"""Pairs the tensors of two models: by path and name, by name, or by identity."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Hashable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from mvc.checkpoints.dcp.metadata import name_box
from mvc.dtypes import count_elements, get_dtype
from mvc.errors import FormatError, UnsupportedError
from mvc.formats.manifest import DEFAULT_CHUNK_BYTES, cut_sizes
from mvc.ids import TensorId, hash_chunk, hash_tensor
from mvc.workspace.dcp_folders import iterate_boxes, join_shards
from mvc.workspace.recorded import pair_renames

if TYPE_CHECKING:
    from mvc.numbers.spectral import Spectrum
    from mvc.numbers.statistics import TensorStatistics
    from mvc.workspace.models import Model
    from mvc.workspace.tensors import ModelTensor


@dataclass(frozen=True, slots=True, eq=False)
class TensorPair:
    """One tensor on both sides; None where that side has none."""

    old: ModelTensor | None
    new: ModelTensor | None

    @property
    def shown(self) -> ModelTensor:
        """The new side, or the old one if it was removed."""
        shown = self.new or self.old
        assert shown is not None
        return shown

    @property
    def sides(self) -> list[ModelTensor]:
        """The sides that have it."""
        return [side for side in (self.old, self.new) if side is not None]

    @property
    def is_renamed(self) -> bool:
        """Whether both sides have it, under different names."""
        return self.old is not None and self.new is not None and self.old.name != self.new.name

    @property
    def is_same(self) -> bool:
        """Whether both ids are known and equal: then every bit is, and nothing need be read."""
        if self.old is None or self.new is None:
            return False
        return self.old.id is not None and self.old.id == self.new.id


_WRAPPERS = re.compile(r"\A((module|_orig_mod|(model_)?state_dict|model|net|network)\.)+")
"""What saving or wrapping a model puts before its names: DDP, torch.compile, Lightning, checkpoints."""
_KEYS: tuple[Callable[[ModelTensor], Hashable], ...] = (
    lambda tensor: (tensor.path, tensor.name),
    lambda tensor: (tensor.path.rpartition("/")[0], tensor.name),
    lambda tensor: tensor.name,
    lambda tensor: _WRAPPERS.sub("", tensor.name, count=1),
)


def pair_models(old: Model, new: Model) -> list[TensorPair]:
    """Return all tensors of two models in the order of the new one, removed ones at the end.

    A name may have gained or lost a prefix such as ``model.`` or ``module.``. A tensor that has no
    partner of its name is looked for by its bytes; only such tensors of files without known chunks
    are read for that, and only where dtype and shape have a match. One that only a live model has,
    as another name of a tensor that both have, is left out: files hold tied tensors once.
    Tensors that a DCP folder has in other shards than the other side are whole.
    """
    old, new = _join_unlike(old, new), _join_unlike(new, old)
    partners: dict[int, int] = {}  # place in ``new`` → place in ``old``
    for key_of in _KEYS:
        alone, came = _left(old.tensors, new.tensors, partners)
        partners |= pair_renames(
            {place: key_of(old.tensors[place]) for place in alone},
            ((place, key_of(new.tensors[place])) for place in came),
        )
    partners |= _match_bytes(old.tensors, new.tensors, partners)
    pairs = [
        TensorPair(old.tensors[partners[place]] if place in partners else None, tensor)
        for place, tensor in enumerate(new.tensors)
        if place in partners or not _is_tied(new, tensor, partners)
    ]
    taken = set(partners.values())
    left = (tensor for place, tensor in enumerate(old.tensors) if place not in taken)
    gone = (tensor for tensor in left if not _is_tied(old, tensor, taken))
    return [*pairs, *(TensorPair(tensor, None) for tensor in gone)]


def _join_unlike(model: Model, other: Model) -> Model:
    """Return a model with whole tensors in place of shards that the other one does not have.

    Shards stay where the other side has only some of them.
    """
    if not model.folders:
        return model
    there = {tensor.name for tensor in other.tensors}
    wholes = there.union(*(folder.metadata.entries for folder in other.folders))
    tensors = list(model.tensors)
    for folder in model.folders:
        boxes = [
            (folder.file(item.file), name_box(item.key, tensor.shape, box), item.key)
            for item, box, tensor in iterate_boxes(folder.metadata)
        ]
        keys = {key for _, name, key in boxes if name not in there}
        keys -= {key for _, name, key in boxes if name in there and key not in wholes}
        replaced = {(path, name) for path, name, key in boxes if key in keys}
        with suppress(
            FormatError, UnsupportedError
        ):  # shards that make no whole are compared as they are
            joined = join_shards(folder, tensors, keys)
            tensors = [tensor for tensor in tensors if (tensor.path, tensor.name) not in replaced]
            tensors += joined.values()
    return replace(model, tensors=tuple(tensors))


def _is_tied(model: Model, tensor: ModelTensor, matched: Collection[int]) -> bool:
    """Return whether a tensor of a live model shares its memory with one that is matched."""
    names = {name for tie in model.ties if (tensor.path, tensor.name) in tie for name in tie}
    others = (model.tensors[place] for place in matched if names)
    return any((other.path, other.name) in names for other in others)


def _left(
    old: Sequence[ModelTensor], new: Sequence[ModelTensor], partners: dict[int, int]
) -> tuple[list[int], list[int]]:
    taken = set(partners.values())
    gone = [place for place in range(len(old)) if place not in taken]
    return gone, [place for place in range(len(new)) if place not in partners]


def _match_bytes(
    old: Sequence[ModelTensor], new: Sequence[ModelTensor], partners: dict[int, int]
) -> dict[int, int]:
    gone, came = _left(old, new, partners)
    kinds = {_kind(old[place]) for place in gone} & {_kind(new[place]) for place in came}
    gone, came = (
        [place for place in places if _kind(side[place]) in kinds]
        for side, places in ((old, gone), (new, came))
    )
    moved = [*(old[place] for place in gone), *(new[place] for place in came)]
    cuts = (tensor.chunk_bytes for tensor in moved if tensor.chunks)
    chunk_bytes = next(cuts, DEFAULT_CHUNK_BYTES)
    return pair_renames(
        {place: identify(old[place], chunk_bytes) for place in gone},
        ((place, identify(new[place], chunk_bytes)) for place in came),
    )


def _kind(tensor: ModelTensor) -> tuple[str, tuple[int, ...]]:
    return tensor.view.dtype, tensor.view.shape


def identify(tensor: ModelTensor, chunk_bytes: int) -> TensorId:
    """Return the id of a tensor, reading it if its chunks are not known."""
    if tensor.id is not None:
        return tensor.id
    read, position, chunks = tensor.open(), 0, []
    for size in cut_sizes(tensor.size_bytes, chunk_bytes):
        chunks.append(hash_chunk(read(position, size).data))
        position += size
    return hash_tensor(tensor.view.dtype, tensor.view.shape, chunks)


STATUSES = ("unchanged", "modified", "renamed", "added", "removed")


@dataclass(frozen=True, slots=True, eq=False)
class TensorChange:
    """One tensor of two models, compared.

    Attributes:
        pair: the tensor on both sides; readable as long as the models are open.
        status: one of ``STATUSES``. A renamed one has the same bytes; whatever differs in bytes,
            dtype or shape is modified.
        statistics: of the elements that both sides have; None where none were compared: one side
            has no such tensor, nothing differs, or shapes do not fit.
    """

    pair: TensorPair
    status: str
    statistics: TensorStatistics | None = None
    key: bytes | None = None
    spectrum: Spectrum | None = None

    @property
    def name(self) -> str:
        """Its name in the new model, or in the old one if it was removed."""
        return self.pair.shown.name

    @property
    def compared_shape(self) -> tuple[int, ...] | None:
        """Shape of what was compared; None if nothing was."""
        return None if self.statistics is None else find_common_shape(self.pair)


def find_common_shape(pair: TensorPair) -> tuple[int, ...] | None:
    """Return the shape that both sides have: of all, or of the rows that both begin with.

    None if a side has no such tensor, if more than the first dimension differs, or if the common
    part ends within a block of a packed type.
    """
    if pair.old is None or pair.new is None:
        return None
    old, new = pair.old.view.shape, pair.new.view.shape
    if len(old) != len(new) or old[1:] != new[1:]:
        return None
    shape = (min(old[0], new[0]), *old[1:]) if old else ()
    blocks = (get_dtype(side.view.dtype).block_elements for side in (pair.old, pair.new))
    return None if any(count_elements(shape) % block for block in blocks) else shape


def unravel(index: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the place of a flat index (in C order) in a shape."""
    place = []
    for dim in reversed(shape):
        index, rest = divmod(index, dim)
        place.append(rest)
    return tuple(reversed(place))
