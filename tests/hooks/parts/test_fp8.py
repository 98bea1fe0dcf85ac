"""Tensors of 8 bits and their histories of maxima come back to the bit, whatever the bits mean."""

from collections import deque
from types import SimpleNamespace

import pytest
import torch
from torch import nn

pytestmark = pytest.mark.torch
FP8 = [one for one in vars(torch).values() if str(one).startswith("torch.float8_")]


class Scaled(nn.Module):
    """A layer in fp8 as libraries build it: scales, and the last maxima to choose the next one by."""

    def __init__(self, dtype, fill):
        super().__init__()
        bits = torch.arange(256, dtype=torch.uint8) if fill else torch.zeros(256, dtype=torch.uint8)
        self.weight = nn.Parameter(bits.view(dtype).view(16, 16), requires_grad=False)
        self.master = nn.Parameter(torch.full((16, 16), float(fill)))
        self.register_buffer("cache", bits.flip(0).view(dtype))
        self.register_buffer("amax_history", torch.rand(8) if fill else torch.zeros(8))
        self.register_buffer("scale", torch.full((), 2.0**fill))


def _make(dtype, fill):
    model = Scaled(dtype, fill)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    if fill:  # moments in fp8, as 8-bit optimizers have them
        optimizer.state[model.master]["momentum_buffer"] = model.weight.detach().clone()
    maxima = {"forward": deque([torch.full((2,), 3.0 * fill)], 4), "cast": model.cache.clone()}
    return SimpleNamespace(
        model=model, parts={"model": model, "optimizer": optimizer, "maxima": maxima}
    )


def _bits(run):
    tensors = dict(run.model.state_dict())
    state = run.parts["optimizer"].state_dict()["state"]
    tensors |= {f"moment {key}": one["momentum_buffer"] for key, one in state.items()}
    tensors |= {"forward": run.parts["maxima"]["forward"][0], "cast": run.parts["maxima"]["cast"]}
    return {
        name: (one.dtype, one.reshape(-1).view(torch.uint8).tolist())
        for name, one in tensors.items()
    }


def test_all_kinds_are_known():
    assert len(FP8) >= 5


@pytest.mark.parametrize("dtype", FP8, ids=str)
def test_fp8_is_committed_and_comes_back(lab, dtype):
    from mvc_hooks.parts.make import make_parts
    from mvc_hooks.parts.restoring import restore_parts

    first, second = _make(dtype, 1), _make(dtype, 0)
    restore_parts(lab.commit(make_parts(first.parts)), make_parts(second.parts))
    assert _bits(second) == _bits(first)
