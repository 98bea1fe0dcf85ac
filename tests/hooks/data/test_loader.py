from __future__ import annotations

import random
import tracemalloc
from itertools import islice

import numpy as np
import pytest
import torch
from torch import distributed
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils.data import ConcatDataset, Dataset, IterableDataset, Subset

from mvc import ConflictError, FormatError, UsageError
from mvc.sampling import Skips
from mvc_data import ConsistentDataLoader
from support.cases import for_each

pytestmark = pytest.mark.torch


class Numbers(Dataset):
    """Samples that are their index, and a random number if they are ``noisy``."""

    def __init__(self, size=50, *, noisy=False):
        self.size, self.noisy = size, noisy

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        noise = random.random() + np.random.rand() + float(torch.rand(())) if self.noisy else 0.0
        return index, noise


class Batched(Numbers):
    """One that is asked for many samples at once."""

    def __init__(self, size=50, *, noisy=False):
        super().__init__(size, noisy=noisy)
        self.asked = []

    def __getitems__(self, indices):
        self.asked.append(len(indices))
        return [self[index] for index in indices]


class Faulty(Numbers):
    broken = True

    def __getitem__(self, index):
        if index == 7 and self.broken:
            raise ValueError("sample 7 is broken")
        return index, 0.0


def make(dataset=None, batch=8, **options):
    return ConsistentDataLoader(Numbers() if dataset is None else dataset, batch, seed=3, **options)


def rows(batch):
    return list(zip(batch[0].tolist(), batch[1].tolist(), strict=True))


def draw(loaders, epochs=1):
    """Return the global batches of some epochs, put together from those of all ranks."""
    loaders = loaders if isinstance(loaders, list) else [loaders]
    return [
        [row for batch in batches for row in rows(batch)]
        for _ in range(epochs)
        for batches in zip(*loaders, strict=True)
    ]


def indices(batches):
    return [index for batch in batches for index, _ in batch]


NOISY = {"dataset": Numbers(noisy=True)}


@pytest.fixture(scope="module")
def noisy_epochs():
    return draw(make(**NOISY), 3)


def test_an_epoch_has_every_sample_once(noisy_epochs):
    assert len(make()) == 7
    assert [len(batch) for batch in noisy_epochs] == [8, 8, 8, 8, 8, 8, 2] * 3
    for epoch in range(3):
        assert sorted(indices(noisy_epochs[epoch * 7 : epoch * 7 + 7])) == list(range(50))
    assert indices(noisy_epochs[:7]) != indices(noisy_epochs[7:14])


@pytest.mark.parametrize(
    "options",
    [
        {"num_workers": 2},
        {"num_workers": 2, "persistent_workers": True, "prefetch_factor": 3},
        pytest.param(
            {"num_workers": 1, "multiprocessing_context": "spawn"}, marks=pytest.mark.slow
        ),
    ],
    ids=["workers", "persistent", "spawn"],
)
def test_workers_change_neither_order_nor_random_numbers(noisy_epochs, options):
    assert draw(make(**NOISY, **options), 3) == noisy_epochs


@pytest.mark.parametrize(("ranks", "batch"), [(2, 8), (4, 8), (8, 8), (1, 8)])
def test_ranks_share_the_same_global_batches(ranks, batch):
    loaders = [
        make(batch=batch, drop_last=True, rank=rank, world_size=ranks, **NOISY)
        for rank in range(ranks)
    ]
    assert draw(loaders, 2) == draw(make(batch=batch, drop_last=True, **NOISY), 2)


def test_the_rank_may_be_known_after_the_loader_was_made():
    """Lightning begins torch.distributed within ``fit``, to which it is passed."""
    loaders = [make(batch=8, drop_last=True) for _ in range(2)]
    slices = []
    for rank, loader in enumerate(loaders):
        distributed.init_process_group("fake", store=FakeStore(), rank=rank, world_size=2)
        try:
            slices.append(next(iter(loader))[0])
            assert (loader.rank, loader.world_size) == (rank, 2)
        finally:
            distributed.destroy_process_group()
    assert torch.equal(torch.cat(slices), next(iter(make(batch=8)))[0])


def test_micro_batches_make_up_the_slice_of_a_rank():
    loaders = [make(rank=rank, world_size=2, micro_batch_size=3) for rank in range(2)]
    sizes, ends = [], []
    for batch, _ in zip(*loaders, strict=True):
        sizes.append(len(batch[0]))
        ends.append(loaders[0].is_step_end)
    assert sizes == [2, 2] * 6 + [1]
    assert ends == [False, True] * 6 + [True]
    assert len(loaders[0]) == 13
    assert loaders[0].batches_drawn == 7


def test_state_counts_what_was_handed_out_and_nothing_prefetched():
    loader = make(num_workers=2, prefetch_factor=4)
    iterator = iter(loader)
    for _ in range(3):
        next(iterator)
    assert loader.state_dict()["cursor"] == 24
    assert loader.batches_drawn == 3


@pytest.mark.parametrize("at", [0, 1, 6, 7, 8, 13])
def test_a_resume_goes_on_with_other_ranks_and_workers(noisy_epochs, at):
    first = make(**NOISY)
    iterator = iter(first)
    for _ in range(at):
        try:
            next(iterator)
        except StopIteration:
            iterator = iter(first)
            next(iterator)
    state = first.state_dict()
    loaders = [make(**NOISY, rank=rank, world_size=2) for rank in range(2)]
    for loader in loaders:
        loader.load_state_dict(state)
    rest = 7 - at % 7
    assert draw(loaders) == noisy_epochs[at : at + rest]
    again = make(**NOISY)
    again.load_state_dict(loaders[1].state_dict())
    assert draw(again) == noisy_epochs[at + rest : at + rest + 7]


def test_a_resume_within_a_global_batch_goes_on_with_its_next_micro_batch():
    loader = make(micro_batch_size=3)
    iterator = iter(loader)
    drawn = [rows(next(iterator)) for _ in range(5)]
    other = make(micro_batch_size=3)
    other.load_state_dict(loader.state_dict())
    drawn += [rows(batch) for batch in other]
    assert drawn == [rows(batch) for batch in make(micro_batch_size=3)]


def test_a_resume_deep_in_a_huge_dataset_makes_nothing_of_its_length():
    state = {**make(Numbers(10**9), 64).state_dict(), "cursor": 777_777_777}
    tracemalloc.start()
    loader = make(Numbers(10**9), 64)
    loader.load_state_dict(state)
    next(iter(loader))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2 << 20
    assert loader.cursor == 777_777_777 + 64


def test_leaving_the_loop_and_iterating_again_goes_on():
    loader, whole = make(num_workers=2, persistent_workers=True), draw(make(), 2)
    got = [rows(batch) for batch in islice(loader, 3)]
    got += [rows(batch) for batch in loader]
    got += [rows(batch) for batch in loader]
    assert got == whole


def test_one_iterator_is_live_at_a_time():
    loader = make()
    first, second = iter(loader), None
    next(first)
    second = iter(loader)
    next(second)
    with pytest.raises(UsageError, match="ended when another one was made"):
        next(first)


def test_an_iterator_that_is_over_stays_over():
    iterator = iter(make())
    list(iterator)
    assert list(iterator) == []


def fail(call):
    """Return what an error says, and hold nothing that a traceback does: workers end at once."""
    try:
        call()
    except ValueError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("workers", [0, 2])
def test_after_an_exception_the_same_batch_is_next(workers):
    dataset = Faulty()
    loader = make(dataset, num_workers=workers)
    iterator = iter(loader)
    assert "sample 7 is broken" in fail(lambda: list(iterator))
    before = loader.batches_drawn
    assert "sample 7 is broken" in fail(lambda: next(iterator))
    assert loader.batches_drawn == before
    dataset.broken = False
    loader = make(dataset)
    loader.load_state_dict({**loader.state_dict(), "cursor": before * 8})
    assert sorted(indices(draw(make(dataset))[:before] + draw(loader))) == list(range(50))


def test_set_epoch_goes_on_only():
    loader = make()
    loader.set_epoch(0)
    got = [rows(batch) for batch in islice(loader, 2)]
    loader.set_epoch(0)  # in the middle, and twice: nothing moves
    got += [rows(batch) for batch in loader]
    loader.set_epoch(1)
    loader.set_epoch(1)
    got += [rows(batch) for batch in loader]
    assert got == draw(make(), 2)
    with pytest.warns(UserWarning, match="does not go back: the data is in epoch 2"):
        loader.set_epoch(0)
    loader.set_epoch(5)
    assert (loader.epoch, loader.cursor) == (5, 250)
    with pytest.raises(UsageError, match="epoch is -1"):
        loader.set_epoch(-1)


class LaterNoisy(Numbers):
    def __getitem__(self, index):
        return index, random.random() if index < 3 else 0.0


def test_generators_that_are_first_used_late_are_noticed():
    loader = make(LaterNoisy(), 2, seed_samples=True)
    random.seed(1)
    expected, after = draw(loader), random.random()
    random.seed(1)
    assert draw(make(LaterNoisy(), 2)) == expected
    assert random.random() == after
    assert draw(make(LaterNoisy(), 4, rank=0, world_size=1)) != expected


class LaterNormal(Numbers):
    def __getitem__(self, index):
        return index, np.random.normal() + float(torch.rand(())) if index < 3 else 0.0


@for_each("dataset", [Numbers(), Numbers(noisy=True), LaterNoisy(), LaterNormal()])
def test_no_sample_moves_a_generator_of_the_process(dataset):
    """Nor does it take the normal number that one keeps back."""

    def states():
        return random.getstate(), repr(np.random.get_state()), torch.get_rng_state().tolist()

    drawn = []
    for normals in range(2):
        np.random.seed(1), np.random.normal(size=normals)
        before = states()
        drawn.append(draw(make(dataset, 2)))
        assert states() == before
    assert drawn[0] == drawn[1]


def test_another_generator_behind_numpys_functions_is_refused():
    own = np.random.get_bit_generator()
    np.random.set_bit_generator(np.random.PCG64(1))
    try:
        with pytest.raises(UsageError, match="draw from PCG64, which takes no new seed"):
            next(iter(make()))
        assert len(draw(make(seed_samples=False))) == 7
    finally:
        np.random.set_bit_generator(own)


def test_seeds_can_be_left_out():
    one, other = (draw(make(**NOISY, seed_samples=False)) for _ in range(2))
    assert indices(one) == indices(other)
    assert one != other


def test_subsets_and_chains_of_datasets_are_read_by_their_own_indices():
    whole = ConcatDataset([Numbers(10), Subset(Numbers(100), range(50, 60))])
    assert sorted(indices(draw(make(whole)))) == sorted([*range(10), *range(50, 60)])


def test_datasets_that_fetch_many_at_once_are_asked_so_unless_they_draw():
    quiet, noisy = Batched(), Batched(noisy=True)
    draw(make(quiet))
    assert quiet.asked == [8] * 6 + [2]
    assert draw(make(noisy)) == draw(make(**NOISY))
    assert noisy.asked == [8] + [1] * 50


# Skipping.


class Counted(Numbers):
    def __init__(self):
        super().__init__()
        self.read = []

    def __getitem__(self, index):
        self.read.append(index)
        return index, 0.0


def test_skipped_samples_are_not_read():
    dataset = Counted()
    skips = Skips().add_samples("data", 10, 19, reason="taken down").add_window(0, 5, reason="bad")
    list(make(dataset, skip=skips))
    assert not set(dataset.read) & set(range(10, 20))
    assert len(dataset.read) in range(35, 41)


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_are_skipped_in_the_middle_of_a_pass(workers):
    whole, loader = draw(make()), make(num_workers=workers)
    iterator = iter(loader)
    got = [rows(next(iterator)) for _ in range(2)]
    assert loader.skip_batches(2, reason="a spike", after=1) == (24, 40)
    got += [rows(batch) for batch in iterator]
    assert got == whole[:3] + whole[5:]
    assert loader.skips.reason(loader.plan, 30) == "a spike"
    other = make()
    other.load_state_dict({**loader.state_dict(), "cursor": 16})
    assert draw(other) == whole[2:3] + whole[5:]


def test_samples_are_skipped_from_the_next_batch_on():
    whole, loader = draw(make()), make()
    iterator = iter(loader)
    got = [rows(next(iterator))]
    loader.skip(Skips().add_samples("data", 0, 24, reason="bad half"))
    got += [rows(batch) for batch in iterator]
    assert indices(got) == indices(whole[:1]) + [
        index for index in indices(whole[1:]) if index > 24
    ]


def test_a_skip_in_the_middle_of_a_global_batch_is_refused():
    loader = make(micro_batch_size=3)
    next(iter(loader))
    with pytest.raises(UsageError, match="1 micro-batches of a global batch were drawn already"):
        loader.skip_batches(1, reason="late")


def test_a_window_of_several_epochs_is_passed_over():
    loader, whole = make(), make()
    assert loader.skip_batches(25, reason="a spike", after=1) == (8, 8 + 3 * 50 + 32)
    for _ in range(3):
        draw(whole)
    later = draw(whole)
    assert draw(loader) == draw(make())[:1]
    assert loader.epoch == 1
    assert draw(loader) == later[5:]
    assert loader.epoch == 4


def test_where_all_is_skipped_no_batch_comes():
    assert draw(make(skip=Skips().add_samples("data", 0, 49, reason="all"))) == []


# Wrong use.


class Nameless(Numbers):
    __len__ = None


@for_each(
    ("arguments", "words"),
    [
        ({"batch": None}, "no global_batch_size"),
        ({"batch_size": 4}, "batch_size contradicts"),
        ({"sampler": [1]}, "sampler contradicts"),
        ({"batch_sampler": [[1]]}, "batch_sampler contradicts"),
        ({"in_order": False}, "in_order=False contradicts"),
        ({"dataset": []}, "source 'data' is empty"),
        ({"dataset": Nameless()}, "has no length"),
        (
            {"dataset": type("Stream", (IterableDataset,), {"__iter__": iter})()},
            "has no __getitem__",
        ),
        ({"dataset": 5}, "has no __getitem__"),
        ({"drop_last": "yes"}, "drop_last is 'yes'"),
        ({"rank": 1}, "rank and world_size belong together"),
        ({"rank": 2, "world_size": 2}, "rank 2 is not a rank of 2"),
        ({"batch": 2, "rank": 0, "world_size": 4}, "too small for 4 ranks"),
        ({"batch": 16, "rank": 0, "world_size": 4}, "last batch of an epoch has 2 samples"),
        ({"micro_batch_size": 0}, "micro_batch_size is 0"),
        ({"weights": {"date": 1}}, "weights has 'date', which is not a dataset"),
        ({"shards": {"date": "ab"}}, "shards has 'date', which is not a dataset"),
        ({"stages": [(None, {"date": 1})]}, "a stage has 'date'"),
        ({"stages": [3]}, "3 is not a stage"),
        ({"skip": [3]}, "not of class Skips"),
        (
            {"skip": Skips().add_samples("date", 3, reason="x")},
            "samples of 'date' cannot be skipped",
        ),
        ({"skip": Skips().add_samples("data", 9, 50, reason="x")}, "sample 50 of 'data' cannot be"),
        ({"epoch_size": 9}, "epoch_size is for sources with weights"),
        ({"seed_samples": "yes"}, "seed_samples is 'yes'"),
        ({"num_workers": -1}, "torch's DataLoader refuses the options"),
        ({"persistent_workers": True}, "torch's DataLoader refuses the options"),
    ],
)
def test_wrong_use_is_one_clear_line(arguments, words):
    with pytest.raises(UsageError, match=words) as caught:
        make(**arguments)
    assert "\n" not in caught.value.message


def test_an_unknown_option_and_a_number_that_is_none_are_refused():
    with pytest.raises(UsageError, match="no option 'num_worker'") as caught:
        make(num_worker=3)
    assert caught.value.hint == "did you mean num_workers?"
    loader = make()
    for wrong in (-1, "2", 1.5):
        with pytest.raises(UsageError, match="not a whole number"):
            loader.skip_batches(wrong, reason="x")
        with pytest.raises(UsageError, match="not a whole number"):
            loader.skip_batches(1, reason="x", after=wrong)
    with pytest.raises(UsageError, match="not a whole number"):
        loader.set_epoch(1 << 60)


def test_ranks_that_share_unequally_are_told():
    with pytest.warns(UserWarning, match="3 ranks share global batches of 8 samples unequally"):
        loaders = [make(drop_last=True, rank=rank, world_size=3) for rank in range(3)]
    assert draw(loaders) == draw(make(drop_last=True))


def test_a_batch_smaller_than_the_dataset_is_wrapped_or_short():
    assert [len(one) for one in draw(make(Numbers(5)), 2)] == [5, 5]
    assert [len(one) for one in draw(make(Numbers(5), drop_last="wrap"), 5)] == [8] * 5
    assert draw(make(Numbers(5), drop_last=True)) == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"dataset": Numbers(49)}, "size of data: 49, there 50"),
        ({"batch": 10}, "batch: 10, there 8"),
        ({"shuffle": False}, "shuffle: False, there True"),
        ({"drop_last": True}, "tail: 'drop', there 'short'"),
    ],
)
def test_a_position_in_another_order_is_refused(change, words):
    state = make().state_dict()
    with pytest.raises(ConflictError, match=words):
        make(**change).load_state_dict(state)


@pytest.mark.parametrize("wrong", [{}, {"cursor": -1}, {"cursor": "3"}, {"plan": 3}, {"skips": []}])
def test_hostile_states_are_format_errors(wrong):
    loader = make()
    state = {**loader.state_dict(), **wrong} if wrong else wrong
    with pytest.raises(FormatError):
        loader.load_state_dict(state)
    assert loader.cursor == 0
