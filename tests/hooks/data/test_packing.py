"""Windows of fixed length: every token once, whatever the lengths, and lengths that do not fit."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from mvc import UsageError
from mvc.sampling import BlockOrder
from mvc_data.packing import PackedDataset, cumulative_lengths
from support.bounds import bounded
from support.cases import for_each


class Sequences:
    """Sequences whose tokens number all tokens, so that each shows where it belongs."""

    def __init__(self, lengths, runs=None):
        self.lengths = np.asarray(lengths)
        self.starts = np.cumsum(self.lengths) - self.lengths
        self.fetched = 0
        if runs is not None:
            self.order = BlockOrder(np.asarray(runs), 64)

    def __len__(self):
        return len(self.lengths)

    def __getitem__(self, number):
        self.fetched += 1
        start = int(self.starts[number])
        return np.arange(start, start + int(self.lengths[number]))


def read_tokens(packed):
    windows = [packed[number] for number in range(len(packed))]
    return [window["input_ids"][window["document_ids"] >= 0].tolist() for window in windows]


def join(lists):
    return list(itertools.chain.from_iterable(lists))


def draw_lengths(trial):
    rng = np.random.default_rng(trial)
    lengths = rng.integers(0, int(rng.integers(2, 300)), int(rng.integers(1, 700)))
    return lengths, int(rng.integers(20, 150)), rng


@for_each("split", [False, True])
@for_each("trial", range(bounded(2, 6)))
def test_every_token_is_in_one_window(trial, split):
    lengths, window, rng = draw_lengths(trial)
    cuts = np.sort(rng.integers(0, len(lengths) + 1, 4))
    runs = np.diff([0, *cuts, len(lengths)]) if trial % 2 else None
    packed = PackedDataset(Sequences(lengths, runs), lengths, window, split=split, pad=-7)
    found = read_tokens(packed)
    assert sorted(join(found)) == list(range(int(lengths.sum())))
    assert all(found)
    assert packed.tokens == lengths.sum()
    if split:
        assert join(found) == list(range(int(lengths.sum())))


def test_a_run_shares_no_window_with_the_next():
    lengths = np.full(40, 30)
    for split in (False, True):
        packed = PackedDataset(Sequences(lengths, [13, 0, 27]), lengths, 100, split=split)
        for window in range(len(packed)):
            assert len({number < 13 for number in packed.samples_of(window).tolist()}) == 1
        assert packed.order.sizes.sum() == len(packed)


def test_sequences_that_fit_stay_whole():
    lengths, _, _ = draw_lengths(3)
    packed = PackedDataset(Sequences(lengths), lengths, 300)
    owners = [number for one in range(len(packed)) for number in packed.samples_of(one).tolist()]
    assert sorted(owners) == np.flatnonzero(lengths).tolist()
    assert packed.tokens / (len(packed) * 300) > 0.95


def test_a_window_says_which_sequence_is_where():
    packed = PackedDataset(Sequences([3, 2, 4, 9]), [3, 2, 4, 9], 6, split=True, pad=-1)
    assert packed[1]["input_ids"].tolist() == [6, 7, 8, 9, 10, 11]
    assert packed[1]["document_ids"].tolist() == [0, 0, 0, 1, 1, 1]
    assert packed[1]["position_ids"].tolist() == [0, 1, 2, 0, 1, 2]
    assert packed.samples_of(1).tolist() == [2, 3]
    last = packed[-1]
    assert last["input_ids"].tolist() == [12, 13, 14, 15, 16, 17]
    assert len(PackedDataset(Sequences([5, 5]), [5, 5], 6, pad=9)[0]["input_ids"]) == 6
    padded = PackedDataset(Sequences([5, 5]), [5, 5], 6, pad=9)[0]
    assert (padded["input_ids"][-1], padded["document_ids"][-1]) == (9, -1)


def test_a_long_sequence_fills_windows_of_its_own_or_is_cut():
    lengths = [2, 25, 3]
    whole = PackedDataset(Sequences(lengths), lengths, 10)
    assert sorted(join(read_tokens(whole))) == list(range(30))
    cut = PackedDataset(Sequences(lengths), lengths, 10, cut_long=True)
    assert sorted(join(read_tokens(cut))) == [*range(12), 27, 28, 29]


def test_fields_are_packed_alike_and_padded_by_name():
    class Fields(Sequences):
        def __getitem__(self, number):
            tokens = super().__getitem__(number)
            return {"input_ids": tokens, "labels": -tokens, "weight": tokens * 0.5}

    packed = PackedDataset(Fields([3, 4]), [3, 4], 8, pad={"input_ids": 50})
    (window,) = (packed[number] for number in range(len(packed)))
    assert window["input_ids"][-1] == 50
    assert window["labels"][-1] == -100
    assert window["weight"].dtype == torch.float64
    assert window["labels"][:7].tolist() == (-window["input_ids"][:7]).tolist()


def test_windows_of_a_batch_fetch_a_shared_sequence_once():
    sequences = Sequences([25, 25])
    packed = PackedDataset(sequences, [25, 25], 10, split=True)
    packed.__getitems__([0, 1, 2])
    assert sequences.fetched == 2


def test_lengths_come_from_a_file_or_a_column(tmp_path):
    np.save(tmp_path / "lengths.npy", np.array([3, 4], np.int32))
    sequences = Sequences([3, 4])
    by_file = PackedDataset(sequences, tmp_path / "lengths.npy", 8)
    assert by_file.id == PackedDataset(sequences, [3, 4], 8).id

    class Columns(Sequences):
        def __getitem__(self, name):
            return [3, 4] if name == "length" else super().__getitem__(name)

    assert PackedDataset(Columns([3, 4]), "length", 8).id == by_file.id
    assert PackedDataset(sequences, [3, 4], 9).id != by_file.id


@pytest.mark.parametrize(
    ("lengths", "message"),
    [
        ([3], r"lengths is int64 of shape \(1,\), and the dataset has 2 samples"),
        ([3.0, 4.0], "lengths is float64"),
        ([3, -4], "the length of sample 1 is -4"),
        ("nowhere.npy", "lengths='nowhere.npy' cannot be read"),
        ("column", "lengths='column' is not a column of the dataset"),
    ],
)
def test_lengths_that_cannot_be_are_refused(lengths, message):
    with pytest.raises(UsageError, match=message):
        PackedDataset(Sequences([3, 4]), lengths, 8)


def test_samples_that_are_not_as_their_lengths_say_are_refused():
    packed = PackedDataset(Sequences([3, 4]), [3, 5], 8)
    with pytest.raises(UsageError, match=r"input_ids of sample 1 has 4 tokens, .* given as 5"):
        packed[0]
    with pytest.raises(UsageError, match="a window of 0 tokens"):
        PackedDataset(Sequences([3]), [3], 0)
    with pytest.raises(UsageError, match="input_ids of sample 0 is not a sequence of numbers"):
        PackedDataset(["text"], [4], 8)[0]
    with pytest.raises(IndexError):
        packed[len(packed)]


def test_cumulative_lengths_are_those_of_the_sequences():
    documents = torch.tensor([[0, 0, 1, -1], [0, 1, 1, 1]])
    ends, longest = cumulative_lengths(documents)
    assert ends.tolist() == [0, 2, 3, 4, 5, 8]
    assert ends.dtype == torch.int32
    assert longest == 3


def test_a_window_longer_than_sixteen_bits_is_packed():
    lengths = [70_000, 60_000, 10_000]
    packed = PackedDataset(Sequences(lengths), lengths, 80_000)
    assert len(packed) == 2
    assert sorted(join(read_tokens(packed))) == list(range(140_000))


@pytest.mark.nightly
def test_ten_million_lengths_are_planned_and_found():
    rng = np.random.default_rng(0)
    lengths = np.clip(rng.lognormal(5.5, 1, 10**7), 1, 2048).astype(np.uint16)
    packed = PackedDataset(Sequences(lengths), lengths, 2048)
    assert packed.tokens / (len(packed) * 2048) > 0.99
    assert sum(len(packed.samples_of(number)) for number in range(1000)) > 1000


@pytest.mark.parametrize("split", [True, False])
def test_the_windows_of_a_sample_are_those_that_hold_it(split):
    generator = np.random.default_rng(3)
    lengths = generator.integers(0, 40, 1500)
    packed = PackedDataset(Sequences(lengths, [0, 700, 0, 600, 200]), lengths, 16, split=split)
    held = [packed.samples_of(window).tolist() for window in range(len(packed))]
    for sample in range(0, len(lengths), 7):
        expected = [window for window, samples in enumerate(held) if sample in samples]
        assert sorted(packed.windows_of(sample).tolist()) == expected
    with pytest.raises(IndexError):
        packed.windows_of(1500)
