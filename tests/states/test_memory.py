"""Raw memory of live arrays: read piece by piece, and noticed when it changed hands."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mvc.errors import ConflictError, UnsupportedError
from mvc.states.elements import TORCH_ELEMENTS
from mvc.states.memory import iterate_slabs, read_units
from mvc.states.state import encode_state
from mvc.states.torch_arrays import TorchArray, span_storage, view_words
from support.cases import for_each
from support.states import make_counting, read_all, store


@given(
    st.lists(st.integers(1, 5), min_size=1, max_size=4).map(tuple),
    st.data(),
)
def test_slabs_cover_a_range_in_order(shape, data):
    array = np.arange(np.prod(shape)).reshape(shape)
    first = data.draw(st.integers(0, array.size))
    last = data.draw(st.integers(first, array.size))
    blocks = [array[prefix][a:b].ravel() for prefix, a, b in iterate_slabs(shape, first, last)]
    assert [int(value) for block in blocks for value in block] == list(range(first, last))
    assert len(blocks) <= 2 * len(shape)


@for_each("name", ["float32", "bfloat16", "complex128", "uint8", "float8_e5m2", "bool"])
@for_each("step", [1, 7, 4096])
def test_a_device_tensor_is_read_piece_by_piece(name, step):
    # The same code serves every device; on the CPU it can be compared.
    tensor = make_counting(name, 6, 5, 4)
    for variant in (tensor, tensor.transpose(0, 2), tensor[1:, ::2], tensor[0, 0, 0]):
        words = view_words(variant, TORCH_ELEMENTS[name])
        source = TorchArray(words, TORCH_ELEMENTS[name].word_bytes)
        expected = store({"x": variant}).files["model.safetensors"][-source.size_bytes :]
        assert source.view(0, 1) is None
        assert read_all(source, step) == expected


def test_resized_storage_is_noticed():
    tensor = torch.ones(1000)
    files = encode_state({"x": tensor})
    tensor.untyped_storage().resize_(0)
    with pytest.raises(ConflictError, match="resized"):
        read_all(files[0].source)


def test_replaced_data_of_a_parameter_keeps_the_encoded_one_alive():
    parameter = torch.nn.Parameter(torch.full((1000,), 3.0))
    files = encode_state({"x": parameter})
    parameter.data = torch.zeros(1000)
    assert read_all(files[0].source)[-4000:] == np.full(1000, 3.0, np.float32).tobytes()


def test_freed_storage_is_refused():
    tensor = torch.ones(1000)
    tensor.untyped_storage().resize_(0)
    with pytest.raises(UnsupportedError, match=r'state\["m"\]\[0\].*holds 0 of 4,000 bytes'):
        encode_state({"m": [tensor]})


def test_a_range_of_device_memory():
    flat = torch.arange(100, dtype=torch.float32)
    source = TorchArray(view_words(flat[10:20], TORCH_ELEMENTS["float32"]), 4)
    span = span_storage(source, flat.data_ptr() + 20, 100)
    assert read_all(span, 7) == flat[5:30].numpy().tobytes()


def test_a_read_may_begin_and_end_inside_a_unit():
    data = bytes(range(24))

    def gather(first, buffer):
        assert len(buffer) % 4 == 0
        buffer[:] = np.frombuffer(data, np.uint8)[4 * first :][: len(buffer)]

    for offset in range(13):
        for size_bytes in range(12):
            read = bytearray(size_bytes)
            read_units(gather, 4, offset, memoryview(read))
            assert bytes(read) == data[offset : offset + size_bytes], (offset, size_bytes)
