"""What can be a node, what it stays, and what is refused."""

import copy
import functools
import pickle
import threading

import numpy as np
import pytest
import torch

from mvc import UsageError
from mvc_hooks.data import file, node, read_pipeline

pytestmark = pytest.mark.torch


@node(times=2)
def repeat(text, times):
    return text * times


@node
def shout(text):
    return repeat(text).upper()


class Lines(torch.utils.data.Dataset):
    def __init__(self, count, *, name="lines"):
        self.count, self.name, self.items = count, name, range(count)

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        raise AssertionError("no item is read")

    @node
    def first(self):
        return self.name


def version(value):
    return read_pipeline(value)[list(read_pipeline(value))[-1]].version


def test_a_function_is_called_as_before():
    assert repeat("a") == "aa"
    assert repeat("a", times=3) == "aaa"
    assert shout("a") == "AA"
    assert shout.__name__ == "shout"
    assert Lines(3).first() == "lines"
    found = read_pipeline(shout)
    assert list(found) == ["repeat", "shout"]
    assert found["shout"].inputs == ["repeat"]
    assert found["repeat"].params["times"] == "2"


def test_a_node_goes_to_a_worker():
    assert pickle.loads(pickle.dumps(shout)) is shout
    other = node(functools.partial(max, default=3), name="most")
    assert pickle.loads(pickle.dumps(other))([]) == 3
    data = node(Lines(4), repeat)
    for twin in (pickle.loads(pickle.dumps(data)), copy.deepcopy(data)):
        assert len(twin) == 4


def test_an_object_stays_what_it_is():
    data = Lines(10**9)
    assert node(data, repeat, name="web") is data
    found = read_pipeline(torch.utils.data.DataLoader(data))
    assert list(found) == ["repeat", "web"]
    assert found["web"].params["len"] == "1000000000"
    assert version(node(Lines(10**9), name="web")) != version(node(Lines(5), name="web"))


@pytest.mark.parametrize(
    "make",
    [
        lambda one: np.arange(4) + one,
        lambda one: torch.ones(3, dtype=torch.bfloat16) * one,
        lambda one: {"a": [1, (2.0, one)], "b": {1, one + 7}},
        lambda one: torch.Generator().manual_seed(one),
        np.random.default_rng,
        lambda one: torch.nn.Linear(2, 2).requires_grad_(False).apply(
            lambda layer: torch.nn.init.constant_(layer.weight, one)
        ).bfloat16().apply(lambda layer: torch.nn.init.zeros_(layer.bias)),
        lambda one: torch.utils.data.Subset(Lines(5), [0, one]),
    ],
)  # fmt: skip
def test_a_value_counts_by_its_content(make):
    same = {version(node(make(1), name="value")) for _ in range(2)}
    assert len(same) == 1
    assert version(node(make(2), name="value")) not in same


def test_two_lambdas_of_a_line_differ():
    left, right = node(lambda x: x + 1, name="f"), node(lambda x: x + 2, name="f")
    assert version(left) != version(right)


def test_code_without_a_source_counts_by_its_bytecode():
    def make(text):
        scope = {"__name__": "__main__"}
        exec(text, scope)
        return version(node(scope["f"]))

    assert make("def f(x): return x + 1") == make("\n\ndef f(x): return x + 1")
    assert make("def f(x): return x + 1") != make("def f(x): return x + 2")


class Locked:
    def __init__(self):
        self.lock = threading.Lock()


def call_itself(text):
    return ping(text)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda: node("tokenize"), "is not a step of a pipeline"),
        (lambda: node(Lines), "is a class"),
        (lambda: node(one for one in "ab"), "is a generator that has begun"),
        (lambda: node(len, name=""), "name of a node"),
        (lambda: node(len, version=3), "version of a node is 3"),
        (lambda: node(call_itself, txt=1), "takes no parameter 'txt'"),
        (lambda: file("nowhere.json"), "no such file"),
        (lambda: read_pipeline(node(Locked())), "lock is a _thread.lock"),
        (
            lambda: read_pipeline(
                [node(lambda: 1, name="a"), node(lambda: 2, name="a")],
            ),
            "two nodes have the name 'a'",
        ),
    ],
)
def test_what_cannot_be_a_node_is_said_in_a_line(wrong, words):
    with pytest.raises(UsageError, match=words) as caught:
        wrong()
    assert "\n" not in str(caught.value)


def test_a_circle_of_nodes_is_refused():
    with pytest.raises(UsageError, match="comes before itself: ping -> pong -> ping"):
        read_pipeline(ping)


@node
def ping(text):
    return pong(text)


@node
def pong(text):
    return ping(text)


def test_a_version_by_hand_counts_for_what_cannot_be_read():
    assert version(node(Locked(), version="1")) != version(node(Locked(), version="2"))
