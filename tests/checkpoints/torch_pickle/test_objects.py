"""PyTorch's own objects in a pickle: each kind of tensor and storage, and nothing guessed."""

import pytest

from support.forged_files import WEIGHTS, text
from support.parsed import named_views, parse, torch_archive
from support.torch_files import MARKS, check, raw_bytes, save, torch

pytestmark = MARKS


def test_parameters_and_tensors_with_attributes():
    parameter = torch.nn.Parameter(torch.arange(4.0))
    parameter.mask = torch.ones(4, dtype=torch.bool)
    frozen = torch.nn.Parameter(torch.ones(1), requires_grad=False)
    check(
        {"p": parameter, "f": frozen},
        {"p": parameter, "p.mask": parameter.mask, "f": frozen},
    )


class Tagged(torch.Tensor):
    pass


def test_subclasses_of_tensor():
    tensor = torch.arange(6.0).reshape(2, 3).as_subclass(Tagged)
    tensor.extra = torch.ones(1)
    check({"t": tensor}, {"t": tensor.as_subclass(torch.Tensor), "t.extra": tensor.extra})


def test_parts_of_sparse_and_nested_tensors_are_named():
    coo = torch.eye(3).to_sparse().coalesce()
    csr = torch.eye(3).to_sparse_csr()
    nested = torch.nested.nested_tensor([torch.ones(2), torch.zeros(3)])
    expected = {
        "coo.indices": coo.indices(),
        "coo.values": coo.values(),
        "csr.compressed_indices": csr.crow_indices(),
        "csr.plain_indices": csr.col_indices(),
        "csr.values": csr.values(),
        "nested.buffer": nested._values() if nested.is_sparse else nested.values(),
        "nested.sizes": nested._nested_tensor_size(),
        "nested.strides": nested._nested_tensor_strides(),
        "nested.offsets": nested._nested_tensor_storage_offsets(),
    }
    check({"coo": coo, "csr": csr, "nested": nested}, expected)


def test_quantized_tensors():
    tensor = torch.quantize_per_tensor(torch.rand(2, 3), 0.1, 0, torch.quint8)
    signed = torch.quantize_per_tensor(torch.rand(2, 3), 0.1, 0, torch.qint32)
    scales, zeros = torch.rand(3).double(), torch.zeros(3)
    channels = torch.quantize_per_channel(torch.rand(3, 2), scales, zeros, 0, torch.qint8)
    data = save({"t": tensor, "s": signed, "c": channels})
    views = named_views(data, parse(data, "q.pt"))
    assert views["t"] == ("QU8", (2, 3), raw_bytes(tensor))
    assert views["s"] == ("QI32", (2, 3), raw_bytes(signed))
    assert views["c"] == ("QI8", (3, 2), raw_bytes(channels))
    assert views["c.scales"][2] == raw_bytes(channels.q_per_channel_scales())
    assert set(views) == {"t", "s", "c", "c.scales", "c.zero_points"}


def test_packed_quantized_storages_stay_gaps():
    packed = torch.quantize_per_channel(
        torch.rand(2, 4), torch.ones(2), torch.zeros(2), 0, torch.quint4x2
    )
    data = save({"packed": packed, "w": torch.ones(1)})
    assert "packed" not in named_views(data, parse(data, "q.pt"))
    assert "w" in named_views(data, parse(data, "q.pt"))


def test_what_bytes_do_not_say_gets_no_name():
    tensor = torch.ones(2, dtype=torch.complex64)
    data = save({"conj": tensor.conj(), "meta": torch.ones(2, device="meta"), "w": tensor})
    names = set(named_views(data, parse(data, "x.pt")))
    assert "w" in names
    assert not {"conj", "meta"} & names


@pytest.mark.parametrize(
    "pid",
    [
        text("storage") + b"ctorch\nFloatStorage\n" + text("../data.pkl") + b"NK\x04",
        text("storage") + b"ctorch\nFloatStorage\nK\x00NK\x04",
        text("storage") + b"ctorch\nFloatStorage\n" + text("0") + b"NJ\xff\xff\xff\xff",
        text("storage")
        + b"ctorch\nFloatStorage\n"
        + text("0")
        + b"N\x8a\x0a"
        + b"\xff" * 9
        + b"\x7f",
        text("storage") + b"ctorch\nFloatStorage\n" + text("0") + b"NN",
        text("storage") + b"ctorch\nFloatStorage\n" + text("0") + b"NK\x05",
        text("storage"),
    ],
)
def test_persistent_ids_cannot_point_anywhere_else(pid):
    layout = parse(torch_archive(b"(" + pid + b"tQ.", {"0": WEIGHTS}), "x.pt")
    assert (layout.format, layout.segments) == ("opaque", ())


def test_storages_of_unknown_types_are_not_guessed():
    pid = b"(" + text("storage") + b"cos\nsystem\n" + text("0") + b"NK\x04tQ"
    data = torch_archive(pid + b".", {"0": WEIGHTS})
    assert named_views(data, parse(data, "x.pt")) == {}
