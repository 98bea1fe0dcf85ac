"""Where the parts of DTensors are, on every rank of a mesh; in one process, by torch's fake group."""

import math

import pytest

torch = pytest.importorskip("torch")
from torch import distributed  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.distributed.tensor import (  # noqa: E402
    DTensor,
    Partial,
    Replicate,
    Shard,
    debug,
    distribute_tensor,
)
from torch.testing._internal.distributed.fake_pg import FakeStore  # noqa: E402

from mvc import UnsupportedError  # noqa: E402
from mvc.states.state import encode_state  # noqa: E402
from mvc.states.torch_arrays import describe_tensor  # noqa: E402

pytestmark = pytest.mark.torch
WORLD = 8
CASES = [
    ("tp", [Shard(0)], (5, 3)),
    ("dp", [Shard(1)], (5, 3)),
    (("dp", "tp"), [Shard(0), Shard(1)], (5, 3)),
    (("dp", "tp"), [Shard(0), Shard(0)], (9, 3)),
    ("tp", [Shard(0)], (1,)),
    ("tp", [Replicate()], ()),
    (("rep", "tp"), [Replicate(), Shard(0)], (6,)),
    (("rep", "dp", "tp"), [Shard(1), Shard(0), Shard(1)], (3, 11)),
]


@pytest.fixture
def on_rank():
    """Make this process a rank of eight, on a mesh of 2 x 2 x 2."""

    def begin(rank):
        if distributed.is_initialized():
            distributed.destroy_process_group()
        debug._clear_sharding_prop_cache()  # the mesh of the next rank is equal to the last one's
        distributed.init_process_group("fake", store=FakeStore(), rank=rank, world_size=WORLD)
        return init_device_mesh("cpu", (2, 2, 2), mesh_dim_names=("rep", "dp", "tp"))

    yield begin
    if distributed.is_initialized():
        distributed.destroy_process_group()


@pytest.mark.parametrize(("dims", "placements", "shape"), CASES)
def test_every_rank_knows_all_boxes(on_rank, dims, placements, shape):
    whole = torch.arange(math.prod(shape), dtype=torch.float64).reshape(shape)
    seen, spreads = {}, set()
    for rank in range(WORLD):
        mesh = on_rank(rank)
        _, array = describe_tensor(
            distribute_tensor(whole, mesh[dims], placements, src_data_rank=None), ["x"]
        )
        spread = array.spread
        spreads.add((spread.shape, spread.ranks, spread.boxes))
        assert array.shape == shape
        if spread.mine.elements:
            assert spread.boxes[spread.ranks.index(rank)] == spread.mine
            cut = tuple(
                slice(o, o + n) for o, n in zip(spread.mine.offsets, spread.mine.sizes, strict=True)
            )
            data = bytearray(array.source.size_bytes)
            array.source.read_into(0, memoryview(data))
            assert bytes(data) == whole[cut].numpy().tobytes()
        else:
            assert array.source.size_bytes == 0
        seen[rank] = spread.mine
    assert len(spreads) == 1
    covered = torch.zeros(shape)
    for box in set(seen.values()):
        covered[tuple(slice(o, o + n) for o, n in zip(box.offsets, box.sizes, strict=True))] += 1
    assert covered.eq(1).all()


def test_ties_are_seen_on_ranks_that_hold_nothing(on_rank):
    mesh = on_rank(7)
    tensor = distribute_tensor(torch.ones(1, 4), mesh["dp", "tp"], [Shard(0), Shard(0)])
    other = distribute_tensor(torch.ones(1, 4), mesh["dp", "tp"], [Shard(0), Shard(0)])
    regions = [describe_tensor(one, [])[1].region for one in (tensor, tensor.detach(), other)]
    assert regions[0] == regions[1] != regions[2]


def test_sums_that_are_not_reduced_are_refused(on_rank):
    mesh = on_rank(0)
    partial = DTensor.from_local(torch.ones(2), mesh["tp"], [Partial()])
    with pytest.raises(UnsupportedError, match="still to be added up"):
        describe_tensor(partial, ["x"])


def test_one_process_alone_cannot_commit_a_part(on_rank):
    mesh = on_rank(0)
    with pytest.raises(UnsupportedError, match="'weight' is sharded"):
        encode_state({"weight": distribute_tensor(torch.ones(4), mesh["tp"], [Shard(0)])})
