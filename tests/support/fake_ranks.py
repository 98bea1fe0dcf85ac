"""A process that is one rank of many to torch, after another: for where parts of DTensors are, not for messages."""

from __future__ import annotations

from torch import distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import debug, distribute_tensor
from torch.testing._internal.distributed.fake_pg import FakeStore

DIMS = ("rep", "dp", "tp")


def become_rank(rank, sizes=(2, 2, 2)):
    """Be a rank of a mesh of three dimensions; return the mesh."""
    leave()
    debug._clear_sharding_prop_cache()  # the mesh of the next rank is equal to the last one's
    size = sizes[0] * sizes[1] * sizes[2]
    distributed.init_process_group("fake", store=FakeStore(), rank=rank, world_size=size)
    return init_device_mesh("cpu", sizes, mesh_dim_names=DIMS)


def leave():
    if distributed.is_initialized():
        distributed.destroy_process_group()


def shard(tensor, mesh, placements):
    """Return the DTensor that has this rank's part of a whole tensor."""
    return distribute_tensor(tensor, mesh, placements, src_data_rank=None)


def local(tensor):
    """Return the part that is here."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor
