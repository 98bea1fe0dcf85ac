import io
import zipfile

import ml_dtypes
import numpy as np
import pytest

from mvc.dtypes import get_dtype, numpy_dtype
from support.cases import for_each
from support.parsed import named_views, npy, npz, parse

DTYPES = ["?", "u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f2", "f4", "f8", "c8", "c16"]


def raw_npy(header: bytes, data: bytes = b"", version: int = 1) -> bytes:
    length = len(header).to_bytes(2 if version == 1 else 4, "little")
    return b"\x93NUMPY" + bytes([version, 0]) + length + header + data


def as_array(view) -> np.ndarray:
    dtype, shape, content = view
    return np.frombuffer(content, numpy_dtype(get_dtype(dtype))).reshape(shape)


@for_each("dtype", DTYPES)
@for_each("order", ["C", "F"])
@for_each("shape", [(), (0,), (3,), (2, 3), (2, 1, 4), (0, 3), (1, 5), (2, 3, 4)])
def test_every_dtype_shape_and_order(dtype, order, shape):
    array = np.asarray(
        np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(dtype), order=order
    )
    data = npy(array)
    layout = parse(data, "x.npy")
    view = named_views(data, layout)["array"]
    read = as_array(view)
    assert (read.dtype, read.shape, read.tobytes()) == (array.dtype, array.shape, array.tobytes())
    assert layout.segments[0].is_plain == array.flags.c_contiguous


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
def test_header_versions(version):
    data = npy(np.arange(3.0), version)
    assert as_array(named_views(data, parse(data, "x.npy"))["array"]).tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    "array",
    [
        np.arange(3, dtype=">f4"),
        np.array(["a", "bc"]),
        np.array([b"a"]),
        np.zeros(2, [("x", "<f4"), ("y", "<i4")]),
        np.array(["2020-01-01"], "M8[D]"),
        np.arange(3, dtype=np.longdouble),
        np.ones(3, ml_dtypes.bfloat16).view("V2"),  # a void in the file
    ],
)
def test_other_types_stay_opaque_without_a_warning(array):
    layout = parse(npy(array), "x.npy")
    assert (layout.format, layout.segments, layout.warning) == ("npy", (), None)


def test_object_arrays_warn():
    layout = parse(npy(np.array([{}, []], dtype=object)), "x.npy")
    assert layout.segments == ()
    assert layout.warning == "object arrays are stored as opaque bytes"


def test_bytes_behind_the_array_are_a_gap():
    data = npy(np.arange(3.0)) + npy(np.arange(2))
    assert as_array(named_views(data, parse(data, "x.npy"))["array"]).tolist() == [0, 1, 2]


def test_spellings_of_other_writers():
    header = b'{"shape":(2L,3L),"descr":"<i2","fortran_order":True}\n'
    data = raw_npy(header, bytes(12))
    assert named_views(data, parse(data, "x.npy"))["array"][:2] == ("I16", (2, 3))


GOOD = b"{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }\n"
MALFORMED = {
    "magic only": b"\x93NUMPY",
    "cut off": npy(np.arange(3.0))[:-1],
    "cut off header": npy(np.arange(3.0))[:40],
    "version": raw_npy(GOOD, bytes(8), 9),
    "long header": raw_npy(GOOD)[:8] + b"\xff\xff" + GOOD,
    "no dict": raw_npy(b"[1, 2]", bytes(8)),
    "empty header": raw_npy(b"", bytes(8)),
    "code": raw_npy(b"__import__('os').system('true')", bytes(8)),
    "huge": raw_npy(GOOD.replace(b"(2,)", b"(4611686018427387904, 4)"), bytes(8)),
    "digits": raw_npy(GOOD.replace(b"(2,)", b"(" + b"9" * 6000 + b",)"), bytes(8)),
    "dims": raw_npy(GOOD.replace(b"(2,)", b"(" + b"1," * 65 + b")"), bytes(8)),
    "wrong types": raw_npy(b"{'descr': True, 'fortran_order': '<f4', 'shape': (2,)}", bytes(8)),
    "odd dims": raw_npy(GOOD.replace(b"(2,)", b"(2 3)"), bytes(8)),
}


@for_each("case", MALFORMED)
def test_malformed_arrays_are_opaque_with_a_reason(case):
    layout = parse(MALFORMED[case], "x.npy")
    assert (layout.format, layout.segments) == ("opaque", ())
    assert layout.warning


def test_headers_that_are_not_understood_name_nothing():
    for header in (
        GOOD.replace(b"(2,)", b"__import__('os')"),
        GOOD.replace(b"'<f4'", b"[('x', '<f4')]"),
        GOOD.replace(b"}", b"'more': (1,)}"),
        b"{'descr': '<f4'}",
        b"{" + b"(" * 60_000 + b"}",
        b"{" + b"'descr': '<f4', " * 4000 + b"}",
    ):
        layout = parse(raw_npy(header, bytes(8)), "x.npy")
        assert (layout.format, layout.segments) == ("npy", ())


def test_a_longer_header_than_any_plain_array_has():
    data = raw_npy(GOOD + b" " * 100_000, bytes(8), version=2)
    assert parse(data, "x.npy").segments == ()


def test_archives_name_each_array():
    arrays = {
        "w": np.arange(6, dtype=np.float32).reshape(2, 3),
        "f": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        "layer.0/bias": np.arange(4, dtype=np.int8),
        "scalar": np.array(2.5),
        "empty": np.zeros((0, 2)),
        "text": np.array(["no"]),
    }
    data = npz(**arrays)
    layout = parse(data, "x.npz")
    views = named_views(data, layout)
    assert (layout.format, layout.warning) == ("npz", None)
    assert set(views) == set(arrays) - {"text"}
    for name, view in views.items():
        assert as_array(view).tobytes() == arrays[name].tobytes()
        assert view[1] == arrays[name].shape


def test_compressed_archives_stay_gaps_and_warn():
    buffer = io.BytesIO()
    np.savez_compressed(buffer, a=np.zeros(10))
    layout = parse(buffer.getvalue(), "x.npz")
    assert (layout.format, layout.segments) == ("npz", ())
    assert layout.warning == "compressed entries are stored as opaque bytes"


def test_partly_compressed_archives_name_the_rest():
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("a.npy", npy(np.arange(3)))
        archive.writestr("b.npy", npy(np.arange(3)), zipfile.ZIP_DEFLATED)
        archive.writestr("readme.txt", "text")
    layout = parse(buffer.getvalue(), "x.npz")
    assert list(named_views(buffer.getvalue(), layout)) == ["a"]
    assert layout.warning is None


def test_object_arrays_in_archives_warn_and_the_rest_is_named():
    data = npz(o=np.array([{}], dtype=object), a=np.arange(3))
    layout = parse(data, "x.npz")
    assert list(named_views(data, layout)) == ["a"]
    assert layout.warning == "object arrays are stored as opaque bytes"


def test_a_damaged_array_names_its_entry():
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("a.npy", npy(np.arange(3))[:-1])
    layout = parse(buffer.getvalue(), "x.npz")
    assert layout.format == "opaque"
    assert "a.npy" in layout.warning
