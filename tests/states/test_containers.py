"""Containers come back with their order and type, and are written the same in every order."""

import random
from collections import OrderedDict, defaultdict

from support.states import round_trip, store


def test_order_of_keys_comes_back():
    state = {"b": 1, "a": {"z": 1, 3: 2, "y": 3}, "c": OrderedDict([("q", 1), ("p", 2)])}
    again = round_trip(state)
    assert list(again) == ["b", "a", "c"]
    assert list(again["a"]) == ["z", 3, "y"]
    assert list(again["c"]) == ["q", "p"]


def test_sets_are_written_the_same_in_every_order():
    words = [f"word{number}" for number in range(50)]
    shuffled = words[:]
    random.Random(0).shuffle(shuffled)
    assert store({"x": set(words)}).files == store({"x": set(shuffled)}).files


def test_default_factory_works_again():
    again = round_trip({"x": defaultdict(list, {1: [2]})})["x"]
    assert again[5] == []
