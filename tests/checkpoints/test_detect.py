import io
import zipfile

import numpy as np
import pytest
import safetensors.numpy

from mvc.checkpoints.detect import read_layout
from mvc.checkpoints.names import is_checkpoint_name
from mvc.errors import ConflictError
from mvc.sources import FileSource, MemorySource
from support.cases import for_each
from support.parsed import npy, npz, parse, torch_archive


def other_zip() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("word/document.xml", "<xml/>")
    return buffer.getvalue()


SAFETENSORS = safetensors.numpy.save({"a": np.arange(3)})
TORCH = torch_archive(b"\x80\x02}.")
NPZ, NPY, ZIP = npz(a=np.arange(3)), npy(np.arange(3)), other_zip()
GGUF = b"GGUF\x03\x00\x00\x00" + bytes(16)
LEGACY = b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19.\x80\x02M\xe9\x03."


@for_each(
    ("data", "name", "kind"),
    [
        (SAFETENSORS, "a.safetensors", "safetensors"),
        (SAFETENSORS, "A.SafeTensors", "safetensors"),
        (SAFETENSORS, "whatever", "safetensors"),
        (SAFETENSORS, "model.bin", "safetensors"),
        (TORCH, "a.pt", "torch"),
        (TORCH, "a.safetensors", "torch"),
        (TORCH, "dir/whatever", "torch"),
        (NPZ, "a.npz", "npz"),
        (NPZ, "a.pt", "npz"),
        (NPY, "a.npy", "npy"),
        (NPY, "a.txt", "npy"),
        (GGUF, "a.gguf", "gguf"),
        (GGUF, "a", "gguf"),
    ],
)
def test_content_decides(data, name, kind):
    layout = parse(data, name)
    assert (layout.format, layout.warning) == (kind, None)


@pytest.mark.parametrize(
    ("data", "name"),
    [
        (b"", "readme.md"),
        (b"", "data.bin"),
        (b"hello", "notes.txt"),
        (b"\x12\x34" * 100, "train.bin"),
        (ZIP, "letter.docx"),
        (ZIP[:-4], "letter.docx"),
        (SAFETENSORS[:-1], "whatever"),
        (SAFETENSORS[:-1], "whatever.bin"),
        (b"\x10\0\0\0\0\0\0\0{not json at all, no", "x.json"),
        (LEGACY, "pickle.dat"),
    ],
)
def test_files_that_claim_nothing_are_opaque_in_silence(data, name):
    layout = parse(data, name)
    assert (layout.format, layout.segments, layout.warning) == ("opaque", (), None)


@for_each(
    ("data", "name", "reason"),
    [
        (b"", "a.safetensors", "no safetensors header length"),
        (b"hello world", "a.safetensors", "header"),
        (SAFETENSORS[:-1], "a.safetensors", "its tensors end at"),
        (b"", "a.pt", "does not begin as a zip file"),
        (b"garbage", "a.PTH", "does not begin as a zip file"),
        (b"garbage", "pytorch_model.bin", "does not begin as a zip file"),
        (b"\0" + TORCH[1:], "model.bin", "local header"),
        (TORCH[:-1], "model.bin", "no end record"),
        (TORCH[: len(TORCH) // 2], "a.pt", "no end record"),
        (ZIP, "a.pt", "neither a torch pickle nor numpy arrays"),
        (ZIP, "a.npz", "neither a torch pickle nor numpy arrays"),
        (b"garbage", "a.npz", "does not begin as npz files do"),
        (b"garbage", "a.npy", "does not begin as npy files do"),
        (b"garbage", "a.gguf", "does not begin as gguf files do"),
        (GGUF[:-1], "anything", "cut off"),
        (NPY[:-1], "anything", "cut off"),
        (LEGACY, "a.pt", "legacy torch pickle is stored as opaque bytes"),
        (LEGACY, "a.bin", "legacy torch pickle is stored as opaque bytes"),
        (b"\x80\x04N.", "a.ckpt", "pickle is stored as opaque bytes"),
    ],
)
def test_files_that_claim_to_be_checkpoints_say_what_is_wrong(data, name, reason):
    layout = parse(data, name)
    assert (layout.format, layout.segments) == ("opaque", ())
    assert reason in layout.warning
    assert layout.warning[0].islower()


def test_names():
    for suffix in ("safetensors", "pt", "pth", "bin", "ckpt", "npz", "npy", "gguf"):
        assert is_checkpoint_name(f"model.{suffix}")
        assert is_checkpoint_name(f"MODEL.{suffix.upper()}")
    assert not is_checkpoint_name("config.json")
    assert not is_checkpoint_name("bin")


def test_a_safetensors_header_that_begins_like_a_zip_file():
    header_bytes = int.from_bytes(b"PK\x03\x04", "little")
    header = b"{}" + b" " * (header_bytes - 2)
    data = header_bytes.to_bytes(8, "little") + header
    assert parse(data, "a.safetensors").format == "safetensors"


def test_warnings_stay_short_whatever_they_quote():
    header = (
        b'{"' + b"x" * 3000 + b'":{"dtype":"' + b"y" * 3000 + b'","shape":[],"data_offsets":[0,0]}}'
    )
    data = len(header).to_bytes(8, "little") + header
    assert len(parse(data, "a.safetensors").warning) <= 300


def test_files_on_disk_and_in_memory_read_the_same(tmp_path):
    for data, name in ((TORCH, "a.pt"), (SAFETENSORS, "a.safetensors"), (NPZ, "a.npz")):
        path = tmp_path / name
        path.write_bytes(data)
        with FileSource.open(path) as source:
            assert read_layout(source, name) == read_layout(MemorySource(data), name)


def test_a_file_that_shrinks_while_it_is_parsed_is_no_format_error(tmp_path):
    path = tmp_path / "a.safetensors"
    path.write_bytes(SAFETENSORS)
    with FileSource.open(path) as source:
        path.write_bytes(SAFETENSORS[:20])
        with pytest.raises(ConflictError):
            read_layout(source, path.name)
