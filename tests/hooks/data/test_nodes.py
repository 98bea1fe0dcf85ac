"""What can be a node, what it stays, and what is refused."""

import copy
import functools
import importlib.util
import pickle
import sys
import threading

import numpy as np
import pytest
import torch

from mvc import UsageError
from mvc_data import file, node, read_pipeline

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
    assert list(found) == ["repeat", "first", "web"]  # a method, too
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


_HEAD = """
import collections, contextlib, dataclasses, enum, functools, typing
import numpy, torch
from mvc_data import node

LIMIT = 3
"""
_CALLS = "    def __call__(self, text): return self.get(text)\nNODE = node(Cut())"
_CUT = f"return text[:LIMIT]\n{_CALLS}"


@pytest.mark.parametrize(
    "text",
    [
        f"class Cut:\n    table = [LIMIT]\n    def get(self, text): return self.table\n{_CALLS}",
        f"class Cut:\n    limit_ = LIMIT\n    def get(self, text): return self.limit_\n{_CALLS}",
        f"class Cut:\n    @functools.lru_cache\n    def get(self, text): {_CUT}",
        f"class Cut:\n    @torch.no_grad()\n    def get(self, text): {_CUT}",
        f"class Cut:\n    @node\n    def get(self, text): {_CUT}",
        f"class Cut:\n    class get:\n        def __init__(self, text): {_CUT}",
        ("class Cut:\n    def get(self, text, limit): return text[:limit]\n"
        f"    get = functools.partialmethod(get, LIMIT)\n{_CALLS}"),
        ("def make(limit):\n    class Cut:\n        def __call__(self, text): return text[:limit]\n"
        "    return Cut()\nNODE = node(make(LIMIT))"),
        ("@dataclasses.dataclass\nclass Cut:\n    limits: list = dataclasses.field(default_factory=lambda: [LIMIT])\n"
        "NODE = node(lambda text: Cut().limits)"),
        "class Kind(enum.Enum):\n    LONG = LIMIT\nNODE = node(lambda text: Kind.LONG.value)",
        "class Words(dict):\n    def __missing__(self, key): return LIMIT\nNODE = node(Words())",
        "class Words(dict):\n    pass\nwords = Words()\nwords.unknown = LIMIT\nNODE = node(words)",
        "class Chain(list):\n    def __call__(self, text): return text[:LIMIT]\nNODE = node(Chain())",
        "NODE = node(collections.defaultdict(lambda: LIMIT))",
        "NODE = node(collections.namedtuple('Sizes', ['a', 'b'][::LIMIT - 3 or -1])(1, 2))",
        ("class Shift(torch.nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.limit = LIMIT\nNODE = node(Shift())"),
        "NODE = node(torch.nn.Dropout(LIMIT / 10))",
        "NODE = node(torch.nn.Sequential(*[torch.nn.ReLU(), torch.nn.Tanh()][:: LIMIT - 3 or -1]))",
        "def cut(text): return text[: cut.limit]\ncut.limit = LIMIT\nNODE = node(cut)",
        "@torch.no_grad()\ndef cut(text): return text[:LIMIT]\nNODE = node(cut)",
        "@contextlib.contextmanager\ndef cut(text): yield text[:LIMIT]\nNODE = node(cut)",
        ("@functools.singledispatch\ndef cut(text): return text\n@cut.register\n"
        "def _(text: str): return text[:LIMIT]\nNODE = node(cut)"),
        "exec('class Cut:\\n    def __call__(self, text): return text[:LIMIT]')\nNODE = node(Cut())",
        "NODE = node([numpy.sin, numpy.cos, numpy.tan, numpy.exp][LIMIT - 2])",
    ],
)  # fmt: skip
def test_what_a_node_reads_counts_wherever_it_stands(text, tmp_path, monkeypatch):
    def read(limit, folder):
        file = tmp_path / folder / "steps.py"
        file.parent.mkdir()
        file.write_text(_HEAD.replace("3", str(limit)) + text)
        spec = importlib.util.spec_from_file_location("steps", file)
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, "steps", module)
        spec.loader.exec_module(module)
        return version(module.NODE)

    assert read(3, "first") == read(3, "again") != read(4, "changed")


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
    assert "\n" not in caught.value.message


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
