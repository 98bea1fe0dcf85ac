"""Random generators come back, and objects that draw do not move them."""

from __future__ import annotations

import pytest
import torch

from mvc import ConflictError
from mvc_hooks.parts.make import make_parts
from mvc_hooks.parts.restoring import capture_parts, restore_parts


def test_named_generators(lab):
    import random

    import numpy as np

    def make(seed):
        return {
            "torch_one": torch.Generator().manual_seed(seed),
            "pcg": np.random.default_rng(seed),
            "philox": np.random.Generator(np.random.Philox(seed)),
            "legacy": np.random.RandomState(seed),
            "python": random.Random(seed),
        }

    def draw(made):
        return [
            torch.rand(2, generator=made["torch_one"]).tolist(),
            made["pcg"].random(3).tolist(),
            made["philox"].normal(size=3).tolist(),
            made["legacy"].normal(size=3).tolist(),
            made["python"].gauss(0, 1),
        ]

    old, new = make(1), make(2)
    draw(old)
    source = lab.store(**old)
    restore_parts(source, make_parts(new))
    assert draw(new) == draw(old)
    with pytest.raises(ConflictError, match="kind PCG64"):
        restore_parts(source, make_parts({**new, "philox": np.random.default_rng(1)}))


def test_state_of_other_cuda_devices_is_refused(lab):
    parts = make_parts({})
    state = capture_parts(parts)
    state["rng"]["cuda"] = [torch.get_rng_state()] * 3
    lab.repo.commit_state(state, message="x")
    from mvc_hooks.parts.restoring import from_commit

    with pytest.raises(ConflictError, match=r"rng\.cuda is \d devices here, 3 devices"):
        restore_parts(from_commit(lab.repo, "HEAD"), parts)


class _Drawing:
    """Draws random numbers whenever it is asked for its state or gets it back."""

    def state_dict(self):
        torch.rand(1)
        return {}

    def load_state_dict(self, state):
        torch.rand(1)


def test_objects_that_draw_do_not_move_the_generators(lab):
    parts = make_parts({"drawing": _Drawing()})
    before = torch.get_rng_state()
    source = lab.commit(parts)
    assert torch.equal(torch.get_rng_state(), before)
    torch.rand(5)
    restore_parts(source, parts)
    assert torch.equal(torch.get_rng_state(), before)


pytestmark = pytest.mark.torch
