"""The ``.metadata`` of a DCP folder to be, as ``torch.distributed.checkpoint`` reads it."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

from mvc.checkpoints.torch_pickle.encode import Instance, PickledCall, encode_pickle
from mvc.checkpoints.torch_pickle.values import Global, Pairs
from mvc.checkpoints.torch_writer import find_torch_name

if TYPE_CHECKING:
    from mvc.checkpoints.dcp.metadata import DcpMetadata, DcpTensor
    from mvc.numbers.boxes import Shape

_MODULE = "torch.distributed.checkpoint.metadata"
_STORAGE_INFO = "torch.distributed.checkpoint.filesystem._StorageInfo"
_VERSION = "1.0.0"


def encode_dcp_metadata(metadata: DcpMetadata) -> bytes:
    """Return the pickle that says what a folder holds."""
    entries = Pairs()
    for key, tensor in metadata.entries.items():
        entries += [key, _entry(tensor)]
    places = Pairs()
    numbers = {
        (key, box): number
        for key, tensor in metadata.entries.items()
        for number, box in enumerate(() if tensor is None else tensor.boxes)
    }
    for item in chain.from_iterable(metadata.files.values()):
        number = None if item.box is None else numbers[item.key, item.box]
        offset = {} if item.box is None else {"offset": _size(item.box.offsets)}
        transforms = {"transform_descriptors": list(item.transforms)} if item.transforms else {}
        index = {"fqn": item.key, **offset, "index": number}
        info = {"relative_path": item.file, "offset": item.start, "length": item.size_bytes}
        places += [
            Instance(f"{_MODULE}.MetadataIndex", index),
            Instance(_STORAGE_INFO, {**info, **transforms}),
        ]
    state = {
        "state_dict_metadata": entries,
        "planner_data": dict(metadata.paths),
        "storage_data": places,
        "storage_meta": None,
        "version": _VERSION,
    }
    return encode_pickle(Instance(f"{_MODULE}.Metadata", state))


def _entry(tensor: DcpTensor | None) -> Instance:
    if tensor is None:
        return Instance(f"{_MODULE}.BytesStorageMetadata", {})
    assert tensor.dtype is not None
    properties = (
        Global(f"torch.{find_torch_name(tensor.dtype)}"),
        PickledCall("torch.serialization._get_layout", ("torch.strided",)),
        False,
        PickledCall(f"{_MODULE}._MEM_FORMAT_ENCODING", (0,)),
        False,
    )
    chunks = [
        Instance(
            f"{_MODULE}.ChunkStorageMetadata",
            {"offsets": _size(box.offsets), "sizes": _size(box.sizes)},
        )
        for box in tensor.boxes
    ]
    state = {
        "properties": Instance(f"{_MODULE}.TensorProperties", properties),
        "size": _size(tensor.shape),
        "chunks": chunks,
    }
    return Instance(f"{_MODULE}.TensorStorageMetadata", state)


def _size(shape: Shape) -> PickledCall:
    return PickledCall("torch.Size", (shape,))
