"""DTensors: which part of a tensor is here, and which on every other rank.

Both follow from mesh and placements, so no rank has to ask another one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from mvc.errors import UnsupportedError
from mvc.numbers.boxes import Box, whole_box
from mvc.states.files import Spread
from mvc.states.memory import Region
from mvc.states.refusals import format_path

if TYPE_CHECKING:
    from mvc.states.elements import ElementType


def is_sharded(tensor: object) -> bool:
    """Return whether a tensor is a DTensor: this process holds a part of it."""
    return hasattr(type(tensor), "__create_chunk_list__") and hasattr(tensor, "placements")


def get_local(tensor: Any) -> torch.Tensor:
    """Return the part of a DTensor that is here; nothing is copied or waited for without need."""
    local = tensor._local_tensor  # noqa: SLF001  to_local() costs a node of autograd each time
    return local if type(local) is torch.Tensor else tensor.detach().to_local()


def locate_shard(local: torch.Tensor, box: Box, element: ElementType) -> Region:
    """Return the place of a rank's part of a DTensor: the same for ties, and for nothing else.

    What is empty has no address, but a storage all the same. Parts that share memory in another
    way are different tensors as far as this rank can tell.
    """
    storage = local.untyped_storage()._cdata  # noqa: SLF001  the only name of a storage's identity
    part = (local.storage_offset(), *local.shape, *local.stride(), *box.offsets)
    address = local.data_ptr() or storage
    return Region(
        f"{part} of {storage}", address, (), (), f"torch {element.name}", element.size_bytes
    )


def find_spread(tensor: Any, steps: Sequence[object] = ()) -> Spread:
    """Return how a DTensor is spread over the ranks; no message is sent.

    UnsupportedError: a sum that is still to be reduced, or a part that is not one box.
    """
    if any(placement.is_partial() for placement in tensor.placements):
        raise UnsupportedError(
            f"{format_path(steps)} is a DTensor whose parts are still to be added up",
            hint="redistribute() it first",
        )
    shape = tuple(tensor.shape)
    found = _spread_over(tensor.device_mesh, tensor.placements, shape)
    mine = _own_box(tensor)
    if mine is None:
        raise UnsupportedError(
            f"{format_path(steps)} is a DTensor whose part on this rank is not one box",
            hint="shard it over one mesh dimension per tensor dimension",
        )
    if mine not in found.boxes:
        mine = Box((0,) * len(shape), tuple(get_local(tensor).shape)) if not mine.elements else mine
    return replace(found, mine=mine)


def _own_box(tensor: Any) -> Box | None:
    chunks = tensor.__create_chunk_list__()
    if len(chunks) != 1:
        local = tuple(get_local(tensor).shape)
        return None if math.prod(local) else Box((0,) * len(local), local)
    return Box(tuple(chunks[0].offsets), tuple(chunks[0].sizes))


@lru_cache(maxsize=1024)
def _spread_over(mesh: Any, placements: tuple[Any, ...], shape: tuple[int, ...]) -> Spread:
    """Return the boxes of all ranks of a mesh, or of the mesh that it was sliced from.

    There the tensor is the same along the other dimensions.
    """
    from torch.distributed.tensor._utils import (  # noqa: PLC0415  torch's own arithmetic, which it gives no public name
        _compute_local_shape_and_global_offset,
    )

    root = mesh._get_root_mesh() if hasattr(mesh, "_get_root_mesh") else mesh  # noqa: SLF001  as above
    names, above = mesh.mesh_dim_names, root.mesh_dim_names
    if names is None or above is None or not set(names) <= set(above):
        root, dims = mesh, list(range(mesh.ndim))
    else:
        dims = [above.index(name) for name in names]
    sizes = tuple(root.mesh.shape[dim] for dim in dims)
    ranks, boxes, known = [], [], dict[tuple[int, ...], Box]()
    for index, rank in np.ndenumerate(root.mesh.cpu().numpy()):
        place = tuple(int(index[dim]) for dim in dims)
        if place not in known:
            local, offset = _compute_local_shape_and_global_offset(
                shape, sizes, list(place), placements
            )
            known[place] = Box(tuple(map(int, offset)), tuple(map(int, local)))
        ranks.append(int(rank))
        boxes.append(known[place])
    return Spread(shape, tuple(ranks), tuple(boxes), whole_box(shape))
