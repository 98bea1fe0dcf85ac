from __future__ import annotations

import pickle

import pytest

from mvc.checkpoints.dcp.encode import encode_dcp_metadata
from mvc.checkpoints.dcp.metadata import DcpItem, DcpMetadata, DcpTensor, parse_dcp_metadata
from mvc.numbers.boxes import Box
from support.golden_dcp import GOLDEN


@pytest.mark.parametrize("ranks", [2, 4])
def test_what_torch_wrote_is_written_again(ranks):
    found = parse_dcp_metadata((GOLDEN / f"ranks-{ranks}" / ".metadata").read_bytes())
    assert parse_dcp_metadata(encode_dcp_metadata(found)) == found


@pytest.mark.torch
def test_what_torch_reads():
    torch = pytest.importorskip("torch")
    from torch.distributed.checkpoint.filesystem import _StorageInfo
    from torch.distributed.checkpoint.metadata import (
        BytesStorageMetadata,
        ChunkStorageMetadata,
        Metadata,
        MetadataIndex,
        TensorProperties,
        TensorStorageMetadata,
    )

    size = torch.Size
    boxes = (Box((0,), (2,)), Box((2,), (1,)))
    items = (
        DcpItem("w", boxes[0], "f", 0, 5),
        DcpItem("w", boxes[1], "f", 5, 5),
        DcpItem("o", None, "f", 10, 1, ("stream.zstd/1",)),
    )
    entries = {"w": DcpTensor("BF16", (3,), boxes), "o": None}
    data = encode_dcp_metadata(DcpMetadata(entries, {"f": items}, {"w": ("a", 0), "o": ("o",)}))
    chunks = [
        ChunkStorageMetadata(size([0]), size([2])),
        ChunkStorageMetadata(size([2]), size([1])),
    ]
    expected = Metadata(
        {
            "w": TensorStorageMetadata(TensorProperties(torch.bfloat16), size([3]), chunks),
            "o": BytesStorageMetadata(),
        },
        {"w": ("a", 0), "o": ("o",)},
        {
            MetadataIndex("w", [0], 0): _StorageInfo("f", 0, 5),
            MetadataIndex("w", [2], 1): _StorageInfo("f", 5, 5),
            MetadataIndex("o"): _StorageInfo("f", 10, 1, ["stream.zstd/1"]),
        },
        None,
        "1.0.0",
    )
    found = pickle.loads(data)
    assert found == expected
    assert [one.index for one in found.storage_data] == [0, 1, None]
