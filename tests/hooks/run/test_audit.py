import logging
import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from mvc_hooks import Checkpointer


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 1)
        self.drop = nn.Dropout(0.1)

    def forward(self, x):
        return self.layer(self.drop(x))


class OwnGenerator(Net):
    def __init__(self):
        super().__init__()
        self.noise = torch.Generator()

    def forward(self, x):
        return super().forward(x + torch.randn(x.shape, generator=self.noise))


class Counting(Net):
    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return super().forward(x)


class Cursor(Dataset):
    def __init__(self):
        self.at = 0

    def __len__(self):
        return 64

    def __getitem__(self, index):
        self.at += 1
        return torch.full((4,), index / 64)


class Warm(torch.optim.SGD):
    warm_steps = 0

    def step(self, closure=None):
        self.warm_steps += 1
        return super().step(closure)


class Nested(Net):
    def __init__(self):
        super().__init__()
        self.history = {"seen": [0, 0]}
        self.rng = random.Random(1)

    def forward(self, x):
        self.history["seen"][1] += 1
        return super().forward(x + self.rng.random())


class KeepsItself(Counting):
    def get_extra_state(self):
        return {"calls": self.calls}

    def set_extra_state(self, state):
        self.calls = state["calls"]


class Caching(Net):
    def forward(self, x):
        self.last = super().forward(x)
        return self.last


def run(folder, steps=4, *, model=None, optimizer=torch.optim.SGD, dataset=None, **parts):
    torch.manual_seed(0)
    model = model or Net()
    optimizer = optimizer(model.parameters(), lr=0.1)
    data = dataset or [torch.full((4,), index / 64) for index in range(64)]
    loader = DataLoader(data, batch_size=4, shuffle=True)
    parts = {"model": model, "optimizer": optimizer, "dataloader": loader, **parts}
    with Checkpointer(folder, **parts, every=None) as ckpt:
        for _ in ckpt.steps(steps):
            loss = model(ckpt.next_batch()).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            ckpt.step(loss=loss)
        return ckpt.audit()


@pytest.mark.parametrize(
    ("options", "place", "what"),
    [
        ({"model": OwnGenerator}, "model.noise", "a torch._C.Generator of its own"),
        ({"model": Counting}, "model.calls", "int, changes between steps"),
        ({"optimizer": Warm}, "optimizer.warm_steps", "int, changes between steps"),
        ({"dataset": Cursor}, "dataloader.dataset.at", "int, changes between steps"),
        ({"model": lambda: nn.Sequential(Counting())}, "model.0.calls", "int, changes"),
    ],
    ids=["generator", "attribute", "optimizer", "dataset", "inner module"],
)
def test_state_that_no_part_covers_is_found_and_said_once(tmp_path, caplog, options, place, what):
    if "optimizer" not in options:
        options = {name: make() for name, make in options.items()}
    with caplog.at_level(logging.WARNING, "mvc_hooks"):
        audit = run(tmp_path, **options)
    (found,) = audit.missing
    assert found[0] == place
    assert what in found[1]
    assert f"not captured: {place}" in str(audit)
    said = [one.getMessage() for one in caplog.records if "in no commit" in one.getMessage()]
    assert len(said) == 1
    assert place in said[0]


def test_values_inside_containers_and_generators_of_python(tmp_path):
    missing = dict(run(tmp_path, model=Nested()).missing)
    assert set(missing) == {"model.history", "model.rng"}


@pytest.mark.parametrize("model", [Net, KeepsItself, Caching])
def test_an_ordinary_run_misses_nothing(tmp_path, caplog, model):
    with caplog.at_level(logging.WARNING, "mvc_hooks"):
        assert run(tmp_path, model=model(), steps=12).missing == ()
    assert not any("in no commit" in one.getMessage() for one in caplog.records)


def test_a_generator_that_is_a_part_is_covered(tmp_path):
    model = OwnGenerator()
    audit = run(tmp_path, model=model, noise=model.noise)
    assert audit.missing == ()
    assert "noise" in audit.generators


def test_what_is_captured(tmp_path, caplog):
    with caplog.at_level(logging.INFO, "mvc_hooks"):
        audit = run(tmp_path, optimizer=torch.optim.AdamW, numpy_rng=np.random.default_rng(3))
    sizes = {one.name: (one.tensors, one.size_bytes) for one in audit.parts}
    assert sizes["model"] == (2, 20)
    assert sizes["optimizer"][0] == 6  # two moments and a step for each parameter
    assert {"python", "numpy", "torch", "numpy_rng"} <= set(audit.generators)
    assert audit.loaders == (("dataloader", "drawn again"),)
    said = [
        one.getMessage() for one in caplog.records if one.getMessage().startswith("commits hold")
    ]
    assert len(said) == 1
    assert "model (2 tensors)" in said[0]


def test_looking_changes_nothing(tmp_path):
    def final(folder, look):
        torch.manual_seed(0)
        model = OwnGenerator()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with Checkpointer(folder, model=model, optimizer=optimizer, every=None) as ckpt:
            for _ in ckpt.steps(5):
                loss = model(torch.randn(2, 4)).sum()
                loss.backward()
                optimizer.step()
                ckpt.step(loss=loss)
                if look:
                    ckpt.audit()
        return model.layer.weight

    assert torch.equal(final(tmp_path / "a", look=True), final(tmp_path / "b", look=False))
