"""The memory of PowerSGD comes back, and its process group stays."""

import pytest
import torch
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState

from mvc import ConflictError
from mvc_hooks.parts.make import make_parts
from mvc_hooks.parts.restoring import restore_parts

pytestmark = pytest.mark.torch


def test_power_sgd_keeps_its_process_group(lab):
    old, new = (PowerSGDState(None, 2, start_powerSGD_iter=3) for _ in range(2))
    old.error_dict[0] = torch.rand(4)
    old.p_memory_dict[0] = torch.rand(2, 3)
    old.iter = 5
    old.rng.rand(3)
    source = lab.commit(make_parts({"power": old}))
    group = object()
    new.process_group = group
    with pytest.raises(ConflictError, match="power is of buckets") as caught:
        restore_parts(source, make_parts({"power": new}))
    assert "warm_up" in caught.value.hint
    assert new.error_dict == {}
    new.iter = 1  # it ran once in this process
    restore_parts(source, make_parts({"power": new}))
    assert new.process_group is group
    assert (new.iter, torch.equal(new.error_dict[0], old.error_dict[0])) == (5, True)
    assert new.rng.randint(1_000_000) == old.rng.randint(1_000_000)
