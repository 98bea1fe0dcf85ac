"""The next batch after a resume is the one that would have come."""

import random
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import (
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    WeightedRandomSampler,
)
from torchdata.stateful_dataloader import StatefulDataLoader

from mvc import ConflictError, UsageError
from mvc_hooks.parts.data import DataPart
from mvc_hooks.parts.make import make_parts
from mvc_hooks.parts.restoring import capture_parts, restore_parts
from support.bounds import rest_nightly

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated"),  # torchdata still calls it
]


class Numbers(Dataset):
    """Twenty-two numbers, with noise from the process's generator where that is asked for."""

    def __init__(self, *, noise=False):
        self.noise = noise

    def __len__(self):
        return 22

    def __getitem__(self, index):
        return torch.tensor(float(index)) + (torch.rand(()) * 0.1 if self.noise else 0)


class Stream(IterableDataset):
    def __iter__(self):
        return iter(torch.rand(22))


class Passes(Numbers):
    """Numbers that depend on the epoch, which nobody can ask for."""

    _pass = 0

    def set_epoch(self, epoch):
        self._pass = epoch

    def __getitem__(self, index):
        return torch.tensor(index + self._pass / 100)


class Shuffled:
    """A sampler with a generator of its own, from which every batch takes its order."""

    def __init__(self, generator):
        self.rng = generator

    def __len__(self):
        return 22

    def __iter__(self):
        left = list(range(22))
        while left:
            yield left.pop(int(self.rng.random() * len(left)))


class Eager(Shuffled):
    """Batches that are drawn as soon as they are asked for, from Python's own generator."""

    def __iter__(self):
        order = random.sample(range(22), 22)
        return iter([order[at : at + 4] for at in range(0, 22, 4)])


class Augmented(Numbers):
    """Numbers with noise of generators of its own, deep inside."""

    def __init__(self):
        super().__init__()
        self.noises = {"a": [random.Random(3)], "b": SimpleNamespace(rng=np.random.RandomState(4))}

    def __getitem__(self, index):
        noise = self.noises["a"][0].random() + self.noises["b"].rng.rand()
        return super().__getitem__(index) + noise


class Counting(Numbers):
    """Numbers that tell how many were asked for before them, which is a state of their own."""

    count = 0

    def __getitem__(self, index):
        self.count += 1
        return super().__getitem__(index) + self.count / 100

    def state_dict(self):
        return {"count": self.count}

    def load_state_dict(self, state):
        self.count = state["count"]


class Late(Numbers):
    """Numbers with noise of a generator that is made when the first item is asked for."""

    rng = None

    def __init__(self):
        super().__init__()
        self.rng = None

    def __getitem__(self, index):
        self.rng = self.rng or np.random.default_rng(6)
        return super().__getitem__(index) + self.rng.random()


def _generator():
    return torch.Generator().manual_seed(9)


def _sampled(make):
    return lambda: DataLoader(Numbers(), batch_size=4, sampler=make())


PERSISTENT = {"num_workers": 2, "persistent_workers": True}
PLAIN = {
    "in order": lambda: DataLoader(Numbers(), batch_size=4),
    "shuffled": lambda: DataLoader(Numbers(noise=True), batch_size=4, shuffle=True),
    "generator": lambda: DataLoader(Numbers(), 4, shuffle=True, generator=_generator()),
    "weighted": _sampled(lambda: WeightedRandomSampler([1.0, 5.0] * 11, 22)),
    "distributed": _sampled(lambda: DistributedSampler(Numbers(), 2, 1, seed=4)),
    "stream": lambda: DataLoader(Stream(), batch_size=4),
    "a list": lambda: [torch.tensor(float(n)) for n in range(6)],
    "random.Random": _sampled(lambda: Shuffled(random.Random(5))),
    "default_rng": _sampled(lambda: Shuffled(np.random.default_rng(5))),
    "own generators": lambda: DataLoader(Augmented(), batch_size=4),
    "late generator": lambda: DataLoader(Late(), batch_size=4),
    "epochs": lambda: DataLoader(Passes(), batch_size=4),
    "persistent workers, epochs": lambda: DataLoader(Passes(), 4, shuffle=True, **PERSISTENT),
    "workers": lambda: DataLoader(Numbers(noise=True), 4, shuffle=True, num_workers=2),
    "persistent workers": lambda: DataLoader(Numbers(noise=True), 4, shuffle=True, **PERSISTENT),
    "persistent workers, pure": lambda: DataLoader(
        Numbers(), 4, shuffle=True, generator=_generator(), **PERSISTENT
    ),
    "persistent workers, own generators": lambda: DataLoader(
        Augmented(), 4, sampler=Shuffled(random.Random(5)), **PERSISTENT
    ),
    "persistent workers, late generator": lambda: DataLoader(Late(), 4, **PERSISTENT),
    "persistent workers, eager": lambda: DataLoader(
        Numbers(), batch_sampler=Eager(None), **PERSISTENT
    ),
    "persistent workers of a stream": lambda: DataLoader(Stream(), 4, **PERSISTENT),
}
STATEFUL = {
    "stateful": lambda: StatefulDataLoader(Numbers(noise=True), 4, shuffle=True),
    "stateful generator": lambda: StatefulDataLoader(
        Numbers(), 4, shuffle=True, generator=_generator()
    ),
    "stateful distributed": lambda: StatefulDataLoader(
        Numbers(), 4, sampler=DistributedSampler(Numbers(), 2, 1, seed=4)
    ),
    "stateful random sampler": lambda: StatefulDataLoader(
        Numbers(), 4, sampler=RandomSampler(Numbers())
    ),
    "stateful workers": lambda: StatefulDataLoader(Numbers(), 4, shuffle=True, num_workers=2),
    "stateful workers, noise": lambda: StatefulDataLoader(
        Numbers(noise=True), 4, shuffle=True, num_workers=2, snapshot_every_n_steps=2
    ),
    "stateful workers, own state": lambda: StatefulDataLoader(Counting(), 4, num_workers=2),
    "stateful persistent workers, own generators": lambda: StatefulDataLoader(
        Augmented(), 4, shuffle=True, **PERSISTENT
    ),
    "stateful random.Random": lambda: StatefulDataLoader(
        Numbers(), 4, sampler=Shuffled(random.Random(5))
    ),
}


def _build(make):
    def build():
        torch.manual_seed(torch.initial_seed())
        loader = make()
        part = DataPart("dataloader", loader)
        model = nn.Linear(1, 1)
        seen = []

        def train():
            batch = part.next_batch()
            seen.append(batch.reshape(-1).tolist() + torch.rand(2).tolist())

        return SimpleNamespace(
            parts={"model": model, "dataloader": part}, train=train, seen=seen, part=part
        )

    return build


# Kinds of which each thing that matters is in another one.
RARE = (
    "weighted", "a list", "stateful random sampler", "persistent workers", "persistent workers, late generator",
    "persistent workers, eager", "persistent workers of a stream", "stateful workers, noise",
)  # fmt: skip
# Workers take long to start; two positions do.
CASES = [
    case
    for kind in (*PLAIN, *STATEFUL)
    for case in rest_nightly(
        (
            (kind, before)
            for before in (
                (14, 6) if "persist" in kind else (8, 3) if "workers" in kind else (3, 0, 6, 8)
            )
        ),
        kept=0 if kind in RARE else 1,
    )
]


@pytest.mark.parametrize(("kind", "before"), CASES)
def test_batches_go_on_as_if_nothing_had_been(lab, kind, before):
    make = {**PLAIN, **STATEFUL}[kind]
    first = lab.make(_build(make), 0)
    for _ in range(before):
        first.train()
    source = lab.commit(first.live)
    for _ in range(9):
        first.train()
    expected = first.seen[before:]
    second = lab.make(_build(make), 1)
    runs = [(second, 0), (first, before + 9)]
    for run, start in runs:
        restore_parts(source, run.live)
        assert source.check(capture_parts(run.live)) == ()
        assert run.part.batches_drawn == before
        for _ in range(9):
            run.train()
        assert run.seen[start:] == expected
    assert len({tuple(batch) for batch in expected}) > 1


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("before", [2, 6])
def test_a_run_that_iterates_by_itself(lab, workers, before):
    def build():
        loader = StatefulDataLoader(
            Numbers(), 4, shuffle=True, num_workers=workers, generator=_generator()
        )
        return SimpleNamespace(parts={"dataloader": loader}, loader=loader)

    def draw(run, count, commit_at=None):
        seen, source = [], None
        while len(seen) < count:
            for batch in run.loader:
                seen.append(batch.tolist() + torch.rand(2).tolist())
                if len(seen) == commit_at:
                    source = lab.commit(run.live)
                if len(seen) == count:
                    break
        return seen, source

    seen, source = draw(lab.make(build, 0), before + 8, before)
    second = lab.make(build, 1)
    restore_parts(source, second.live)
    assert draw(second, 8)[0] == seen[before:]


def test_capturing_a_loader_before_its_first_batch_makes_no_iterator():
    loader = StatefulDataLoader(Numbers(), 4, shuffle=True)
    part = DataPart("dataloader", loader)
    before = torch.get_rng_state(), loader.sampler.generator.get_state()
    part.capture()
    assert loader._iterator is None
    assert torch.equal(torch.get_rng_state(), before[0])
    assert torch.equal(loader.sampler.generator.get_state(), before[1])


def test_an_iterator_that_somebody_holds_cannot_be_rewound():
    for loader in (StatefulDataLoader(Numbers(), 4), DataLoader(Numbers(), 4)):
        part = DataPart("dataloader", loader)
        state = part.capture()
        assert part.can_rewind
        held = iter(loader)
        next(held)
        assert not part.can_rewind
        with pytest.raises(ConflictError, match="already being iterated"):
            part.restore(state)


def test_a_position_that_nobody_knows_is_an_error_not_a_guess():
    plain = DataLoader(Numbers(), 4)
    part = DataPart("dataloader", plain)
    next(iter(plain))
    with pytest.raises(UsageError, match="does not know its position"):
        part.capture()
    loader = StatefulDataLoader(Numbers(), 4, sampler=RandomSampler(Numbers()))
    part = DataPart("dataloader", loader)
    held = iter(loader)
    next(held)
    with pytest.raises(UsageError, match="RandomSampler, whose order"):
        part.capture()
    part = DataPart("dataloader", loader := StatefulDataLoader(Augmented(), 4))
    held = iter(loader)
    next(held)
    assert part.capture()["generators"], "those of the dataset are no matter of the order"
    with pytest.raises(UsageError, match="is an iterator"):
        DataPart("dataloader", iter([1]))
    with pytest.raises(UsageError, match="yields no batches"):
        DataPart("dataloader", []).next_batch()


def test_workers_that_cannot_be_restored_are_refused_at_the_first_batch():
    loader = DataLoader(Numbers(), 4, **PERSISTENT)
    next(iter(loader))
    with pytest.raises(UsageError, match="began before the checkpointer"):
        DataPart("dataloader", loader).next_batch()
    loader = StatefulDataLoader(Stream(), 4, **PERSISTENT)
    with pytest.raises(UsageError, match="draw random numbers, which a resume would not"):
        DataPart("dataloader", loader).next_batch()


@pytest.mark.parametrize("before", [4, 8])
@pytest.mark.parametrize(
    ("then", "now"),
    [(PERSISTENT, {}), (PERSISTENT, {"num_workers": 1}), ({}, PERSISTENT)],
    ids=["to none", "to others", "to persistent"],
)
def test_a_pass_goes_on_in_its_order_with_workers_of_another_kind(lab, then, now, before):
    def make(options):
        return _build(lambda: DataLoader(Numbers(), 4, shuffle=True, **options))

    first = lab.make(make(then), 0)
    for _ in range(before):
        first.train()
    source = lab.commit(first.live)
    for _ in range(2):
        first.train()
    second = lab.make(make(now), 1)
    restore_parts(source, second.live)
    for _ in range(2):
        second.train()
    assert second.seen == first.seen[before:]


def test_a_long_list_in_a_dataset_is_not_gone_through():
    class Long(list):
        def __iter__(self):
            for count, one in enumerate(super().__iter__()):
                assert count < 1000
                yield one

    data = Numbers()
    data.labels = Long(range(5000))
    part = DataPart("dataloader", DataLoader(data, 4))
    part.next_batch()
    assert part.capture()["generators"] == {}


def test_a_generator_that_only_one_side_has_is_named(lab):
    old = make_parts({"dataloader": DataLoader(Numbers(), sampler=range(5))})
    source = lab.commit(old)
    new = make_parts({"dataloader": DataLoader(Numbers(), sampler=Shuffled(random.Random(1)))})
    with pytest.raises(ConflictError, match=r"dataloader\.generators\.sampler\.rng is not in"):
        restore_parts(source, new)
    restore_parts(source, new, allow=["dataloader.generators.sampler.rng"])
    with pytest.raises(ConflictError, match=r"had a generator sampler\.rng"):
        restore_parts(lab.commit(new), old)


@pytest.mark.parametrize(
    ("kinds", "is_drawn_here"),
    [
        ((DataLoader, StatefulDataLoader), True),
        ((StatefulDataLoader, DataLoader), True),
        ((StatefulDataLoader, DataLoader), False),
    ],
)
def test_a_loader_of_another_kind_is_refused_before_anything_is_touched(lab, kinds, is_drawn_here):
    stored, live = (make_parts({"dataloader": kind(Numbers(), 4, shuffle=True)}) for kind in kinds)
    part = stored["dataloader"]
    part.next_batch() if is_drawn_here else next(iter(part.loader))
    words = [f"a loader {'without' if kind is DataLoader else 'with'} state_dict" for kind in kinds]
    source = lab.commit(stored)
    with pytest.raises(ConflictError) as refused:
        restore_parts(source, live)
    place = f"dataloader is {words[1]} here, {words[0]} in the stored state"
    assert refused.value.message == f"the run does not fit the stored state: {place}"
    restore_parts(source, live, allow=["dataloader"])
    assert live["dataloader"].batches_drawn == 0


def test_dropping_counts():
    part = DataPart("dataloader", list(range(5)))
    part.drop(7)
    assert (part.next_batch(), part.batches_drawn, part.epoch) == (2, 8, 1)


def test_removing_leaves_the_loader_as_it_was():
    loader = DataLoader(Numbers(), 4)
    part = DataPart("dataloader", loader)
    assert "_get_iterator" in vars(loader)
    part.remove()
    assert "_get_iterator" not in vars(loader)


def test_a_loader_of_the_users_own(lab):
    class Own:
        def __init__(self):
            self.at = 0

        def __iter__(self):
            return self

        def __next__(self):
            self.at += 1
            return torch.tensor(self.at)

        def state_dict(self):
            return {"at": self.at}

        def load_state_dict(self, state):
            self.at = state["at"]

    old = make_parts({"dataloader": Own()})
    old["dataloader"].drop(4)
    source = lab.commit(old)
    new = make_parts({"dataloader": Own()})
    restore_parts(source, new)
    assert new["dataloader"].next_batch() == 5
