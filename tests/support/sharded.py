"""Ranks of a sharded run, one after the other in one process: torch's fake group makes each of them."""

from __future__ import annotations

import contextlib

import torch
from torch import distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import debug, distribute_tensor
from torch.testing._internal.distributed.fake_pg import FakeStore

from mvc.training import CommitRequest, RunStore, layout_state, parse_stored_share


def become_rank(rank, shape=(2, 2, 2), names=("rep", "dp", "tp")):
    """Be a rank until ``leave``, or until another is; return the mesh of that shape."""
    leave()
    size = torch.Size(shape).numel()
    distributed.init_process_group("fake", store=FakeStore(), rank=rank, world_size=size)
    return init_device_mesh("cpu", shape, mesh_dim_names=names)


def leave():
    """Be no rank any more."""
    if distributed.is_initialized():
        distributed.destroy_process_group()
    debug._clear_sharding_prop_cache()  # the mesh of the next rank is equal to the last one's


@contextlib.contextmanager
def as_rank(rank, shape, names):
    """Be a rank; yields the mesh of that shape."""
    try:
        yield become_rank(rank, shape, names)
    finally:
        leave()


def shard_one(tensor, mesh, placements):
    """Return the DTensor that has this rank's part of a whole tensor."""
    return distribute_tensor(tensor, mesh, placements, src_data_rank=None)


def local(tensor):
    """Return the part of a tensor that is here."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def shard(value, mesh, placements):
    """Return nested tensors, those whose key has (dims, placements) as DTensors of this rank."""

    made = {}

    def convert(key, item):
        if isinstance(item, dict):
            return {name: convert(name, one) for name, one in item.items()}
        if not isinstance(item, torch.Tensor) or key not in placements:
            return made.get(id(item), item)  # ties stay ties
        dims, how = placements[key]
        made[id(item)] = shard_one(item, mesh[dims], how)
        return made[id(item)]

    return convert(None, value)


def freeze(state, rank, ranks, *, previous=None, **terms):
    """Return image, form and plan of a rank."""
    layout = layout_state(state, previous, rank=rank, ranks=ranks, **terms)
    image = memoryview(bytearray(layout.size_bytes))
    for part in layout.parts:
        part.copy_into(image)
    return image, layout.form, layout.plan


class SeenPeers:
    """The other ranks, in this process: their memory can be seen, or their parts are sent."""

    def __init__(self, shares, *, is_seen):
        self.shares, self.is_seen, self.sent_bytes = shares, is_seen, 0

    def find_image(self, rank):
        return self.shares[rank].image if self.is_seen else None

    def fetch_part(self, rank, array, chunk):
        part = bytes(self.shares[rank].read_part(array, chunk))
        self.sent_bytes += len(part)
        return part

    def fetch_checked(self, rank, array, chunk):
        part = bytes(self.shares[rank].read_checked(array, chunk))
        self.sent_bytes += len(part)
        return part


def commit_frozen(repos, frozen, *, is_seen=True, delta=None, **options):
    """Commit the frozen state of all ranks; return the result, and what each has stored."""
    shares = [RunStore(repo).open_share(*one[:2]) for repo, one in zip(repos, frozen, strict=True)]
    peers = SeenPeers(shares, is_seen=is_seen)
    with contextlib.ExitStack() as until:
        stored = [
            parse_stored_share(
                until.enter_context(RunStore(repo).store_share(share, peers, delta=delta)).encode()
            )
            for repo, share in zip(repos, shares, strict=True)
        ]
        return RunStore(repos[0]).commit_shares(shares[0], stored, CommitRequest(**options)), stored
