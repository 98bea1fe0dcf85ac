import shutil

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mvc.checkpoints.detect import read_layout
from mvc.formats.layout import check_layout
from mvc.sources import FileSource, MemorySource
from support.golden_dcp import GOLDEN, make_state
from support.parsed import named_views, torch_archive
from support.torch_files import raw_bytes, torch

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore:torch.distributed is disabled"),
]


@pytest.fixture
def folder(tmp_path):
    return shutil.copytree(GOLDEN / "ranks-2", tmp_path / "ranks-2")


def read(path):
    """Return the layout of a file and its views."""
    with FileSource.open(path) as source:
        layout = read_layout(source, path.name)
    data = path.read_bytes()
    check_layout(len(data), layout.segments)
    assert layout.size_bytes == len(data)
    return layout, named_views(data, layout)


def test_a_box_of_each_rank(folder):
    model = make_state()["model"]
    layout, views = read(folder / "__0_0.distcp")
    assert (layout.format, layout.warning) == ("dcp", None)
    assert views == {
        "model.rows[0:3,0:6]": ("F32", (3, 6), raw_bytes(model["rows"][:3])),
        "model.columns[0:3,0:4]": ("I64", (3, 4), raw_bytes(model["columns"][:, :4])),
    }
    layout, views = read(folder / "__1_0.distcp")
    assert views == {
        "model.rows[3:5,0:6]": ("F32", (2, 6), raw_bytes(model["rows"][3:])),
        "model.columns[0:3,4:7]": ("I64", (3, 3), raw_bytes(model["columns"][:, 4:])),
        "model.half": ("BF16", (4,), raw_bytes(model["half"])),
        "model.one": ("F32", (), raw_bytes(model["one"])),
        "list.0": ("F32", (2,), raw_bytes(torch.ones(2))),
        "list.1.deep": ("F32", (0, 3), b""),
    }
    assert all(segment.is_plain for segment in layout.segments)


@pytest.mark.parametrize("name", ["__0_0.distcp", "__1_0.distcp"])
def test_without_metadata_items_are_numbered(folder, name):
    _, named = read(folder / name)
    (folder / ".metadata").unlink()
    layout, views = read(folder / name)
    assert layout.warning == "its tensors are numbered: no .metadata beside it names them"
    assert list(views.values()) == list(named.values())
    assert all(one.startswith("item.") for one in views)


def test_metadata_of_another_checkpoint(folder):
    shutil.copy(GOLDEN / "ranks-4" / ".metadata", folder)
    layout, views = read(folder / "__1_0.distcp")
    assert layout.warning.startswith("its tensors are numbered: .metadata is of another checkpoint")
    assert len(views) == 6


def test_metadata_that_cannot_be_read(folder):
    (folder / ".metadata").write_bytes(b"\x80\x04.")
    layout, views = read(folder / "__0_0.distcp")
    assert ".metadata cannot be read" in layout.warning
    assert list(views) == ["item.0", "item.1"]


def test_a_link_is_not_followed(folder):
    (folder / ".metadata").rename(folder / "elsewhere")
    (folder / ".metadata").symlink_to("elsewhere")
    assert list(read(folder / "__0_0.distcp")[1]) == ["item.0", "item.1"]


def test_metadata_of_each_rank(folder):
    (folder / ".metadata").rename(folder / "__0.metadata")
    assert "model.rows[0:3,0:6]" in read(folder / "__0_0.distcp")[1]
    assert "item.4" in read(folder / "__1_0.distcp")[1]


def test_a_rank_without_anything(tmp_path):
    (tmp_path / "__3_0.distcp").write_bytes(b"")
    layout, views = read(tmp_path / "__3_0.distcp")
    assert (layout.format, layout.warning, views) == ("dcp", None, {})


def save(state, folder, **options):
    import torch.distributed.checkpoint as dcp

    dcp.save(state, storage_writer=dcp.FileSystemWriter(folder, **options), no_dist=True)


@pytest.mark.parametrize("options", [{"thread_count": 2}, {"single_file_per_rank": False}])
def test_other_ways_to_cut_files(tmp_path, options):
    state = make_state()
    save(state, tmp_path, **options)
    found = {}
    for path in tmp_path.glob("*.distcp"):
        layout, views = read(path)
        assert layout.warning is None
        found |= views
    assert {name: view[2] for name, view in found.items()} == {
        **{f"model.{key}": raw_bytes(value) for key, value in state["model"].items()},
        "list.0": raw_bytes(torch.ones(2)),
        "list.1.deep": b"",
    }


def test_objects_that_hold_tensors(tmp_path):
    save({"rng": ("cpu", torch.arange(3, dtype=torch.uint8))}, tmp_path)
    layout, views = read(tmp_path / "__0_0.distcp")
    assert (layout.warning, views) == (None, {"rng.1": ("U8", (3,), b"\x00\x01\x02")})


def test_safetensors_inside(tmp_path):
    from torch.distributed.checkpoint.filesystem import SerializationFormat

    save({"w": torch.ones(3)}, tmp_path, serialization_format=SerializationFormat.SAFETENSORS)
    layout, views = read(tmp_path / "__0_0.distcp")
    assert (layout.format, list(views)) == ("safetensors", ["w"])


def test_transformed_items_are_bytes(tmp_path, monkeypatch):
    from torch.distributed.checkpoint._extension import StreamTransformExtension

    class Plus(StreamTransformExtension):
        registry_name = staticmethod(lambda: "test.plus")
        from_descriptor = staticmethod(lambda _: Plus())

        def get_descriptor(self):
            return "test.plus/1"

        def transform_to(self, output):
            output.write(b"+")
            return output

        def transform_from(self, source):
            source.read(1)
            return source

    save({"w": torch.ones(3)}, tmp_path, _extensions=[Plus()])
    layout, views = read(tmp_path / "__0_0.distcp")
    assert (layout.format, views) == ("dcp", {})
    assert layout.warning == "its items went through test.plus/1: they are stored as bytes"
    (tmp_path / ".metadata").unlink()
    assert list(read(tmp_path / "__0_0.distcp")[1]) == []  # begins with a byte of no archive


def test_an_item_of_another_shape(folder):
    data = (folder / ".metadata").read_bytes()
    assert data.count(b"K\x03K\x06\x86") == 1  # the sizes of the first box of rows
    (folder / ".metadata").write_bytes(data.replace(b"K\x03K\x06\x86", b"K\x03K\x05\x86"))
    layout, views = read(folder / "__0_0.distcp")
    assert "another shape" in layout.warning
    assert list(views) == ["item.0", "item.1"]


ROW = torch_archive(b"\x80\x02}.")


@pytest.mark.parametrize("data", [b"x" + ROW, ROW + b"x", ROW[:-1], b"PK", b"\x00" * 99])
def test_what_is_no_row_of_archives_is_opaque(data):
    layout = read_layout(MemorySource(data), "__0_0.distcp")
    assert (layout.format, layout.segments) == ("opaque", ())
    assert layout.warning


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_damage_never_loses_a_byte(folder, data):
    """Whatever is damaged, a checked layout comes out, and the file is as it was."""
    path = folder / data.draw(st.sampled_from([".metadata", "__0_0.distcp"]))
    sound = path.read_bytes()
    at = data.draw(st.integers(0, len(sound) - 1))
    value = data.draw(st.binary(min_size=1, max_size=3))
    path.write_bytes(sound[:at] + value + sound[at + len(value) :])
    read(folder / "__0_0.distcp")
    path.write_bytes(sound)
