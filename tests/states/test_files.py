"""The virtual files of a state: real safetensors files, served without copying the model."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import safetensors.numpy
import safetensors.torch
import torch
from hypothesis import given
from hypothesis import strategies as st

from mvc.checkpoints import limits
from mvc.checkpoints.limits import Names
from mvc.checkpoints.safetensors import parse_safetensors
from mvc.errors import UnsupportedError
from mvc.sources import MemorySource
from mvc.states import files as state_files
from mvc.states.document import parse_document
from mvc.states.elements import TORCH_ELEMENTS
from mvc.states.files import escape_file_name
from mvc.states.state import encode_state
from support.machine import peak_below
from support.states import make_counting, read_all, store

SAVED = [name for name in TORCH_ELEMENTS if name not in ("complex32", "complex128")]


def test_file_is_what_safetensors_writes():
    model = {f"{prefix}.{name}": make_counting(name, 4, 6) for prefix in "ba" for name in SAVED}
    model |= {"empty": torch.empty(0, 3), "scalar": torch.tensor(1.5), 'Ω\n"': torch.ones(2)}
    stored = store({"model": model})
    assert stored.files["model.safetensors"] == safetensors.torch.save(model, {"format": "pt"})


def test_layout_is_what_a_parser_finds():
    state = {
        "model": {f"layer.{number}": torch.full((number % 5,), number) for number in range(40)},
        "mixed": [np.ones(3), {"a": torch.ones(2, dtype=torch.bfloat16).t()}, np.array(["x"])],
        "blob": bytes(5000),
    }
    stored = store(state)
    assert set(parse_document(stored.files["state.json"]).files) == set(stored.files) - {
        "state.json"
    }
    for path in parse_document(stored.files["state.json"]).files:
        assert parse_safetensors(MemorySource(stored.files[path])) == stored.layouts[path]


def test_names_are_paths_and_unique():
    shared = torch.ones(3)
    state = {
        "optimizer": {"state": {0: {"exp_avg": torch.ones(1)}, (1, 2): torch.ones(1)}},
        "odd": {
            "a.b": torch.ones(1),
            "a": {"b": torch.ones(2)},
            "": torch.ones(1),
            "\ud800": torch.ones(1),
        },
        "meta": {"__metadata__": torch.ones(1), "__metadata__~2": torch.ones(2)},
        "alone": shared,
        "long": {"x" * 10_000: torch.ones(1), "x" * 10_001: torch.ones(1)},
    }
    stored = store(state)
    names = {
        path: {s.tensors[0].name for s in layout.segments}
        for path, layout in stored.layouts.items()
    }
    assert names["optimizer.safetensors"] == {"state.0.exp_avg", "state.(1, 2)"}
    assert names["odd.safetensors"] == {"a.b", "a.b~2", "_", "\\ud800"}
    assert names["meta.safetensors"] == {"__metadata__~2", "__metadata__~2~2"}
    assert names["alone.safetensors"] == {"alone"}
    assert len(names["long.safetensors"]) == 2


def test_file_names_are_safe_everywhere():
    keys = [
        "model",
        "Model",
        "MODEL-2",
        "..",
        "/etc/passwd",
        "a/b",
        "",
        ".git",
        "ä",
        "a b",
        "%2E",
        "x" * 500,
    ]
    paths = [file.path for file in encode_state({key: [np.ones(1)] for key in keys})][:-1]
    assert paths[:2] == ["model.safetensors", "Model-2.safetensors"]
    assert len({path.lower() for path in paths}) == len(keys)
    for path in paths:
        assert "/" not in path
        assert not path.startswith(".")
        assert path.isascii()
        assert len(path) < 200
    assert escape_file_name("a b/ä") == "a%20b%2F%C3%A4"


@given(st.lists(st.sampled_from(["a", "A", "a~2", "a~3", "b", "a~2~2"]), max_size=12))
def test_names_are_given_once(wanted):
    names = Names(set(), fold_case=True)
    given_out = [names.give(name) for name in wanted]
    assert len({name.lower() for name in given_out}) == len(wanted)


def big_model():
    weights = {f"w{number}": torch.randn(1000, 500) for number in range(10)}
    return weights | {"transposed": torch.randn(1000, 500).t(), "bf16": torch.ones(777).bfloat16()}


def test_contiguous_arrays_are_not_copied():
    model = big_model()
    array = np.arange(1000.0)
    files = encode_state({"model": model, "array": array})
    file = files[0]
    for segment in file.layout.segments:
        name = segment.tensors[0].name
        view = file.source.view(segment.start, segment.size_bytes)
        if name == "transposed":
            assert view is None
            continue
        live = model[name].view(torch.uint8).numpy()
        assert np.shares_memory(np.frombuffer(view, np.uint8), live)
        assert view.readonly
        inner = file.source.view(segment.start + 5, 100)
        assert bytes(inner) == bytes(view[5:105])
    segment = files[1].layout.segments[0]
    view = files[1].source.view(segment.start, segment.size_bytes)
    assert np.shares_memory(np.frombuffer(view, np.uint8), array)
    start = file.layout.segments[0].start
    assert file.source.view(0, start) is not None
    assert file.source.view(start - 1, 2) is None


def test_encoding_and_reading_take_bounded_memory():
    model = {
        "t": np.ones((2000, 1500)).T,
        "big": np.ones(3_000_000, ">f8"),
        "w": np.ones(3_000_000),
    }
    buffer = memoryview(bytearray(2**16))
    with peak_below(2**20):
        file, _ = encode_state({"model": model})
        for offset in range(0, file.source.size_bytes - len(buffer), 2**23):
            file.source.read_into(offset, buffer)


def test_reading_outside_of_a_file_fails():
    file = encode_state({"x": np.ones(3)})[0]
    with pytest.raises(ValueError, match="outside"):
        file.source.read_into(file.source.size_bytes - 1, memoryview(bytearray(2)))


def test_limits_of_a_file(monkeypatch):
    monkeypatch.setattr(limits, "MAX_TENSORS", 10)
    with pytest.raises(
        UnsupportedError, match=r"does not fit into model.safetensors: .* 11 tensors"
    ):
        encode_state({"model": [np.ones(1)] * 11})
    monkeypatch.setattr(state_files, "MAX_HEADER_BYTES", 100)
    with pytest.raises(UnsupportedError, match="header of model"):
        encode_state({"model": [np.ones(1)] * 5})


def test_reads_from_many_threads_agree():
    model = {
        "t": torch.randn(300, 200).t(),
        "w": torch.randn(1000),
        "big": np.ones((50, 40), ">f4").T,
    }
    source = encode_state({"model": model})[0].source
    expected = read_all(source)
    offsets = range(0, len(expected), 1013)

    def read(offset):
        data = bytearray(min(1013, len(expected) - offset))
        source.read_into(offset, memoryview(data))
        return bytes(data)

    with ThreadPoolExecutor(8) as pool:
        assert b"".join(pool.map(read, offsets)) == expected
