import struct

import numpy as np
import pytest

from mvc.checkpoints.gguf import GGML_DTYPES, parse_gguf
from mvc.dtypes import get_dtype
from mvc.errors import FormatError
from mvc.sources import MemorySource
from support.cases import for_each
from support.parsed import named_views, parse

gguf = pytest.importorskip("gguf")


def string(text: bytes) -> bytes:
    return struct.pack("<Q", len(text)) + text


def pair(key: bytes, kind: int, value: bytes) -> bytes:
    return string(key) + struct.pack("<I", kind) + value


def info(name: bytes, dims, kind: int, offset: int) -> bytes:
    return string(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, offset)


def build(pairs=(), infos=(), data=b"", *, version=3, alignment=32, counts=None) -> bytes:
    tensors, keys = counts or (len(infos), len(pairs))
    head = b"GGUF" + struct.pack("<IQQ", version, tensors, keys) + b"".join(pairs) + b"".join(infos)
    return head + bytes(-len(head) % alignment) + data


def write(tmp_path, fill, **options) -> bytes:
    path = tmp_path / "model.gguf"
    writer = gguf.GGUFWriter(path, "llama", **options)
    fill(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path.read_bytes()


def oracle(path):
    reader = gguf.GGUFReader(path)
    return {
        tensor.name: (
            tensor.tensor_type.name,
            tuple(int(dim) for dim in tensor.shape[::-1]),
            tensor.data.tobytes(),
        )
        for tensor in reader.tensors
    }


def test_our_block_sizes_are_those_of_ggml():
    for number, name in GGML_DTYPES.items():
        kind = gguf.GGMLQuantizationType(number)
        dtype = get_dtype(name)
        assert kind.name == name
        assert gguf.GGML_QUANT_SIZES[kind] == (dtype.block_elements, dtype.block_bytes)


@pytest.mark.parametrize("alignment", [None, 64, 8])
def test_files_of_the_reference_writer(tmp_path, alignment):
    rng = np.random.default_rng(1)
    floats = rng.normal(size=(4, 512)).astype(np.float32)

    def fill(writer):
        if alignment:
            writer.add_custom_alignment(alignment)
        writer.add_block_count(12)
        writer.add_name("näme")
        writer.add_tokenizer_model("gpt2")
        writer.add_token_list([f"token{i}" for i in range(1000)])
        writer.add_token_scores([0.5] * 1000)
        writer.add_array("nested.flags", [True, False])
        writer.add_float64("f64", 1.5)
        writer.add_tensor("f32", floats)
        writer.add_tensor("f16", floats[:3, :5].astype(np.float16))
        writer.add_tensor("vector", floats[0, :7].copy())
        writer.add_tensor("cube", floats.reshape(2, 4, 256).copy())
        for dtype in (np.int8, np.int16, np.int32, np.int64, np.float64):
            writer.add_tensor(np.dtype(dtype).name, floats[:2, :6].astype(dtype))
        for kind in ("Q8_0", "Q4_0", "Q5_1", "BF16", "Q4_K", "Q6_K", "IQ4_XS", "TQ2_0", "MXFP4"):
            number = gguf.GGMLQuantizationType[kind]
            block, size = gguf.GGML_QUANT_SIZES[number]
            raw = rng.integers(0, 255, (3, 512 // block * size), dtype=np.uint8)
            writer.add_tensor(kind, raw, raw_dtype=number)

    data = write(tmp_path, fill)
    layout = parse(data, "model.gguf")
    assert (layout.format, layout.warning) == ("gguf", None)
    views = named_views(data, layout)
    assert views == oracle(tmp_path / "model.gguf")
    assert views["f32"][1] == (4, 512)
    assert views["Q8_0"][1] == (3, 512)
    assert all(segment.is_plain for segment in layout.segments)


def test_version_2_and_files_without_tensors():
    data = build([], [info(b"x", [2, 3], 0, 0)], bytes(24), version=2)
    assert named_views(data, parse(data, "x.gguf")) == {"x": ("F32", (3, 2), bytes(24))}
    assert parse(build(), "x.gguf").segments == ()


def test_unknown_types_stay_gaps_and_the_rest_is_named():
    infos = [info(b"a", [4], 0, 0), info(b"new", [64], 99, 32), info(b"b", [4], 0, 96)]
    data = build([], infos, bytes(112))
    assert list(named_views(data, parse(data, "x.gguf"))) == ["a", "b"]


def test_scalars_empty_tensors_and_order():
    infos = [info(b"late", [4], 0, 32), info(b"scalar", [], 0, 0), info(b"empty", [0, 4], 0, 0)]
    data = build([], infos, bytes(48))
    layout = parse(data, "x.gguf")
    assert [segment.tensors[0].name for segment in layout.segments] == ["empty", "scalar", "late"]


def test_metadata_of_every_type_is_stepped_over():
    sizes = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
    pairs = [pair(b"k%d" % kind, kind, bytes(size)) for kind, size in sizes.items()]
    pairs += [
        pair(b"a%d" % kind, 9, struct.pack("<IQ", kind, 3) + bytes(3 * size))
        for kind, size in sizes.items()
    ]
    strings = struct.pack("<IQ", 8, 2) + string(b"x") + string(b"y" * 300_000)
    nested = struct.pack("<IQ", 9, 2) + strings + struct.pack("<IQ", 4, 1) + bytes(4)
    pairs += [pair(b"s", 8, string(b"text")), pair(b"strings", 9, strings), pair(b"n", 9, nested)]
    data = build(pairs, [info(b"x", [4], 0, 0)], bytes(range(16)))
    assert named_views(data, parse(data, "x.gguf"))["x"][2] == bytes(range(16))


ONE = info(b"x", [4], 0, 0)
ALIGNED = pair(b"general.alignment", 4, struct.pack("<I", 8))
MALFORMED = {
    "magic only": b"GGUF",
    "version 1": build(version=1),
    "version 9": build(version=9),
    "big-endian": b"GGUF" + struct.pack(">IQQ", 3, 0, 0),
    "cut off counts": build()[:10],
    "cut off infos": build([], [ONE])[:40],
    "no data": build([], [ONE]),
    "cut off data": build([], [ONE], bytes(15)),
    "many tensors": build(counts=(2**60, 0)),
    "many pairs": build(counts=(0, 2**60)),
    "overlap": build([], [ONE, info(b"y", [4], 0, 0)], bytes(16)),
    "same name": build([], [ONE, info(b"x", [4], 0, 32)], bytes(48)),
    "unaligned": build([], [info(b"x", [4], 0, 4)], bytes(64)),
    "offset": build([], [info(b"x", [4], 0, 2**63)], bytes(64)),
    "dims": build([], [info(b"x", [1] * 9, 0, 0)], bytes(64)),
    "many dims": build([], [string(b"x") + struct.pack("<I", 2**32 - 1)], bytes(64)),
    "shape": build([], [info(b"x", [2**62, 2**62], 0, 0)], bytes(64)),
    "shape of unknown type": build([], [info(b"x", [2**62, 2**62], 99, 0)], bytes(64)),
    "part of a block": build([], [info(b"x", [16, 2], 2, 0)], bytes(64)),
    "long name": build([], [string(b"x" * 5000)], bytes(64)),
    "not utf-8": build([], [info(b"\xff", [4], 0, 0)], bytes(16)),
    "name length": build([], [struct.pack("<Q", 2**63)], bytes(64)),
    "alignment 0": build([pair(b"general.alignment", 4, bytes(4))], [ONE], bytes(16)),
    "alignment 3": build([pair(b"general.alignment", 4, struct.pack("<I", 3))], [ONE], bytes(16)),
    "alignment type": build(
        [pair(b"general.alignment", 5, struct.pack("<i", 8))], [ONE], bytes(16)
    ),
    "value type": build([pair(b"k", 13, b"")], [], bytes(64)),
    "string length": build([pair(b"k", 8, struct.pack("<Q", 2**64 - 1))], [], bytes(64)),
    "array length": build([pair(b"k", 9, struct.pack("<IQ", 4, 2**62))], [], bytes(64)),
    "array of nothing": build([pair(b"k", 9, struct.pack("<IQ", 99, 1))], [], bytes(64)),
    "array of strings": build([pair(b"k", 9, struct.pack("<IQ", 8, 2**60))], [], bytes(64)),
    "nesting": build([pair(b"k", 9, struct.pack("<IQ", 9, 1) * 2000)], [], bytes(64)),
    "long key": build([pair(b"k" * 70_000, 4, bytes(4))]),
}


@for_each("case", MALFORMED)
def test_malformed_files_are_opaque_with_a_reason(case):
    with pytest.raises(FormatError):
        parse_gguf(MemorySource(MALFORMED[case]))
    layout = parse(MALFORMED[case], "model.gguf")
    assert (layout.format, layout.segments) == ("opaque", ())
    assert layout.warning


def test_metadata_values_are_capped(monkeypatch):
    from mvc.checkpoints import gguf as module

    monkeypatch.setattr(module, "MAX_METADATA_VALUES", 100)
    empty_strings = struct.pack("<IQ", 8, 100) + string(b"") * 100
    with pytest.raises(FormatError, match="more than 100 values"):
        parse_gguf(MemorySource(build([pair(b"k", 9, empty_strings)])))


def test_the_header_is_capped(monkeypatch):
    from mvc.checkpoints import gguf as module

    monkeypatch.setattr(module, "MAX_HEADER_BYTES", 200)
    big = pair(b"k", 9, struct.pack("<IQ", 0, 300) + bytes(300))
    with pytest.raises(FormatError, match="reaches past byte 200"):
        parse_gguf(MemorySource(build([big])))
