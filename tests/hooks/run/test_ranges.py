"""What mvc does in a step is seen by torch's profiler, and costs nothing while none runs."""

import pytest
import torch
from torch import nn

from mvc_hooks import Checkpointer
from mvc_hooks.log import ranged

pytestmark = pytest.mark.torch


@ranged("mvc.sum")
def add(left, *, right=1):
    """Return the sum."""
    return left + right


def test_steps_and_what_is_in_them(tmp_path):
    with Checkpointer(tmp_path, model=nn.Linear(2, 1), every=2) as ckpt:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            for _ in range(2):
                ckpt.step(loss=1.0)
            ckpt.roll_back("last")
    counts = {
        event.key: event.count for event in profile.key_averages() if event.key.startswith("mvc.")
    }
    assert (counts["mvc.step"], counts["mvc.judge"], counts["mvc.rollback"]) == (2, 2, 1)
    assert {"mvc.freeze", "mvc.pump", "mvc.make_room"} <= counts.keys()


def test_no_range_without_a_profiler(monkeypatch):
    monkeypatch.setattr(torch.autograd.profiler, "record_function", None)
    assert add(2, right=3) == 5
    assert (add.__name__, add.__doc__) == ("add", "Return the sum.")
