"""Names of tensors in a pickle: the paths that lead to them, each once."""

import collections

from mvc.checkpoints.torch_pickle import names as torch_names
from support.forged_files import WEIGHTS, tensor_pickle, text
from support.parsed import named_views, parse, torch_archive
from support.torch_files import MARKS, check, torch

pytestmark = MARKS


def test_nested_containers_give_paths():
    one, two, three, four, five = (torch.tensor([float(i)]) for i in range(5))
    counted = collections.defaultdict(list)
    counted["x"].append(three)
    state = {
        "a": [one, (two, {"b": None, 7: three})],
        ("p", 1): four,
        b"raw": five,
        "counted": counted,
        "ordered": collections.OrderedDict(x=one),
        "": two,
        None: three,
        1.5: four,
        "ünï": five,
    }
    expected = {
        "a.0": one, "a.1.0": two, "a.1.1.7": three, "(p,1)": four, "raw": five,
        "counted.x.0": three, "ordered.x": one, "tensor": two, "None": three, "1.5": four,
        "ünï": five,
    }  # fmt: skip
    check(state, expected, pickle_protocol=4)


def test_names_that_meet_are_numbered_in_order():
    first, second, third = (torch.tensor([i]) for i in range(3))
    state = {"a.b": first, "a": {"b": second, "b#2": third}}
    check(state, {"a.b": first, "a.b#2": second, "a.b#2#2": third})


def test_a_container_met_twice_is_named_once_and_cycles_end():
    tensor = torch.ones(2)
    shared = {"w": tensor}
    loop = [shared, shared]
    loop.append(loop)
    shared["back"] = loop
    check(loop, {"0.w": tensor})


class Custom(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Dropout())
        self.embedding = torch.nn.Embedding(3, 2)
        self.inner[0].weight = self.embedding.weight
        self.register_buffer("scale", torch.tensor(2.0))
        self.plain = torch.arange(3)


def test_a_whole_module_is_named_like_its_state_dict():
    model = Custom()
    check(model, dict(model.state_dict()) | {"plain": model.plain})


def test_names_are_capped_in_number_and_size(monkeypatch):
    one = tensor_pickle() + b"\x940"
    many = torch_archive(one + b"](" + b"h\x00" * 50 + b"e.", {"0": WEIGHTS})
    assert len(named_views(many, parse(many, "x.pt"))) == 50
    monkeypatch.setattr(torch_names, "MAX_TENSORS", 49)
    assert parse(many, "x.pt").format == "opaque"
    monkeypatch.undo()
    long_key = text("k" * 4000)
    data = torch_archive(one + b"}" + long_key + b"](" + b"h\x00" * 50 + b"es.", {"0": WEIGHTS})
    assert len(named_views(data, parse(data, "x.pt"))) == 50
    monkeypatch.setattr(torch_names, "MAX_NAMES_BYTES", 50_000)
    assert parse(data, "x.pt").format == "opaque"


def test_deep_tensors_are_left_out_and_shallow_ones_named():
    deep = b"]" * 3000 + tensor_pickle() + b"a" * 3000
    data = torch_archive(b"](" + deep + tensor_pickle() + b"e.", {"0": WEIGHTS})
    assert list(named_views(data, parse(data, "x.pt"))) == ["1"]
