import copy
import logging
import random
import types
import weakref

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torchdata.stateful_dataloader import StatefulDataLoader

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


class Jitter:
    def __init__(self):
        self.options = {"rng": np.random.default_rng(1), "idle": random.Random(1)}

    def __call__(self, x):
        return x + self.options["rng"].random()


class Nested(Net):
    def __init__(self):
        super().__init__()
        self.history = {"seen": [0, 0]}
        self.rng = random.Random(1)
        self.jitter = Jitter()

    def forward(self, x):
        self.history["seen"][1] += 1
        return super().forward(self.jitter(x) + self.rng.random())


class KeepsItself(Counting):
    def get_extra_state(self):
        return {"calls": self.calls}

    def set_extra_state(self, state):
        self.calls = state["calls"]


class Caching(Net):
    def forward(self, x):
        self.last = super().forward(x)
        return self.last


class Average:
    """Its state is a copy of what it has, under no name of an attribute."""

    def __init__(self, model):
        self.shadow = {name: one.clone() for name, one in model.state_dict().items()}

    def update(self, model):
        for name, one in model.state_dict().items():
            self.shadow[name].lerp_(one, 0.1)

    def state_dict(self):
        return {name: one.clone() for name, one in self.shadow.items()}

    def load_state_dict(self, state):
        self.shadow = state


class CountedAverage(Average):
    updates = 0

    def update(self, model):
        self.updates += 1
        super().update(model)

    def state_dict(self):
        return {"n": self.updates, "average": super().state_dict()}

    def load_state_dict(self, state):
        self.updates, self.shadow = state["n"], state["average"]


class Rate(torch.optim.lr_scheduler.LRScheduler):
    def get_lr(self):
        return [0.1 / (1 + self.last_epoch) for _ in self.base_lrs]


class Plain:
    """An optimizer that is none of torch's."""

    def __init__(self, params, lr):
        self.params, self.rate = list(params), lr

    def zero_grad(self):
        for one in self.params:
            one.grad = None

    def step(self):
        with torch.no_grad():
            for one in self.params:
                one.sub_(self.rate * one.grad)

    def state_dict(self):
        return {"rate": self.rate}

    def load_state_dict(self, state):
        self.rate = state["rate"]


class Passes:
    """A sampler with an epoch, and a generator that it makes when it is asked for its order."""

    def __init__(self):
        self._epoch = 0

    def set_epoch(self, epoch):
        self._epoch = epoch

    def __len__(self):
        return 64

    def __iter__(self):
        self.rng = random.Random(self._epoch)
        return iter(self.rng.sample(range(64), 64))


class Unready(Passes):
    """Has no state before its first pass is over."""

    def state_dict(self):
        raise RuntimeError("not yet")

    def load_state_dict(self, state):
        pass


class Masked(Net):
    """Has a number of more digits than Python writes, and tensors of inference mode."""

    def __init__(self):
        super().__init__()
        self.mask = 1 << 30_000
        with torch.inference_mode():
            self.register_buffer("cache", torch.ones(2), persistent=False)
            self.large = torch.ones(50_000)


def run(
    folder,
    steps=4,
    *,
    model=None,
    optimizer=torch.optim.SGD,
    dataset=None,
    average=None,
    sampler=None,
    **parts,
):
    torch.manual_seed(0)
    model = model or Net()
    optimizer = optimizer(model.parameters(), lr=0.1)
    data = dataset or [torch.full((4,), index / 64) for index in range(64)]
    loader = DataLoader(data, batch_size=4, shuffle=sampler is None, sampler=sampler)
    average = average and average(model)
    rate = isinstance(optimizer, Warm) and Rate(optimizer)
    parts = {"average": average, "scheduler": rate or None, **parts}
    parts = {"model": model, "optimizer": optimizer, "dataloader": loader, **parts}
    with Checkpointer(folder, **parts, every=None) as ckpt:
        for _ in ckpt.steps(steps):
            loss = model(ckpt._run._data_parts[0].next_batch()).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            if rate:
                rate.step()
            if average:
                average.update(model)
            ckpt.step(loss=loss)
        return ckpt.audit()


_INT = "int, changes between steps"
_CASES = {
    "generator": (lambda: {"model": OwnGenerator()}, {"model.noise": "a torch._C.Generator of its own"}),
    "attribute": (lambda: {"model": Counting()}, {"model.calls": _INT}),
    "optimizer": (lambda: {"optimizer": Warm}, {"optimizer.warm_steps": _INT}),
    "dataset": (lambda: {"dataset": Cursor()}, {"dataloader.dataset.at": _INT}),
    "inner module": (lambda: {"model": nn.Sequential(Counting())}, {"model.0.calls": _INT}),
    "nested": (
        lambda: {"model": Nested()},
        {"model.history": "", "model.rng": "", "model.jitter.options.rng": ""},
    ),
    "ordinary": (lambda: {"steps": 12}, {}),
    "own state": (lambda: {"model": KeepsItself(), "steps": 12}, {}),
    "cache": (lambda: {"model": Caching(), "steps": 12}, {}),
    "masked": (lambda: {"model": Masked(), "steps": 12}, {}),
    "average": (lambda: {"average": Average}, {}),
    "counted average": (lambda: {"average": CountedAverage}, {}),
    "own optimizer": (lambda: {"optimizer": Plain}, {}),
    "sampler": (lambda: {"sampler": Passes(), "steps": 34}, {}),
    "no state yet": (lambda: {"sampler": Unready()}, {}),
}  # fmt: skip


@pytest.mark.parametrize("name", _CASES)
def test_state_that_no_part_covers_is_found_and_said_once(tmp_path, caplog, name):
    make, expected = _CASES[name]
    with caplog.at_level(logging.WARNING, "mvc_hooks"):
        audit = run(tmp_path, **make())
    missing = dict(audit.missing)
    assert missing.keys() == expected.keys()
    said = [line for line in caplog.messages if "in no commit" in line]
    assert bool(said) == bool(expected)
    for place, what in expected.items():
        assert what in missing[place]
        assert f"not captured: {place}" in str(audit)
        assert sum(place in line for line in said) == 1


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # torchdata still calls it
def test_a_look_begins_no_loader(tmp_path):
    class Own(StatefulDataLoader):
        pass

    loader = Own(Cursor(), 4)
    assert not any("held_out" in place for place, _ in run(tmp_path, held_out=loader).missing)
    assert loader._iterator is None


def test_a_look_does_not_go_through_data(tmp_path):
    class Long(list):
        def __iter__(self):
            for count, one in enumerate(super().__iter__()):
                assert count < 1000
                yield one

    class Labels(Cursor):
        def __init__(self):
            super().__init__()
            self.labels = Long(range(5000))
            self.labels.append(0)

        def __getitem__(self, index):
            self.labels[-1] += 1
            return torch.full((4,), index / 64)

    (found,) = run(tmp_path, dataset=Labels()).missing
    assert found[0] == "dataloader.dataset.labels"


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
    (said,) = [line for line in caplog.messages if line.startswith("commits hold")]
    assert "model (2 tensors)" in said


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


def test_a_look_leaves_what_locals_returned(tmp_path):
    def train(rate=0.1):
        given = locals()
        before = dict(given)
        model = nn.Linear(2, 1)
        with Checkpointer(tmp_path, model=model, every=None) as ckpt:
            for _ in ckpt.steps(2):
                ckpt.step(loss=rate)
        return given == before

    assert train()


class Augment:
    def __init__(self):
        self.rng = np.random.default_rng(1)

    def __call__(self):
        return self.rng.normal()


@pytest.mark.parametrize("draws", [True, False])
def test_generators_of_the_script_that_nobody_passed(tmp_path, caplog, draws):
    order, augment, unused = torch.Generator(), Augment(), random.Random(1)
    passed, whole = np.random.default_rng(2), torch.default_generator
    model = Net()
    with Checkpointer(tmp_path, model=model, passed=passed, every=None) as ckpt:
        for _ in ckpt.steps(3):
            noise = torch.rand(4, generator=whole) + passed.normal()
            if draws:
                noise = torch.rand(4, generator=order) + augment() + unused.getstate()[0]
            model(noise).sum().backward()
            ckpt.step()
        missing = dict(ckpt.audit().missing)
    assert set(missing) == ({"order", "augment.rng"} if draws else set())
    assert ("order (torch._C.Generator, draws between steps)" in caplog.text) == draws
    assert ("pass it as a part (a variable: in a dict)" in caplog.text) == draws


class Odd(torch.optim.SGD):
    """Has nothing to step, and cannot say what it has."""

    def __init__(self):
        super().__init__([torch.zeros(1)])

    def state_dict(self):
        raise OSError("not now")


class Agent:
    """A trainer of the user's, with a memory of its own."""

    def __init__(self):
        self.model, self.memory, self.rate = nn.Linear(4, 1), [], 1.0

    def train(self, ckpt):
        for step in ckpt.steps(3):
            self.memory.append((torch.full((4,), float(step)), step))
            self.rate *= 0.9
            loss = self.model(self.memory[0][0]).square().mean() * self.rate
            loss.backward()
            ckpt.step(loss=loss)


def test_what_a_loop_of_the_script_carries_and_nobody_passed(tmp_path, caplog):
    model = nn.RNN(4, 4)
    target, optimizer = copy.deepcopy(model), torch.optim.SGD(model.parameters(), 0.1)
    passed, state, weights = {"x": torch.ones(4)}, model.state_dict(), list(model.parameters())
    criterion, losses, hidden, batch = nn.MSELoss(), [], torch.zeros(1, 4), torch.rand(2, 4)
    gone, odd = weakref.proxy(Net()), Odd()
    parts = {"model": model, "optimizer": optimizer, "parts": {"passed": passed}}

    def average():
        with torch.no_grad():
            for one, other in zip(target.parameters(), weights, strict=True):
                one.lerp_(other, 0.1)

    with Checkpointer(tmp_path, **parts, every=None) as ckpt:
        for _ in ckpt.steps(3):
            inputs, batch = batch, torch.rand(2, 4)
            out, hidden = model(inputs, hidden.detach())
            seen = out.detach()
            loss = criterion(out, passed["x"].expand(2, 4))
            loss.backward()
            optimizer.step()
            average()
            losses.append(loss.item())
            passed["x"] = passed["x"] * 0.9
            assert (gone, odd, state) is not None
            ckpt.step(loss=loss)
            assert seen.shape == out.shape
        missing = dict(ckpt.audit().missing)
    assert set(missing) == {"hidden", "batch", "target", "losses"}
    (line,) = [one for one in caplog.messages if "in no commit" in one]
    assert "losses" not in line, "numbers are for the audit"
    assert all(name in line for name in ("hidden", "batch", "target"))


def test_attributes_of_a_trainer(tmp_path, caplog):
    agent = Agent()
    optimizer = torch.optim.SGD(agent.model.parameters(), 0.1)
    with Checkpointer(tmp_path, model=agent.model, optimizer=optimizer, every=None) as ckpt:
        agent.train(ckpt)
        assert set(dict(ckpt.audit().missing)) == {"self.memory", "self.rate"}
    assert "self.memory (list" in caplog.text
    assert "self.rate" not in caplog.text


_ORDINARY = {
    "a function reads attributes named as variables, and what the loop sets before": """
def pick(pair):
    return pair.real, seen
for real in ckpt.batches(12):
    seen = real * 1
    pick(types.SimpleNamespace(real=seen))
    model(seen).sum().backward()
    optimizer.step()
    ckpt.step()
""",
    "an inner loop sets what is used after it": """
for _ in ckpt.steps(12):
    for _ in range(2):
        real = ckpt.next_batch()
    model(real).sum().backward()
    optimizer.step()
    ckpt.step()
""",
    "an exception is handled": """
for _ in ckpt.steps(12):
    real = ckpt.next_batch()
    try:
        seen = real * 1
    except RuntimeError:
        seen = real * 2
    model(seen).sum().backward()
    optimizer.step()
    ckpt.step()
""",
    "objects hold the batch of a step": """
class Learner: pass
learner = Learner()
for _ in ckpt.steps(12):
    learner.real = ckpt.next_batch()
    learner.pair = [learner.real, learner.real * 2]
    model(learner.real).sum().backward()
    optimizer.step()
    ckpt.step()
""",
}


@pytest.mark.parametrize("script", _ORDINARY.values(), ids=_ORDINARY)
def test_what_an_ordinary_script_does_is_not_warned_of(tmp_path, caplog, script):
    model, loader = Net(), DataLoader(torch.rand(32, 4), 4)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    parts = {"model": model, "optimizer": optimizer, "dataloader": loader}
    with Checkpointer(tmp_path, parts=parts, every=None) as ckpt:
        names = {"ckpt": ckpt, "model": model, "optimizer": optimizer, "types": types}
        exec(compile(script, "train.py", "exec"), {"__name__": "train", **names})
    assert "in no commit" not in caplog.text


def test_an_optimizer_that_is_made_anew(tmp_path):
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with Checkpointer(tmp_path, model=model, optimizer=optimizer, every=None) as ckpt:
        for step in ckpt.steps(12):
            if step == 5:
                optimizer = torch.optim.SGD(model.parameters(), 0.2)
            optimizer.step()
            ckpt.step()
        assert set(dict(ckpt.audit().missing)) == {"optimizer"}


def test_two_runs_of_one_script_do_not_miss_each_other(tmp_path):
    models = one, other = Net(), Net()
    optimizers = [torch.optim.Adam(model.parameters(), 0.1) for model in models]
    ckpts = [
        Checkpointer(tmp_path / str(at), model=model, optimizer=optimizers[at], every=None)
        for at, model in enumerate(models)
    ]
    for _ in range(4):
        for model, optimizer, ckpt in zip((one, other), optimizers, ckpts, strict=True):
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()
            ckpt.step()
    for ckpt in ckpts:
        assert not any(place in ("one", "other") for place, _ in ckpt.audit().missing)
        ckpt.close()


def test_what_was_passed_beside_its_owner_is_not_missed(tmp_path):
    model = Nested()
    missing = dict(run(tmp_path, model=model, parts={"history": model.history}).missing)
    assert "model.history" not in missing
    assert "model.rng" in missing
