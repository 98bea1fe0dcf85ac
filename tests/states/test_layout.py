"""A layout: where the bytes of a live state go, seen without a copy."""

import numpy as np
import pytest
import torch

from mvc.errors import ConflictError
from mvc.states.layout import layout_state
from support.states import read_all


def fill(layout):
    """Return the image of a layout, every byte of which but padding comes from a part."""
    image = bytearray(b"\xa5" * layout.size_bytes)
    for part in layout.parts:
        part.copy_into(memoryview(image))
    return {file.path: bytes(image[file.offset :][: file.size_bytes]) for file in layout.files}


def test_a_storage_resized_after_the_layout_is_an_error():
    weight, large = torch.ones(9), torch.ones(2**18)
    state = {"model": {"a": weight, "b": torch.ones(3), "large": large}}
    layout = layout_state(state, layout_state(state).plan)
    weight.untyped_storage().resize_(0)
    with pytest.raises(ConflictError, match="resized or freed"):
        fill(layout)
    large.untyped_storage().resize_(0)
    (part,) = [part for part in layout.parts if part.size_bytes == 2**20]
    with pytest.raises(ConflictError, match="resized or freed"):
        part.view()


def test_small_neighbours_are_one_part_that_can_be_read_anywhere():
    state = {"model": {f"w{index}": torch.full((index + 1,), float(index)) for index in range(9)}}
    layout = layout_state(state, layout_state(state).plan)
    _head, run, _text = layout.parts
    assert run.view() is None
    assert run.find_device_words() is None
    whole = read_all(run.source)
    assert whole == torch.cat(list(state["model"].values())).numpy().tobytes()
    for offset in range(0, len(whole), 7):
        piece = bytearray(min(19, len(whole) - offset))
        run.source.read_into(offset, memoryview(piece))
        assert piece == whole[offset:][:19]
    with pytest.raises(ValueError, match="outside"):
        run.source.read_into(len(whole), memoryview(bytearray(1)))


def test_a_large_tensor_is_seen_without_a_copy():
    large = torch.arange(2**18, dtype=torch.float32)
    state = {"model": {"w": large}}
    layout = layout_state(state, layout_state(state).plan)
    (part,) = [part for part in layout.parts if part.size_bytes == 2**20]
    assert np.frombuffer(part.view(), np.uint8).ctypes.data == large.data_ptr()
