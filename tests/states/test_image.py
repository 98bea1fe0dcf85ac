"""Images: the bytes of the files, frozen by one copy, compared and given back to the bit."""

import contextlib
import json

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mvc import FormatError, UnsupportedError
from mvc.states.state import open_image
from mvc.training import compare_image, layout_state, read_image
from support.cases import for_each
from support.images import make_image
from support.machine import peak_below
from support.state_strategies import states, torch_states
from support.states import assert_same, store

pytestmark = pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")


def training_state():
    torch.manual_seed(0)
    tied = torch.randn(4, 6)
    return {
        "model": {"wte": tied, "head": tied, "bias": torch.ones(5, dtype=torch.bfloat16)},
        "optimizer": {"state": {0: {"m": torch.randn(6, 4).t(), "step": torch.tensor(3.0)}}},
        "rng": np.arange(7, dtype=np.uint32),
        "blob": bytes(range(256)) * 8,
        "step": 3,
        "lr": -0.0,
    }


@given(states | torch_states)
def test_an_image_holds_the_bytes_of_the_files(state):
    image = make_image(state)
    assert {path: bytes(data) for path, data in image.items()} == store(state).files


@given(states | torch_states)
def test_an_image_is_the_state(state):
    image = make_image(state)
    assert compare_image(state, image) == ()
    assert_same(read_image(image), state)


def test_files_begin_at_pages_and_parts_do_not_overlap():
    layout = layout_state(training_state())
    assert [file.offset % 4096 for file in layout.files] == [0] * len(layout.files)
    assert layout.files[-1].path == "state.json"
    end = 0
    for part in sorted(layout.parts, key=lambda part: part.offset):
        assert part.offset >= end
        end = part.offset + part.size_bytes
    assert end <= layout.size_bytes == layout.files[-1].offset + layout.files[-1].size_bytes


def test_an_image_does_not_follow_the_live_state():
    state = training_state()
    image = make_image(state)
    state["model"]["wte"][0, 0] += 1
    assert compare_image(state, image) == (
        "tensor 'head' of model.safetensors differs",
        "tensor 'wte' of model.safetensors differs",
    )


@given(st.data())
def test_every_flipped_bit_is_found(data):
    state = training_state()
    image = make_image(state)
    files = {file.path: file for file in open_image(image)}
    path = data.draw(st.sampled_from(sorted(files.keys() - {"state.json"})))
    segment = data.draw(st.sampled_from(files[path].layout.segments))
    place = segment.start + data.draw(st.integers(0, segment.size_bytes - 1))
    image[path][place] ^= 1 << data.draw(st.integers(0, 7))
    name = segment.tensors[0].name
    assert compare_image(state, image) == (f"tensor {name!r} of {path} differs",)


@for_each("flipped", range(32))
def test_a_last_bit_far_inside_a_long_tensor(flipped):
    values = torch.zeros(3 * 2**20 + 1)
    image = make_image({"m": {"w": values}})
    values[-1 - flipped * 2**16] = 1e-45
    assert compare_image({"m": {"w": values}}, image) == ("tensor 'w' of m.safetensors differs",)


def test_a_strided_tensor_is_compared_piece_by_piece():
    wide = torch.arange(2**23, dtype=torch.int32).reshape(2**11, 2**12)
    state = {"m": {"t": wide.t()[::2]}}
    image = make_image(state)
    with peak_below(3 * 2**22):  # a piece and what comparing it takes; the tensor has 16 MiB
        assert compare_image(state, image) == ()
    wide[5, 2] += 1
    assert compare_image(state, image) == ("tensor 't' of m.safetensors differs",)


def test_loading_fills_live_tensors_in_place():
    image = make_image(training_state())
    tied = torch.zeros(4, 6)
    live = {"wte": tied, "head": tied, "bias": torch.zeros(5, dtype=torch.bfloat16)}
    loaded = read_image(image, into={"model": live})
    assert loaded["model"]["wte"] is tied
    assert_same(live, training_state()["model"])
    assert loaded["step"] == 3
    assert_same(read_image(image, framework="numpy")["rng"], training_state()["rng"])


@for_each(
    ("change", "message"),
    [
        (lambda image: image.pop("state.json"), "has a state.json"),
        (lambda image: image.update({"state.json": memoryview(b"{}")}), "state.json"),
        (lambda image: image.update({"state.json": memoryview(b"\xff\0" * 99)}), "state.json"),
        (lambda image: image.pop("model.safetensors"), "other files"),
        (lambda image: image.update({"x.safetensors": memoryview(b"")}), "other files"),
        (lambda image: image.update({"rng.safetensors": memoryview(b"PK" * 50)}), "rng.safet"),
        (
            lambda image: image.update({"rng.safetensors": image["blob.safetensors"]}),
            "no tensor 'rng' in 'rng.safetensors'",
        ),
        (lambda image: image["model.safetensors"].__setitem__(slice(8, 16), b"\xff" * 8), "model"),
    ],
)
@for_each("use", [lambda image: compare_image(training_state(), image), open_image])
def test_what_is_no_image_is_refused(change, message, use):
    image = make_image(training_state())
    change(image)
    with pytest.raises(FormatError, match=message):
        use(image)


def test_a_tensor_of_another_length_is_refused():
    image = make_image({"m": {"w": torch.ones(4)}})
    text = json.loads(bytes(image["state.json"]))
    text["state"]["m"]["w"]["shape"] = [5]
    image["state.json"] = memoryview(json.dumps(text).encode())
    for use in (open_image, read_image, lambda image: compare_image({"m": {}}, image)):
        with pytest.raises(FormatError, match=r"holds 16 bytes, state\.json wants 20"):
            use(image)


def test_an_image_of_a_newer_mvc_is_refused():
    image = make_image({"step": 1})
    text = json.loads(bytes(image["state.json"])) | {"version": 3}
    image["state.json"] = memoryview(json.dumps(text).encode())
    with pytest.raises(UnsupportedError, match="version 3"):
        open_image(image)


@given(st.binary(max_size=200), st.integers(0, 300))
def test_garbage_gives_one_error(noise, place):
    image = make_image(training_state())
    for path in ("state.json", "model.safetensors"):
        broken = bytearray(image[path])
        place %= len(broken)
        broken[place : place + len(noise)] = noise
        hurt = {**image, path: memoryview(broken)}
        with contextlib.suppress(FormatError, UnsupportedError):
            compare_image(training_state(), hurt)
            read_image(hurt)
