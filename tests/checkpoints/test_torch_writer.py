import io
import zlib

import pytest

from mvc.checkpoints.torch_writer import plan_torch, refer
from mvc.dtypes import TORCH_NAMES
from mvc.errors import UnsupportedError
from support.parsed import named_views, parse
from support.torch_files import MARKS, raw_bytes, torch

pytestmark = MARKS


def write(value, contents) -> bytes:
    plan = plan_torch(value, [len(data) for data in contents])
    archive = bytearray(plan.zip.size_bytes)
    crc32s = []
    for number, member in enumerate(plan.zip.members):
        data = plan.known.get(number, b"")
        if number not in plan.known:
            data = contents[number - plan.first_tensor]
        crc32s.append(zlib.crc32(data))
        archive[member.local_start : member.data_start] = plan.zip.encode_local(number, crc32s[-1])
        archive[member.data_start : member.data_start + len(data)] = data
    archive[plan.zip.directory_start :] = plan.zip.encode_directory(crc32s)
    return bytes(archive)


@pytest.mark.parametrize("dtype", TORCH_NAMES)
def test_torch_loads_every_type(dtype):
    raw = torch.arange(96, dtype=torch.uint8)
    kind = getattr(torch, TORCH_NAMES[dtype])
    tensor = ((raw > 48) if kind is torch.bool else raw.view(kind)).reshape(2, -1)
    data = write({"x": refer(0, dtype, tuple(tensor.shape))}, [raw_bytes(tensor)])
    found = torch.load(io.BytesIO(data), weights_only=True)["x"]
    assert (found.dtype, found.shape, found.stride()) == (kind, tensor.shape, tensor.stride())
    assert raw_bytes(found) == raw_bytes(tensor)
    assert named_views(data, parse(data, "x.pt")) == {
        "x": (dtype, tuple(tensor.shape), raw_bytes(tensor))
    }


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1, 5), (2, 1, 3)])
def test_shapes(shape):
    tensor = torch.ones(shape)
    data = write(refer(0, "F32", shape), [raw_bytes(tensor)])
    found = torch.load(io.BytesIO(data), weights_only=True)
    assert (found.shape, found.stride()) == (tensor.shape, tensor.stride())
    assert torch.equal(found, tensor)


def test_it_is_mapped_without_a_copy(tmp_path):
    path = tmp_path / "x.pt"
    path.write_bytes(write({"x": refer(0, "F32", (4,))}, [raw_bytes(torch.arange(4.0))]))
    assert torch.load(path, mmap=True, weights_only=True)["x"].tolist() == [0, 1, 2, 3]


def test_plain_values_beside_tensors():
    value = {"step": 3, "t": (refer(0, "I64", (1,)), [None, True, 0.5, "é", b"\x00\xff"])}
    data = write(value, [raw_bytes(torch.tensor([7]))])
    found = torch.load(io.BytesIO(data), weights_only=True)
    assert found["step"] == 3
    assert found["t"][0].tolist() == [7]
    assert found["t"][1] == value["t"][1]


def test_a_type_that_torch_has_not():
    with pytest.raises(UnsupportedError, match="torch has no type for Q4_0"):
        refer(0, "Q4_0", (32,))
