"""Zip archives whose tensors are exchanged: checksums as zipfile wants them, or the archive is refused."""

import io
import zipfile
import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mvc.checkpoints.detect import read_layout
from mvc.checkpoints.zip_frame import GapBytes, ZipFrame, join_crc32
from mvc.errors import FormatError
from mvc.formats.layout import find_gaps, single_tensor
from mvc.sources import MemorySource
from support.parsed import npy, npz

ARRAYS = {
    "a": np.arange(12, dtype=np.float32).reshape(3, 4),
    "empty": np.zeros((0, 3)),
    "scalar": np.float64(-0.0),
    "b": np.arange(5000, dtype=np.int16),
}


def frame_of(data, segments=None):
    segments = read_layout(MemorySource(data), "m.npz").segments if segments is None else segments
    gaps = [*find_gaps(len(data), segments)]
    held = bytearray(b"".join(data[start : start + size] for start, size in gaps))
    return ZipFrame(GapBytes(gaps, held, len(data)), segments), gaps


@given(st.binary(max_size=300), st.binary(max_size=300))
def test_checksums_are_joined(first, second):
    joined = join_crc32(zlib.crc32(first), zlib.crc32(second), len(second))
    assert joined == zlib.crc32(first + second)


def test_checksums_of_long_runs_are_joined():
    first, second = bytes(range(256)), bytes(3_000_001)
    joined = join_crc32(zlib.crc32(first), zlib.crc32(second), len(second))
    assert joined == zlib.crc32(first + second)


@pytest.mark.parametrize("is_streamed", [False, True])
def test_other_tensors_get_their_checksums(is_streamed):
    """An archive that was written without seeking has its checksums behind the entries."""

    class Pipe(io.BytesIO):
        def seekable(self):
            return False

        def seek(self, *_):
            raise OSError

    def save(arrays):
        file = Pipe() if is_streamed else io.BytesIO()
        with zipfile.ZipFile(file, "w") as archive:
            for name, one in arrays.items():
                archive.writestr(zipfile.ZipInfo(f"{name}.npy"), npy(one))
        return file.getvalue()

    before, after = save(ARRAYS), save({name: one + 1 for name, one in ARRAYS.items()})
    frame, gaps = frame_of(before)
    other, _ = frame_of(after)
    assert frame.version == other.version
    segments = read_layout(MemorySource(after), "m.npz").segments
    own = [zlib.crc32(after[one.start : one.end]) for one in segments]
    assert other.crc32s() == own
    assert frame.renew(own) == b"".join(after[start : start + size] for start, size in gaps)
    assert frame.renew(frame.crc32s()) == bytes(frame._file.data)


def test_what_is_no_tensor_makes_a_version():
    first, _ = frame_of(npz(a=ARRAYS["a"], words=np.array(["x"])))
    other, _ = frame_of(npz(a=ARRAYS["a"], words=np.array(["y"])))
    assert first.version != other.version


def test_archives_that_lie_are_refused():
    data = bytearray(npz(a=ARRAYS["a"]))
    layout = read_layout(MemorySource(bytes(data)), "m.npz")
    segment = layout.segments[0]
    with pytest.raises(FormatError, match="not at the end"):
        frame_of(bytes(data), [single_tensor("a", "F32", (2, 4), segment.start)])
    halves = [single_tensor(name, "F32", (1,), segment.end - 4) for name in "ab"]
    with pytest.raises(FormatError, match="one zip entry"):
        frame_of(bytes(data), halves)
    data[14] ^= 1  # the checksum of the local header
    with pytest.raises(FormatError, match="two checksums"):
        frame_of(bytes(data))


@given(st.data())
def test_hostile_archives_are_refused_or_read(data):
    whole = npz(a=ARRAYS["a"], b=ARRAYS["b"][:9])
    segments = read_layout(MemorySource(whole), "m.npz").segments
    changed = bytearray(whole)
    for _ in range(data.draw(st.integers(1, 4))):
        changed[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    try:
        frame, _ = frame_of(bytes(changed), segments)
    except FormatError:
        return
    assert len(frame.renew([0, 1])) == len(frame._file.data)
