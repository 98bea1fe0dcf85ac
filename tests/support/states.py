"""Training states in tests: store them as bytes, read them back, compare them bit by bit."""

from __future__ import annotations

import math
import struct
import sys
from collections import Counter, OrderedDict, defaultdict, deque
from dataclasses import dataclass

import numpy as np

from mvc.formats.layout import check_layout
from mvc.states.elements import TORCH_ELEMENTS
from mvc.states.state import decode_state, encode_state, measure_tensors


@dataclass
class StoredState:
    """The files of a state as bytes, as a commit would hold them."""

    files: dict[str, bytes]
    layouts: dict[str, object]

    @property
    def sizes(self):
        return measure_tensors(self.layouts.items())

    def read(self, file, tensor, buffer):
        for segment in self.layouts[file].segments:
            if segment.tensors[0].name == tensor:
                assert len(buffer) == segment.size_bytes
                buffer[:] = self.files[file][segment.start : segment.end]
                return
        raise AssertionError(f"{tensor} is not in {file}")

    def load(self, **options):
        return decode_state(self.files["state.json"], self.read, sizes=self.sizes, **options)


def make_counting(name, *shape):
    """Return a tensor of an element type whose bytes count up; of booleans, ones that may be."""
    import torch

    size = TORCH_ELEMENTS[name].size_bytes
    raw = torch.arange(math.prod(shape) * size, dtype=torch.int64).to(torch.uint8)
    raw = raw % 2 if name == "bool" else raw
    return torch.empty(0, dtype=getattr(torch, name)).set_(raw.untyped_storage(), 0, shape)


def read_all(source, step=None):
    """Return the bytes of a source, asked for in pieces of ``step``."""
    data = bytearray(source.size_bytes)
    step = step or max(1, len(data))
    for offset in range(0, len(data), step):
        source.read_into(offset, memoryview(data)[offset : offset + step])
    return bytes(data)


def store(state, step=None):
    """Store a state; checks what holds for the files of every state."""
    files = encode_state(state)
    paths = [file.path for file in files]
    assert paths[-1] == "state.json"
    assert len({path.lower() for path in paths}) == len(paths)
    for file in files:
        assert file.layout.size_bytes == file.source.size_bytes
        check_layout(file.layout.size_bytes, file.layout.segments)
    return StoredState(
        {file.path: read_all(file.source, step) for file in files},
        {file.path: file.layout for file in files},
    )


def round_trip(state, **options):
    """Return a state as it comes back from its files."""
    return store(state).load(**options)


def assert_same(left, right, path="state"):
    """Check that two states are the same in structure, types and bits."""
    assert type(left) is type(right), path
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(left, torch.Tensor):
        _assert_same_tensor(left, right, path)
    elif isinstance(left, np.ndarray):
        assert (left.dtype, left.dtype.char, left.shape) == (
            right.dtype,
            right.dtype.char,
            right.shape,
        ), path
        assert left.tobytes() == right.tobytes(), path
    elif isinstance(left, np.generic):
        assert left.dtype == right.dtype, path
        assert left.tobytes() == right.tobytes(), path
    elif isinstance(left, float):
        assert struct.pack("d", left) == struct.pack("d", right), path
    elif isinstance(left, complex):
        assert struct.pack("dd", left.real, left.imag) == struct.pack("dd", right.real, right.imag)
    elif isinstance(left, (dict, Counter, OrderedDict, defaultdict)):
        _assert_same_mapping(left, right, path)
    elif isinstance(left, (list, tuple, deque)):
        assert len(left) == len(right), path
        assert getattr(left, "maxlen", None) == getattr(right, "maxlen", None), path
        for index, (a, b) in enumerate(zip(left, right, strict=True)):
            assert_same(a, b, f"{path}[{index}]")
    elif isinstance(left, slice):
        assert_same(*((x.start, x.stop, x.step) for x in (left, right)), path)
    elif isinstance(left, (set, frozenset)):
        assert sorted(map(_typed, left)) == sorted(map(_typed, right)), path
    else:
        assert left == right, path


def _typed(value):
    if isinstance(value, (tuple, frozenset)):
        items = list(map(_typed, value))
        return f"{type(value)}{items if isinstance(value, tuple) else sorted(items)}"
    return f"{type(value)}{value!r}"


def _assert_same_mapping(left, right, path):
    assert len(left) == len(right), path
    for a, b in zip(left, right, strict=True):
        assert _typed(a) == _typed(b), path
        assert_same(left[a], right[b], f"{path}[{a!r}]")
    if isinstance(left, defaultdict):
        assert left.default_factory is right.default_factory, path
    if isinstance(left, OrderedDict):
        assert_same(vars(left), vars(right), f"{path}.__dict__")


def _assert_same_tensor(left, right, path):
    import torch

    assert (left.dtype, left.shape, left.layout) == (right.dtype, right.shape, right.layout), path
    assert left.requires_grad == right.requires_grad, path
    if left.layout is not torch.strided:
        assert left.requires_grad or torch.equal(left.to_dense(), right.to_dense()), path
        return
    assert tensor_bits(left) == tensor_bits(right), path


def tensor_bits(tensor):
    """Return the C-contiguous bytes of a tensor of any dtype."""
    import torch

    tensor = tensor.detach().cpu().resolve_conj().resolve_neg()
    if tensor.numel() == 0:
        return b""
    flat = torch.empty(0, dtype=tensor.dtype)
    contiguous = tensor.contiguous()
    flat.set_(contiguous.untyped_storage(), contiguous.storage_offset(), (tensor.numel(),), (1,))
    return flat.view(torch.uint8).numpy().tobytes()
