"""Iterables as sources: by place, from the start again, and where they end."""

from __future__ import annotations

import itertools
import pickle

import numpy as np
import pytest

from mvc import FormatError, UsageError
from mvc_data.iterables import IterableSource, StreamEndedError


def count_up():
    return iter(range(500))


def test_samples_come_by_their_place_and_the_stream_is_read_once():
    made = []
    source = IterableSource(lambda: made.append(1) or iter(range(500)), 500, shuffle_block=32)
    places = source.order.find_indices(np.arange(500), 3)
    found = [
        sample
        for at in range(0, 500, 7)
        for sample in source.__getitems__(places[at : at + 7].tolist())
    ]
    assert found == places.tolist()
    assert len(made) == 1
    assert source[0] == 0
    assert len(made) == 2


def test_a_function_that_starts_anywhere_skips_nothing_by_reading():
    read = []

    def make(start):
        for number in range(start, 10**9):
            read.append(number)
            yield number

    source = IterableSource(make, 10**9, can_start=True, shuffle_block=8)
    assert source.__getitems__([900_000_003, 900_000_001]) == [900_000_003, 900_000_001]
    assert source[900_000_100] == 900_000_100
    assert len(read) < 400


def test_an_endless_source_ends_for_all_before_the_same_batch():
    source = IterableSource(count_up, shuffle_block=50)
    source.check_reach(499)
    assert source[499] == 499
    short = IterableSource(lambda: iter(range(510)), shuffle_block=50)
    short.check_reach(470)
    with pytest.raises(StreamEndedError, match="stream ends after 510 samples"):
        short.check_reach(500)
    with pytest.raises(StreamEndedError):
        short[510]
    assert short[3] == 3


def test_an_endless_generator_may_have_more_than_an_epoch():
    source = IterableSource(itertools.count, 100, transform=lambda number: -number)
    assert source.__getitems__([99, 0]) == [-99, 0]


def test_a_copy_begins_at_the_start():
    source = IterableSource(count_up, 500)
    source[17]
    assert pickle.loads(pickle.dumps(source))[3] == 3


def test_what_cannot_be_read_again_is_refused():
    with pytest.raises(UsageError, match="stream is a range_iterator, not a function"):
        IterableSource(iter(range(5)))
    shared = iter(range(500))
    source = IterableSource(lambda: shared, 500, name="numbers")
    source[100]
    with pytest.raises(UsageError, match="numbers returns the same iterator each time"):
        source[3]
    with pytest.raises(UsageError, match="size is 0"):
        IterableSource(count_up, 0)


def test_a_stream_that_is_shorter_than_its_size_or_fails_is_told():
    with pytest.raises(FormatError, match="stream ends after 500 records, and 600 are expected"):
        IterableSource(count_up, 600)[599]

    def fail():
        yield 0
        raise RuntimeError("no route to host")

    with pytest.raises(
        FormatError, match="record 1 of shard lines cannot be read: no route to host"
    ):
        IterableSource(fail, name="lines")[1]
