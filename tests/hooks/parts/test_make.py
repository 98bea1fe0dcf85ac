"""The part that fits an object; what has no state is refused."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from mvc import UnsupportedError, UsageError
from mvc_hooks.parts.make import make_parts


def test_objects_without_a_state_are_refused():
    with pytest.raises(UsageError, match=r"tool is a .*Thread"):
        import threading

        make_parts({"tool": threading.Thread()})
    with pytest.raises(UsageError, match="gradients"):
        make_parts({"gradients": 1})
    assert set(make_parts({"scaler": None})) == {"scaler", "rng"}


pytestmark = pytest.mark.torch


def _shard_by_wrapper(model):
    from torch.distributed.fsdp import FullyShardedDataParallel

    return FullyShardedDataParallel(model, device_id=torch.device("cpu"))


def _shard_optimizer(model):
    from torch.distributed.optim import ZeroRedundancyOptimizer

    return ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.1)


SHARDERS = {
    "FSDP1": (_shard_by_wrapper, "fully_shard"),
    "ZeRO": (_shard_optimizer, "optimizer_class"),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("group")
@pytest.mark.parametrize("kind", SHARDERS)
def test_what_is_sharded_is_refused_by_name_with_what_to_do(kind):
    shard, instead = SHARDERS[kind]
    with pytest.raises(UnsupportedError, match=f"part is sharded by {kind[:4]}") as caught:
        make_parts({"part": shard(nn.Sequential(nn.Linear(2, 2)))})
    assert instead in caught.value.hint
    assert "commit_state" in caught.value.hint
