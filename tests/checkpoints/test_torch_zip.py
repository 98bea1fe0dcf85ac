import argparse
import io
import zipfile

import numpy as np
import pytest

from mvc.checkpoints.torch_pickle.objects import TORCH_DTYPES
from support.cases import for_each
from support.parsed import named_views, parse, torch_archive
from support.torch_files import MARKS, check, raw_bytes, save, torch

pytestmark = MARKS


DTYPES = [name for name in TORCH_DTYPES if not name.startswith("q")]


@for_each("name", DTYPES)
@for_each("protocol", [2, 4])
def test_every_dtype(name, protocol):
    dtype = getattr(torch, name)
    raw = torch.arange(1, 97, dtype=torch.uint8)
    tensor = (raw > 48) if dtype is torch.bool else raw.view(dtype)
    layout = check({"x": tensor}, {"x": tensor}, pickle_protocol=protocol)
    assert layout.segments[0].is_plain


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_a_training_checkpoint(protocol):
    model = torch.nn.Sequential(
        torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 2)
    )
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(5, 3)).sum().backward()
    optimizer.step()
    state = {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "rng": torch.get_rng_state(),
        "numpy_rng": np.random.get_state(),
        "numbers": np.arange(5000.0),
        "epoch": 3,
        "history": [0.5, 1e-3, None, True, 2**70],
        "args": argparse.Namespace(lr=0.1, device=torch.device("cpu"), ema=torch.full((2,), 0.5)),
    }
    expected = {f"model.{key}": value for key, value in model.state_dict().items()}
    for index, moments in optimizer.state_dict()["state"].items():
        for key, value in moments.items():
            expected[f"optimizer.state.{index}.{key}"] = value
    check(
        state,
        expected | {"rng": state["rng"], "args.ema": state["args"].ema},
        pickle_protocol=protocol,
    )


def test_views_ties_and_strides_share_one_segment():
    base = torch.arange(24.0).reshape(4, 6)
    other = torch.arange(4.0)
    tensors = {
        "base": base,
        "tied": base,
        "transposed": base.T,
        "row": base[1],
        "column": base[:, 2],
        "steps": base[::2, 1::2],
        "expanded": other[1:2].expand(3, 5),
        "scalar": other[3],
        "empty": base[4:],
        "unsqueezed": base[:, :1].unsqueeze(0),
    }
    layout = check(tensors, tensors)
    assert [len(segment.tensors) for segment in layout.segments] == [8, 2]
    strides = {view.name: view.strides for segment in layout.segments for view in segment.tensors}
    assert strides["base"] is strides["row"] is strides["scalar"] is strides["empty"] is None
    assert strides["transposed"] == (1, 6)
    assert strides["expanded"] == (0, 0)


def test_a_part_of_a_larger_storage():
    whole = torch.arange(10.0)
    layout = check({"part": whole[2:5]}, {"part": whole[2:5]})
    (segment,) = layout.segments
    assert (segment.size_bytes, segment.tensors[0].offset_bytes) == (40, 8)
    assert not segment.is_plain


def test_views_of_other_dtypes_on_one_untyped_storage():
    words = torch.arange(8, dtype=torch.int16).view(torch.uint16)
    halves = words.view(torch.uint32)
    check({"words": words, "wide": halves}, {"words": words, "wide": halves})


def test_a_tensor_saved_alone_and_a_bare_storage():
    check(torch.arange(3), {"tensor": torch.arange(3)})
    data = save({"s": torch.arange(3, dtype=torch.uint8).untyped_storage()})
    assert named_views(data, parse(data, "x.pt")) == {"s": ("U8", (3,), b"\x00\x01\x02")}


def test_empty_and_scalar_tensors():
    tensors = {"e": torch.zeros(0), "e2": torch.zeros(3, 0, 2), "s": torch.tensor(1.5)}
    layout = check(tensors, tensors)
    assert [segment.size_bytes for segment in layout.segments] == [0, 0, 4]


def test_a_file_that_torch_loads_lazily_and_a_large_name():
    tensors = {"w" * 4000: torch.ones(1), "v" * 4097: torch.ones(1)}
    data = save(tensors)
    assert list(named_views(data, parse(data, "x.pt"))) == ["w" * 4000]


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_torchscript_archives_do_not_fail():
    script = torch.jit.script(torch.nn.Linear(2, 3))
    buffer = io.BytesIO()
    torch.jit.save(script, buffer)
    views = named_views(buffer.getvalue(), parse(buffer.getvalue(), "script.pt"))
    assert views["weight"][2] == raw_bytes(script.weight)
    assert views["bias"][2] == raw_bytes(script.bias)


def test_archives_repacked_by_another_zip_program():
    state = {"w": torch.arange(6.0), "v": torch.arange(3)}
    original = zipfile.ZipFile(io.BytesIO(save(state)))
    for compress in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as archive:
            for name in original.namelist():
                is_data = name.endswith(("data/0", "data/1"))
                kind = compress if is_data else zipfile.ZIP_STORED
                archive.writestr(name, original.read(name), kind)
        views = named_views(buffer.getvalue(), parse(buffer.getvalue(), "x.pt"))
        if compress == zipfile.ZIP_STORED:
            assert views["w"][2] == raw_bytes(state["w"])
        else:
            assert views == {}


def pickled_with(state) -> tuple[bytes, dict[str, bytes]]:
    archive = zipfile.ZipFile(io.BytesIO(save(state)))
    pickled = archive.read("archive/data.pkl")
    names = [name for name in archive.namelist() if name.startswith("archive/data/")]
    return pickled, {name.rpartition("/")[2]: archive.read(name) for name in names}


def test_contradictions_between_pickle_and_storages_are_refused():
    pickled, storages = pickled_with({"w": torch.arange(6.0)})
    assert parse(torch_archive(pickled, storages), "x.pt").format == "torch"
    for broken in (
        torch_archive(pickled),
        torch_archive(pickled, {"0": storages["0"][:-4]}),
        torch_archive(pickled, {"0": storages["0"] + b"\0"}),
        torch_archive(pickled, storages, byteorder=b"big"),
        torch_archive(pickled, storages, byteorder=b""),
        torch_archive(pickled[:-1], storages),
        torch_archive(b"", storages),
    ):
        layout = parse(broken, "x.pt")
        assert (layout.format, layout.segments) == ("opaque", ())
        assert layout.warning


def test_shapes_that_reach_outside_their_storage_are_refused():
    pickled, storages = pickled_with({"w": torch.arange(6.0)})
    shape = b"K\x00K\x06\x85"
    assert pickled.count(shape) == 1
    for wrong in (
        b"K\x01K\x06\x85",
        b"K\x00K\x07\x85",
        b"J\xff\xff\xff\xffK\x06\x85",
        b"K\x00G" + bytes(8) + b"\x85",
    ):
        layout = parse(torch_archive(pickled.replace(shape, wrong), storages), "x.pt")
        assert layout.format == "opaque", wrong
        assert layout.warning


def test_old_pickles_are_opaque_and_say_so():
    layout = parse(save({"w": torch.ones(2)}, pickle_protocol=0), "x.pt")
    assert layout.format == "opaque"
    assert "use torch.save with its default protocol" in layout.warning


def test_legacy_files_are_opaque_and_say_so():
    data = save({"w": torch.ones(2)}, _use_new_zipfile_serialization=False)
    layout = parse(data, "x.pt")
    assert layout.format == "opaque"
    assert layout.warning == "legacy torch pickle is stored as opaque bytes"
