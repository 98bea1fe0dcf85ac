"""Files that torch saves, and what a parser must find in them."""

from __future__ import annotations

import io

import pytest

from mvc.checkpoints.torch_pickle.objects import TORCH_DTYPES
from support.parsed import named_views, parse

torch = pytest.importorskip("torch")
MARKS = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore:.*quantized tensor creation functions"),
    pytest.mark.filterwarnings("ignore:.*quantize_per_"),
    pytest.mark.filterwarnings("ignore:ComplexHalf support"),
    pytest.mark.filterwarnings("ignore:Sparse .* tensor support"),
    pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors"),
]
"""Of tests that make tensors of every kind, some of which torch warns of."""


def save(obj, **options) -> bytes:
    buffer = io.BytesIO()
    torch.save(obj, buffer, **options)
    return buffer.getvalue()


def raw_bytes(tensor) -> bytes:
    """The elements of a tensor in C order, by torch's own account."""
    if tensor.is_quantized:
        tensor = tensor.int_repr()
    return tensor.detach().contiguous().flatten().view(torch.uint8).numpy().tobytes()


def check(obj, expected, **options):
    """Save, parse, and compare every named view with the real tensor."""
    data = save(obj, **options)
    layout = parse(data, "model.pt")
    assert (layout.format, layout.warning) == ("torch", None)
    views = named_views(data, layout)
    assert sorted(views) == sorted(expected)
    for name, tensor in expected.items():
        dtype, shape, content = views[name]
        assert TORCH_DTYPES[str(tensor.dtype).removeprefix("torch.")] == dtype, name
        assert tuple(tensor.shape) == shape, name
        assert content == raw_bytes(tensor), name
    return layout
