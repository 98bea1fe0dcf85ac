"""The loader over streams, iterables, windows and mixtures of them, in one process and with workers."""

from __future__ import annotations

from collections import Counter
from itertools import chain

import numpy as np
import pytest
import torch

from mvc import ConflictError, FormatError, MvcError, UsageError
from mvc_data import ConsistentDataLoader
from mvc_data.iterables import IterableSource
from mvc_data.packing import PackedDataset
from mvc_data.streams import ShardedStream
from support.sample_shards import read_id, write_shards


def make_stream(folder, sizes=(13, 7, 30, 22), **options):
    if not folder.exists():
        write_shards(folder, "jsonl.zst", sizes)
    return ShardedStream(folder, records="count", shuffle_block=8, transform=read_id, **options)


def draw(loader):
    return [batch.tolist() for batch in loader]


def test_a_position_goes_on_with_workers_and_reads_no_other_shard(tmp_path):
    write_shards(tmp_path / "s", "jsonl", [10] * 12)
    whole = ConsistentDataLoader(make_stream(tmp_path / "s"), 10, seed=3)
    batches = draw(whole)
    state = {**whole.state_dict(), "cursor": 100, "batches_drawn": 10}
    opened = []
    resumed = ConsistentDataLoader(make_stream(tmp_path / "s", on_open=opened.append), 10, seed=3)
    resumed.load_state_dict(state)
    assert draw(resumed) == batches[10:]
    assert len(opened) <= 4
    worked = ConsistentDataLoader(make_stream(tmp_path / "s"), 10, seed=3, num_workers=2)
    worked.load_state_dict(state)
    assert draw(worked) == batches[10:]


@pytest.mark.parametrize("workers", [0, 2])
def test_an_epoch_of_unknown_length_ends_for_all_ranks_alike(workers):
    def make(rank):
        source = IterableSource(lambda: iter(range(100)), shuffle_block=8)
        return ConsistentDataLoader(source, 10, rank=rank, world_size=2, num_workers=workers)

    loaders = [make(rank) for rank in range(2)]
    first, second = (draw(loader) for loader in loaders)
    assert len(first) == len(second) == 9  # 96 samples are in whole blocks
    assert loaders[0].state_dict() == loaders[1].state_dict()
    assert loaders[0].epoch == 1
    assert loaders[0].skips.windows[0].reason == "stream ends after 100 samples"
    again = draw(loaders[0])
    assert len(again) == 9
    assert again != first
    with pytest.raises(TypeError, match="not known before the stream ends"):
        len(loaders[0])


def test_a_mixture_of_a_stream_and_others_has_exact_shares(tmp_path):
    more = IterableSource(lambda: iter(range(1000, 1040)), 40, shuffle_block=4)
    plain = torch.utils.data.TensorDataset(torch.arange(2000, 2050))
    data = {"stream": make_stream(tmp_path / "s"), "more": more, "plain": plain}
    weights = {"stream": 0.5, "more": 0.25, "plain": 0.25}
    loader = ConsistentDataLoader(
        data, 64, weights=weights, epoch_size=512, collate_fn=lambda batch: batch
    )
    numbers = [
        int(sample[0]) if isinstance(sample, tuple) else sample
        for batch in loader
        for sample in batch
    ]
    assert Counter(number // 1000 for number in numbers) == {0: 256, 1: 128, 2: 128}


def test_other_weights_or_another_packing_are_refused_at_a_resume(tmp_path):
    def mix(share):
        data = {"a": make_stream(tmp_path / "s"), "b": [-1, -2, -3]}
        return ConsistentDataLoader(data, 8, weights={"a": share, "b": 1 - share})

    state = mix(0.5).state_dict()
    mix(0.5).load_state_dict(state)
    with pytest.raises(ConflictError, match=r"weight of a: 0\.75, there 0\.5"):
        mix(0.75).load_state_dict(state)

    def pack(lengths):
        return ConsistentDataLoader(PackedDataset([], lengths, 8), 1)

    with pytest.raises(UsageError, match="is empty"):
        pack(np.zeros(0, np.int64))
    first, second = (
        ConsistentDataLoader(PackedDataset([torch.ones(4)] * 4, lengths, 8), 1)
        for lengths in ([4, 4, 4, 4], [5, 3, 4, 4])
    )
    with pytest.raises(ConflictError, match="content of data"):
        second.load_state_dict(first.state_dict())


@pytest.mark.parametrize("workers", [0, 1])
def test_a_fault_in_a_shard_is_told_by_name(tmp_path, workers):
    stream = make_stream(tmp_path / "s")
    with open(stream.paths[2], "r+b") as file:
        file.truncate(40)
    loader = ConsistentDataLoader(stream, 12, num_workers=workers)
    with pytest.raises(FormatError, match=r"shard .*part-002\.jsonl\.zst") as caught:
        draw(loader)
    assert "\n" not in caught.value.message


def test_what_has_no_index_or_length_is_told_what_to_do():
    class Endless(torch.utils.data.IterableDataset):
        def __iter__(self):
            return iter(range(3))

    with pytest.raises(UsageError, match="no __getitem__") as caught:
        ConsistentDataLoader(Endless(), 4)
    assert "IterableSource" in caught.value.hint
    with pytest.raises(MvcError, match="does not say how many samples it has, and is not alone"):
        ConsistentDataLoader({"a": IterableSource(Endless), "b": [1]}, 4)
    loader = ConsistentDataLoader(IterableSource(Endless, 3), 3)
    assert sorted(chain(*draw(loader))) == [0, 1, 2]
