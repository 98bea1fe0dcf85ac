"""What a state may not hold is refused, with its path and a way out."""

import collections
import dataclasses
import enum
import functools
import json
import typing

import numpy as np
import pytest
import torch

from mvc.errors import UnsupportedError
from mvc.sources import read_bytes
from mvc.states.state import encode_state
from support.cases import for_each
from support.states import assert_same, store


class Colour(enum.Enum):
    RED = 1


class Number(enum.IntEnum):
    ONE = 1


class Text(str):
    __slots__ = ()


class Subdict(dict):
    pass


class Subtensor(torch.Tensor):
    pass


@dataclasses.dataclass
class Config:
    size: int = 1


class Point(typing.NamedTuple):
    x: int
    y: int


ordered = collections.OrderedDict()


ordered.extra = 1


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
@for_each(
    ("make", "what"),
    [
        (lambda: print, "a function"),
        (lambda: lambda: 1, "a function"),
        (lambda: "".join, "a function"),
        (lambda: functools.partial(int, 1), "a function"),
        (lambda: json, "the module json"),
        (lambda: int, "the class int"),
        (lambda: Colour.RED, "an enum member"),
        (lambda: Number.ONE, "an enum member"),
        (lambda: Text("a"), "a subclass of str"),
        (Subdict, "a subclass of dict"),
        (Config, "a dataclass"),
        (lambda: Point(1, 2), "a named tuple"),
        (lambda: iter([]), "an iterator"),
        (object, "an object of type object"),
        (lambda: ..., "ellipsis"),
        (lambda: memoryview(b""), "memoryview"),
        (np.random.default_rng, "an object of type numpy.random"),
        (lambda: np.array([None]), "an array of dtype object"),
        (lambda: np.zeros(2, "i4,f4"), "a structured array"),
        (lambda: np.zeros(2, "i4,f4")[0], "a structured array"),
        (lambda: np.longdouble(1), "an array of dtype"),
        (lambda: np.array(["x"], np.dtypes.StringDType()), "an array of dtype StringDType"),
        (lambda: np.ma.array([1]), "an array of the subclass numpy.ma.MaskedArray"),
        (lambda: np.zeros((1, 1)).view(np.matrix), "an array of the subclass numpy.matrix"),
        (lambda: np.dtype("O"), "ObjectDType"),
        (lambda: collections.defaultdict(lambda: 1), "a function"),
        (lambda: ordered, "an object of type int"),
        (lambda: torch.nn.Linear(1, 1), "an object of type torch.nn.modules.linear.Linear"),
        (torch.Generator, "an object of type torch._C.Generator"),
        (lambda: torch.zeros(1, device="meta"), "without data"),
        (lambda: torch.zeros(1).as_subclass(Subtensor), "a tensor of the subclass"),
        (lambda: torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.quint8), "quantised"),
        (lambda: torch.nested.nested_tensor([torch.ones(1), torch.ones(2)]), "nested"),
        (torch.nn.UninitializedParameter, "a tensor of the subclass"),
        (lambda: torch.zeros(3).to_mkldnn(), "layout torch._mkldnn"),
        (lambda: torch.strided, "an object of type torch.layout"),
    ],
)  # fmt: skip
def test_what_is_no_data_is_refused_with_its_path(make, what):
    state = {"optimizer": {"param_groups": [{"lr_fn": make()}]}}
    if what == "an object of type int" or isinstance(make(), collections.defaultdict):
        path = 'state["optimizer"]["param_groups"][0]["lr_fn"].'
    else:
        path = 'state["optimizer"]["param_groups"][0]["lr_fn"] is '
    with pytest.raises(UnsupportedError) as caught:
        encode_state(state)
    assert str(caught.value).startswith(path)
    assert what.lower() in str(caught.value).lower()
    assert caught.value.hint


def test_message_reads_well():
    with pytest.raises(UnsupportedError) as caught:
        encode_state({"optimizer": {"param_groups": [{"lr_fn": print}]}})
    assert caught.value.message == (
        'state["optimizer"]["param_groups"][0]["lr_fn"] is a function; mvc stores only data'
    )
    assert caught.value.hint == "leave it out and set it again after loading"
    with pytest.raises(UnsupportedError) as caught:
        encode_state({"model": torch.nn.Linear(1, 1)})
    assert caught.value.hint == "pass its state_dict()"


def test_fake_and_transformed_tensors_are_refused():
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        fake = torch.ones(2)
    with pytest.raises(UnsupportedError, match=r'state\["x"\] is a tensor of the subclass'):
        encode_state({"x": fake})

    def look(tensor):
        with pytest.raises(UnsupportedError, match=r'state\["x"\] is'):
            encode_state({"x": tensor})
        return tensor

    torch.func.vmap(look)(torch.ones(2, 3))


def test_distributed_tensors_of_one_process_are_plain(tmp_path):
    import torch.distributed as dist
    from torch.distributed.tensor import DTensor, Replicate, init_device_mesh

    dist.init_process_group(
        "gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1
    )
    try:
        mesh = init_device_mesh("cpu", (1,))
        tensor = DTensor.from_local(torch.ones(2), mesh, [Replicate()])
        files = encode_state({"x": tensor, "step": 1})
    finally:
        dist.destroy_process_group()
    plain = encode_state({"x": torch.ones(2), "step": 1})
    for mine, other in zip(files, plain, strict=True):
        size = other.source.size_bytes
        assert read_bytes(mine.source, 0, size) == read_bytes(other.source, 0, size)


@pytest.mark.parametrize(
    "key", [print, np.longdouble(1), (1, print), Text("a"), Number.ONE, torch.ones(1)]
)
def test_odd_keys_are_refused(key):
    with pytest.raises(UnsupportedError, match=r'^state\["x"\]\[.* is '):
        encode_state({"x": {key: 1}})
    with pytest.raises(UnsupportedError, match=r'^state\["x"\]\[.* is '):
        encode_state({"x": {key}})


def test_a_dict_subclass_is_no_state():
    with pytest.raises(UnsupportedError, match=r"^state is an object of type"):
        encode_state(Subdict(a=1))
    assert_same(store(collections.OrderedDict(a=1)).load(), collections.OrderedDict(a=1))
