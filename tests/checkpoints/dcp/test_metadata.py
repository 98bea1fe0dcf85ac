import io
import os
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mvc.checkpoints.dcp.encode import encode_dcp_metadata
from mvc.checkpoints.dcp.metadata import (
    DcpItem,
    DcpMetadata,
    DcpTensor,
    name_box,
    parse_dcp_metadata,
)
from mvc.errors import FormatError
from mvc.numbers.boxes import Box
from support.golden_dcp import GOLDEN

DATA = (GOLDEN / "ranks-4" / ".metadata").read_bytes()


def test_a_folder_of_four_ranks():
    found = parse_dcp_metadata(DATA)
    assert set(found.entries) == {
        "model.rows", "model.columns", "model.half", "model.one", "list.0", "list.1.deep", "step",
        "note.text", "note.betas", "note.flags",
    }  # fmt: skip
    assert found.entries["step"] is None
    rows = found.entries["model.rows"]
    assert isinstance(rows, DcpTensor)
    assert (rows.dtype, rows.shape) == ("F32", (5, 6))
    assert set(rows.boxes) == {
        Box((0, 0), (3, 3)), Box((0, 3), (3, 3)), Box((3, 0), (2, 3)), Box((3, 3), (2, 3)),
    }  # fmt: skip
    assert found.entries["model.one"] == DcpTensor("F32", (), (Box((), ()),))
    assert found.paths["list.1.deep"] == ("list", 1, "deep")
    for name, items in found.files.items():
        assert items[0].start == 0
        assert [one.end for one in items[:-1]] == [one.start for one in items[1:]]
        assert items[-1].end == (GOLDEN / "ranks-4" / name).stat().st_size


def test_names_of_boxes():
    assert name_box("w", (4, 6), Box((0, 0), (4, 6))) == "w"
    assert name_box("w", (), Box((), ())) == "w"
    assert name_box("w", (4, 6), Box((2, 0), (2, 6))) == "w[2:4,0:6]"
    assert name_box("w", (4,), Box((4,), (0,))) == "w[4:4]"


@pytest.mark.torch
def test_what_torch_writes_and_reads():
    torch = pytest.importorskip("torch")
    from torch.distributed.checkpoint import metadata as theirs
    from torch.distributed.checkpoint.filesystem import _StorageInfo

    boxes = Box((0,), (2,)), Box((2,), (1,))
    files = {
        "__1_0.distcp": (DcpItem("w", boxes[1], "__1_0.distcp", 5, 6, ("stream.zstd/1",)),),
        "__0_0.distcp": (
            DcpItem("w", boxes[0], "__0_0.distcp", 0, 7),
            DcpItem("o", None, "__0_0.distcp", 7, 1),
        ),
    }
    entries = {"w": DcpTensor("F8_E4M3", (3,), boxes), "o": None}
    ours = DcpMetadata(entries, files, {"w": ("a", 0), "o": ("o",)})
    chunks = [
        theirs.ChunkStorageMetadata(torch.Size(box.offsets), torch.Size(box.sizes)) for box in boxes
    ]
    properties = theirs.TensorProperties(dtype=torch.float8_e4m3fn)
    tensor = theirs.TensorStorageMetadata(properties, torch.Size([3]), chunks)
    wanted = theirs.Metadata(
        {"w": tensor, "o": theirs.BytesStorageMetadata()},
        {"w": ("a", 0), "o": ("o",)},
        {
            theirs.MetadataIndex("w", [2], 1): _StorageInfo(
                "__1_0.distcp", 5, 6, ["stream.zstd/1"]
            ),
            theirs.MetadataIndex("w", [0], 0): _StorageInfo("__0_0.distcp", 0, 7),
            theirs.MetadataIndex("o"): _StorageInfo("__0_0.distcp", 7, 1),
        },
        None,
        "1.0.0",
    )
    found = pickle.loads(encode_dcp_metadata(ours))
    assert found == wanted
    assert {one.offset: one.index for one in found.storage_data} == {
        torch.Size([2]): 1, torch.Size([0]): 0, None: None,
    }  # fmt: skip
    wanted.planner_data["gone"] = ("gone",)
    for protocol in range(2, 6):
        assert parse_dcp_metadata(pickle.dumps(wanted, protocol)) == ours


@pytest.mark.parametrize("ranks", [2, 4])
def test_what_torch_wrote_is_written_again(ranks):
    found = parse_dcp_metadata((GOLDEN / f"ranks-{ranks}" / ".metadata").read_bytes())
    assert parse_dcp_metadata(encode_dcp_metadata(found)) == found


def test_classes_of_older_modules():
    old = pickle_with_names(b"torch.distributed._shard.checkpoint.metadata")
    assert parse_dcp_metadata(old).files == parse_dcp_metadata(DATA).files


def pickle_with_names(module: bytes) -> bytes:
    """Return the golden pickle with its classes in another module; lengths of strings are one byte."""
    name = b"torch.distributed.checkpoint.metadata"
    assert DATA.count(name) == 1
    body = DATA[11:]  # without protocol and frame
    return b"\x80\x04" + body.replace(bytes([len(name)]) + name, bytes([len(module)]) + module)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (b"\x8c\x08Metadata", b"\x8c\x08Metadatb", "lacks a Metadata"),
        (b"storage_data", b"storage_dat_", "no mapping of places"),
        (b"state_dict_metadata", b"state_dict_metadat_", "no mapping of entries"),
        (b"\x8c\x06length", b"\x8c\x06Length", "impossible place"),
        (b"\x8c\x06chunks", b"\x8c\x06Chunks", "no list of chunks"),
        (b"\x8c\x05sizes", b"\x8c\x05Sizes", "impossible shape"),
        (b"\x8c\x04step\x94h", b"\x8c\x04stop\x94h", "belongs to no entry"),
        (b"\x8c\x0dMetadataIndex", b"\x8c\x0dMetadataindex", "lacks a MetadataIndex"),
    ],
)
def test_what_is_missing_is_named(old, new, words):
    assert old in DATA
    with pytest.raises(FormatError, match=words):
        parse_dcp_metadata(DATA.replace(old, new, 1))


def test_more_bytes_than_any_folder_has(monkeypatch):
    monkeypatch.setattr("mvc.checkpoints.dcp.metadata.MAX_METADATA_BYTES", len(DATA) - 1)
    with pytest.raises(FormatError, match="the limit is"):
        parse_dcp_metadata(DATA + b"x")


@given(st.integers(0, len(DATA) - 1), st.binary(min_size=1, max_size=4))
def test_damage_is_a_format_error(at, value):
    try:
        found = parse_dcp_metadata(DATA[:at] + value + DATA[at + len(value) :])
    except FormatError:
        return
    for items in found.files.values():
        assert all(found.entries[item.key] is None or item.box is not None for item in items)


@given(st.integers(0, len(DATA) - 1))
def test_a_cut_is_a_format_error(end):
    with pytest.raises(FormatError):
        parse_dcp_metadata(DATA[:end])


def test_nothing_runs(tmp_path):
    marker = tmp_path / "marker"
    buffer = io.BytesIO()
    pickle.Pickler(buffer, 4).dump(_Evil(str(marker)))
    with pytest.raises(FormatError):
        parse_dcp_metadata(buffer.getvalue())
    assert not marker.exists()
    pickle.loads(buffer.getvalue())
    assert marker.exists()


class _Evil:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (self.path,)
