import collections
import pickle

import pytest

from mvc.checkpoints.dcp.objects import MAX_OBJECT_BYTES, parse_object
from mvc.errors import UnsupportedError
from support.parsed import torch_archive
from support.torch_files import save, torch

pytestmark = pytest.mark.torch
VALUE = {
    "lr": 0.1, "betas": (0.9, 0.999), 3: [1, -5, 2**60, None, True], "raw": b"\x00\xff",
    "deep": {"": [{}, (), []]}, None: "text",
}  # fmt: skip


def test_plain_data():
    assert parse_object(save(VALUE)) == VALUE
    ordered = parse_object(save(collections.OrderedDict(b=1, a=2)))
    assert [*ordered.items()] == [("b", 1), ("a", 2)]


@pytest.mark.parametrize(
    "value",
    [
        {1, 2}, [frozenset()], {"x": torch.ones(1)}, torch.Size([1]), torch.float32, bytearray(b"x"),
        collections.Counter("a"), "x" * 5000, {(1,): 2}, range(3),
    ],
)  # fmt: skip
def test_what_is_no_plain_data(value):
    with pytest.raises(UnsupportedError):
        parse_object(save(value))


def test_other_protocols_have_sets_of_their_own():
    with pytest.raises(UnsupportedError, match="protocol"):
        parse_object(save([1], pickle_protocol=4))


@pytest.mark.parametrize(
    "data",
    [
        b"", b"PK", b"x" * (MAX_OBJECT_BYTES + 1), torch_archive(b"\x80\x02"),
        torch_archive(b"\x80\x02]q\x00h\x00a."),  # a list in itself
        torch_archive(b"\x80\x02]" + b"q\x00](h\x00h\x00h\x00h\x00e" * 30 + b"."),  # 4**30 lists
        torch_archive(b"\x80\x02ccollections\nOrderedDict\n]\x85R."),
    ],
)  # fmt: skip
def test_hostile_objects(data):
    with pytest.raises(UnsupportedError):
        parse_object(data)


def test_a_dict_of_many_numbers():
    assert len(parse_object(save({f"k{one}": 1 for one in range(6000)}))) == 6000
    with pytest.raises(UnsupportedError):
        parse_object(torch_archive(pickle.dumps(dict.fromkeys(range(6000)), 2)))
