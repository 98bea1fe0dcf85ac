"""Files made to harm: every parser answers with a checked layout, and nothing ever runs."""

import codecs
import contextlib
import io
import os
import pickle
import struct
import subprocess
import sys
import tracemalloc
import zipfile

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given
from hypothesis import strategies as st

from mvc.checkpoints import torch_zip, zip_directory
from mvc.checkpoints.torch_pickle import names as torch_names
from mvc.errors import FormatError
from mvc.sources import MemorySource
from support.parsed import named_views, parse, torch_archive

WEIGHTS = struct.pack("<4f", 1, 2, 3, 4)


def tensor_pickle(key: bytes = b"0", elements: int = 4) -> bytes:
    """Return the opcodes that push a float tensor of four elements, as torch writes them."""
    return (
        b"ctorch._utils\n_rebuild_tensor_v2\n"
        b"((X\x07\x00\x00\x00storagectorch\nFloatStorage\nX" + struct.pack("<I", len(key)) + key
        + b"X\x03\x00\x00\x00cpuJ" + struct.pack("<i", elements) + b"tQK\x00K\x04\x85K\x01\x85\x89"
        + b"ccollections\nOrderedDict\n)RtR"
    )  # fmt: skip


def text(value: str) -> bytes:
    raw = value.encode()
    return b"X" + struct.pack("<I", len(raw)) + raw


class Call:
    """Pickles as a call of a function on arguments."""

    def __init__(self, function, *args):
        self.call = (function, args)

    def __reduce__(self):
        return self.call


def payloads(marker) -> dict[str, bytes]:
    """Return pickles that create the marker file when a real unpickler loads them."""
    command = f"touch {marker}"
    code = f"open({str(marker)!r}, 'w').close()"
    quoted = text(command)
    return {
        "os.system": pickle.dumps(Call(os.system, command), 2),
        "os.system 4": pickle.dumps(Call(os.system, command), 4),
        "os.system 0": pickle.dumps(Call(os.system, command), 0),
        "eval": pickle.dumps(Call(eval, code), 2),
        "exec": pickle.dumps(Call(exec, code), 4),
        "subprocess": pickle.dumps(Call(subprocess.call, ["touch", str(marker)]), 2),
        "nested": pickle.dumps({"a": [Call(exec, code), (Call(list, Call(eval, code)),)]}, 2),
        "getattr chain": pickle.dumps(
            Call(getattr, Call(__import__, "os"), "system"), 2
        )[:-1] + b"(" + quoted + b"tR.",
        "inst": b"(" + quoted + b"ios\nsystem\n.",
        "obj": b"(cos\nsystem\n" + quoted + b"o.",
        "newobj": b"csubprocess\nPopen\n(](" + text("touch") + text(str(marker)) + b"et\x81.",
        "newobj_ex": b"csubprocess\nPopen\n(](" + text("touch") + text(str(marker)) + b"et}\x92.",
        "stack global": text("os") + text("system") + b"\x93" + quoted + b"\x85R.",
        "build setstate": b"ctypes\nSimpleNamespace\n)R}" + text("__setstate__")
        + b"cos\nsystem\nsb" + quoted + b"b.",
        "memo": b"cos\nsystem\nr\xff\xff\xff\x7f0j\xff\xff\xff\x7f" + quoted + b"\x85R.",
        "partial": b"cfunctools\npartial\ncos\nsystem\n" + quoted + b"\x86R)R.",
        "torch rebuild": b"ctorch._tensor\n_rebuild_from_type_v2\n(cos\nsystem\nN"
        + quoted + b"\x85NtR.",
        "map": b"c__builtin__\nlist\nc__builtin__\nmap\ncos\nsystem\n](" + quoted + b"e\x86R\x85R.",
    }  # fmt: skip


PAYLOADS = list(payloads(""))


@pytest.mark.parametrize("name", ["os.system", "os.system 0", "exec", "getattr chain", "inst", "obj", "stack global", "map"])  # fmt: skip
def test_the_payloads_are_real(name, tmp_path):
    marker = tmp_path / "marker"
    with contextlib.suppress(Exception):  # some die after the harm is done
        pickle.loads(payloads(marker)[name])
    assert marker.exists()


@pytest.mark.parametrize("name", PAYLOADS)
def test_nothing_in_a_pickle_ever_runs(name, tmp_path):
    marker = tmp_path / "marker"
    payload = payloads(marker)[name]
    codecs.lookup("cp437"), codecs.lookup("raw-unicode-escape")  # what the parsers themselves use
    before = set(sys.modules)
    # Alone, and beside a real tensor in a dictionary that must still be found.
    beside = (
        b"}("
        + text("evil")
        + payload.removeprefix(b"\x80\x02")[:-1]
        + text("w")
        + tensor_pickle()
        + b"u."
    )
    for pickled in (payload, b"\x80\x02" + beside):
        data = torch_archive(pickled, {"0": WEIGHTS})
        layout = parse(data, "model.pt")
        assert layout.format == "torch"
    assert named_views(data, layout) == {"w": ("F32", (4,), WEIGHTS)}
    assert not marker.exists()
    assert set(sys.modules) == before


@pytest.mark.parametrize("module", ["antigravity", "this", "turtledemo", "lib2to3.pgen2.driver"])
def test_no_module_is_imported(module):
    assert module not in sys.modules
    pickled = f"c{module}\nx\n)R.".encode()
    assert parse(torch_archive(pickled), "x.pt").format == "torch"
    assert parse(torch_archive(f"(i{module}\nx\n.".encode()), "x.pt").format == "torch"
    assert module not in sys.modules


@pytest.mark.parametrize(
    "pickled",
    [
        b"]\x94h\x00a.",  # a list in itself
        b"]\x94(h\x00h\x00h\x00e.",
        b"}\x94" + text("me") + b"h\x00s.",
        b"(N}\x94h\x00t0h\x00" + text("x") + b"h\x00s.",
        b"cx\ny\n)R\x94h\x00b.",  # an object that is its own state
        b"cx\ny\n)R\x94h\x00h\x00b0h\x00h\x00a.",
        b"cx\ny\n)R\x94h\x00R.",
        b"]\x94h\x00\x85\x94a0h\x01.",  # a tuple in its own list
        b"\x82\x01.",
        b"\x84\xff\xff\xff\xff)R.",
        b"cos\n\nN.",
        b"c\n\n)R.",
        b"c__main__\n__dict__\n.",
        b"c\xc3\xa9\nx.y.z\n)R.",
        b"Pabc\n.",
        b"NQ.",
        b")Q.",
        b"]Q.",
        b"(" + text("module") + b"NNNNtQ.",
        b"F1e999\n.",
        b"\x8f(K\x01]}\x90.",  # a set of lists and dictionaries
        b"}(]K\x01}K\x02u.",  # lists as keys
    ],
)
def test_odd_pickles_stay_inert(pickled):
    with_tensor = b"](" + pickled[:-1] + tensor_pickle() + b"e."
    assert parse(torch_archive(pickled), "x.pt").format == "torch"
    names = named_views(
        torch_archive(with_tensor, {"0": WEIGHTS}),
        parse(torch_archive(with_tensor, {"0": WEIGHTS}), "x.pt"),
    )
    assert WEIGHTS in {view[2] for view in names.values()}


@pytest.mark.parametrize(
    "pid",
    [
        text("storage") + b"ctorch\nFloatStorage\n" + text("../data.pkl") + b"NK\x04",
        text("storage") + b"ctorch\nFloatStorage\nK\x00NK\x04",
        text("storage") + b"ctorch\nFloatStorage\n" + text("0") + b"NJ\xff\xff\xff\xff",
        text("storage")
        + b"ctorch\nFloatStorage\n"
        + text("0")
        + b"N\x8a\x0a"
        + b"\xff" * 9
        + b"\x7f",
        text("storage") + b"ctorch\nFloatStorage\n" + text("0") + b"NN",
        text("storage") + b"ctorch\nFloatStorage\n" + text("0") + b"NK\x05",
        text("storage"),
    ],
)
def test_persistent_ids_cannot_point_anywhere_else(pid):
    layout = parse(torch_archive(b"(" + pid + b"tQ.", {"0": WEIGHTS}), "x.pt")
    assert (layout.format, layout.segments) == ("opaque", ())


def test_storages_of_unknown_types_are_not_guessed():
    pid = b"(" + text("storage") + b"cos\nsystem\n" + text("0") + b"NK\x04tQ"
    data = torch_archive(pid + b".", {"0": WEIGHTS})
    assert named_views(data, parse(data, "x.pt")) == {}


def nested(opcode: bytes, depth: int) -> bytes:
    return b"N" + opcode * depth + b"."


BOMBS = {
    "tuples": nested(b"\x85", 100_000),
    "lists": b"]" * 100_000 + b"a" * 99_999 + b".",
    "dictionaries": b"}N" * 50_000 + b"}" + b"s" * 50_000 + b".",
    "objects": b"cx\ny\n\x940" + b"h\x00)R" * 50_000 + b"b" * 49_999 + b".",
    "reduced": b"cx\ny\n" + b")R" * 50_000 + b".",
    "arguments": b"cx\ny\n" * 5_000 + b")" + b"R" * 5_000 + b".",
    "marks": b"(" * 100_000 + b"N.",
    "laughs": b"]\x94(" + b"NNNNNNNNNN" + b"e"
    + b"".join(b"](" + b"h" + bytes([i]) + b"\x94" * 0 + (b"h" + bytes([i])) * 9 + b"e\x94" for i in range(100))
    + b".",
    "doubling": b"N" + b"2\x86" * 50_000 + b".",
    "shared arguments": b"(" + b"K\x01" * 20_000 + b"t\x94" + b"0ccollections\nOrderedDict\n\x940"
    + b"h\x01h\x00R" * 20_000 + b".",
    "shared state": b"}(" + b"NN" * 20_000 + b"u\x940cx\ny\n\x940" + b"h\x01)Rh\x00b" * 20_000 + b"l.",
    "shared keys": b"(" + b"K\x01" * 20_000 + b"t\x940}(" + b"h\x00]" * 20_000 + b"u.",
    "colliding keys": b"}(" + b"".join(
        b"\x8a\x0a" + (i * (2**61 - 1)).to_bytes(10, "little") + b"N" for i in range(20_000)
    ) + b"u.",
    "memo": b"N" + b"".join(b"r" + struct.pack("<I", 2**32 - 1 - i) for i in range(50_000)) + b".",
    "long line": b"S'" + b"x" * 1_000_000 + b"'\n.",
    "long name": b"c" + b"x" * 1_000_000 + b"\ny\n.",
    "long number": b"\x8b" + struct.pack("<i", 1_000_000) + b"\xff" * 1_000_000 + b".",
    "long digits": b"L" + b"9" * 1_000_000 + b"L\n.",
    "long memo": b"Np" + b"9" * 1_000_000 + b"\n.",
}  # fmt: skip


@pytest.mark.parametrize("name", BOMBS)
def test_bombs_cost_no_more_than_their_size(name):
    data = torch_archive(BOMBS[name])
    tracemalloc.start()
    try:
        parse(data, "x.pt")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 64 * 2**20


def test_names_are_capped_in_number_and_size(monkeypatch):
    one = tensor_pickle() + b"\x940"
    many = torch_archive(one + b"](" + b"h\x00" * 50 + b"e.", {"0": WEIGHTS})
    assert len(named_views(many, parse(many, "x.pt"))) == 50
    monkeypatch.setattr(torch_names, "MAX_TENSORS", 49)
    assert parse(many, "x.pt").format == "opaque"
    monkeypatch.undo()
    long_key = text("k" * 4000)
    data = torch_archive(one + b"}" + long_key + b"](" + b"h\x00" * 50 + b"es.", {"0": WEIGHTS})
    assert len(named_views(data, parse(data, "x.pt"))) == 50
    monkeypatch.setattr(torch_names, "MAX_NAMES_BYTES", 50_000)
    assert parse(data, "x.pt").format == "opaque"


def test_deep_tensors_are_left_out_and_shallow_ones_named():
    deep = b"]" * 3000 + tensor_pickle() + b"a" * 3000
    data = torch_archive(b"](" + deep + tensor_pickle() + b"e.", {"0": WEIGHTS})
    assert list(named_views(data, parse(data, "x.pt"))) == ["1"]


def test_long_pickles_are_not_even_read(monkeypatch):
    monkeypatch.setattr(torch_zip, "MAX_PICKLE_BYTES", 10)
    layout = parse(torch_archive(b"N" * 20 + b"."), "x.pt")
    assert "the limit is 10" in layout.warning


# ---------------------------------------------------------------- zip archives


def stored(*members: tuple[str, bytes], kind=zipfile.ZIP_STORED, comment=b"") -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", kind) as archive:
        for name, content in members:
            archive.writestr(name, content)
        archive.comment = comment
    return buffer.getvalue()


GOOD = torch_archive(tensor_pickle() + b".", {"0": WEIGHTS})


def patched(data: bytes, position: int, value: bytes) -> bytes:
    return data[:position] + value + data[position + len(value) :]


def central_of(data: bytes, name: bytes) -> int:
    """Return where the central header of an entry begins."""
    return data.rindex(name) - 46


def refused(data: bytes, name: str = "x.pt") -> None:
    with pytest.raises(FormatError):
        zip_directory.parse_zip_directory(MemorySource(data))
    layout = parse(data, name)
    assert (layout.format, layout.segments) == ("opaque", ())
    assert layout.warning


def test_the_good_archive_is_read():
    assert named_views(GOOD, parse(GOOD, "x.pt"))["tensor"][2] == WEIGHTS


def test_entries_that_overlap_are_refused():
    storage = central_of(GOOD, b"archive/data/0")
    pickled = central_of(GOOD, b"archive/data.pkl")
    refused(patched(GOOD, storage + 42, GOOD[pickled + 42 : pickled + 46]))
    # One entry that claims the bytes of the next one as its own, in both headers.
    local = struct.unpack_from("<I", GOOD, storage + 42)[0]
    sizes = struct.pack("<II", 100, 100)
    refused(patched(patched(GOOD, storage + 20, sizes), local + 18, sizes))


def test_an_entry_inside_another_is_refused():
    inner = stored(("archive/data/0", WEIGHTS))
    outer = stored(
        ("archive/data.pkl", tensor_pickle() + b"."), ("archive/filler", inner + bytes(32))
    )
    # A third central header that points at the local header inside the filler.
    start = struct.unpack_from("<I", outer, len(outer) - 6)[0]
    directory = outer[start : len(outer) - 22]
    where = outer.index(inner)
    extra = patched(inner[inner.index(b"PK\x01\x02") : -22], 42, struct.pack("<I", where))
    end = struct.pack(
        "<4sHHHHIIH", b"PK\x05\x06", 0, 0, 3, 3, len(directory) + len(extra), start, 0
    )
    refused(outer[:start] + directory + extra + end)


def test_headers_that_disagree_are_refused():
    storage = central_of(GOOD, b"archive/data/0")
    local = struct.unpack_from("<I", GOOD, storage + 42)[0]
    refused(patched(GOOD, local, b"PK\x03\x05"))
    refused(patched(GOOD, local + 8, b"\x08\x00"))  # method
    refused(patched(GOOD, local + 18, struct.pack("<I", 8)))  # compressed size
    refused(patched(GOOD, local + 22, struct.pack("<I", 8)))  # plain size
    refused(patched(GOOD, local + 26, b"\x0d\x00"))  # name length
    refused(patched(GOOD, local + 30, b"Archive"))  # name
    refused(patched(GOOD, local + 28, b"\xff\xff"))  # extra field that moves the data
    refused(patched(GOOD, storage + 20, struct.pack("<I", 8)))
    refused(patched(GOOD, storage + 24, struct.pack("<I", 8)))
    refused(patched(GOOD, storage + 42, struct.pack("<I", 2**31)))
    refused(patched(GOOD, storage + 42, struct.pack("<I", 2**32 - 1)))  # 64-bit value missing
    refused(patched(GOOD, storage + 34, b"\x01\x00"))  # on another disk
    refused(patched(GOOD, storage, b"PK\x01\x03"))


def test_ends_that_lie_are_refused():
    end = len(GOOD) - 22
    refused(patched(GOOD, end + 8, b"\x01\x00\x01\x00"))  # fewer entries
    refused(patched(GOOD, end + 8, b"\xff\xff\xff\xff"))  # more
    refused(patched(GOOD, end + 4, b"\x01\x00"))  # disk number
    refused(patched(GOOD, end + 12, struct.pack("<I", 10)))  # size of the directory
    refused(patched(GOOD, end + 16, struct.pack("<I", 0)))  # its start
    refused(patched(GOOD, end + 16, struct.pack("<I", 2**32 - 1)))
    refused(patched(GOOD, end + 20, b"\x05\x00"))  # a comment that is not there
    refused(GOOD[:-1])
    refused(GOOD + b"\0")
    refused(b"garbage before" + GOOD, "x.pt")
    refused(GOOD[:-22])
    refused(b"PK\x03\x04")
    refused(GOOD[-22:][:4] + bytes(18) + b"x")


def test_an_empty_archive_has_nothing_to_name():
    layout = parse(stored(), "x.pt")
    assert layout.format == "opaque"
    assert "neither" in layout.warning


def test_comments_are_read_but_two_ends_are_refused():
    members = [("archive/data.pkl", tensor_pickle() + b"."), ("archive/data/0", WEIGHTS)]
    data = stored(*members, comment=b"a comment")
    assert named_views(data, parse(data, "x.pt"))["tensor"][2] == WEIGHTS
    data = stored(*members, comment=b"PK\x05\x06 by chance")
    assert parse(data, "x.pt").format == "torch"
    refused(stored(*members, comment=b"PK\x05\x06" + bytes(18)))


def test_names_twice_are_refused():
    with pytest.warns(UserWarning, match="Duplicate name"):
        data = stored(("archive/data.pkl", b"N."), ("archive/data.pkl", tensor_pickle() + b"."))
    refused(data)


def test_two_pickles_are_refused():
    layout = parse(stored(("a/data.pkl", b"N."), ("b/data.pkl", b"N.")), "x.pt")
    assert "2 entries called data.pkl" in layout.warning


def test_nothing_is_ever_inflated():
    bomb = stored(
        ("archive/data.pkl", tensor_pickle() + b"."),
        ("archive/data/0", bytes(50_000_000)),
        kind=zipfile.ZIP_DEFLATED,
    )
    tracemalloc.start()
    try:
        layout = parse(bomb, "x.pt")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert "compressed" in layout.warning
    assert peak < 5_000_000


def test_encrypted_entries_are_not_named():
    pickled = central_of(GOOD, b"archive/data.pkl")
    local = struct.unpack_from("<I", GOOD, pickled + 42)[0]
    data = patched(patched(GOOD, pickled + 8, b"\x01\x00"), local + 6, b"\x01\x00")
    assert "encrypted" in parse(data, "x.pt").warning


def test_more_than_65535_entries():
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("archive/data.pkl", tensor_pickle(b"69999") + b".")
        for number in range(66_000):
            archive.writestr(zipfile.ZipInfo(f"archive/data/{number}"), b"")
        archive.writestr("archive/data/69999", WEIGHTS)
    data = buffer.getvalue()
    assert named_views(data, parse(data, "x.pt"))["tensor"][2] == WEIGHTS


def test_the_number_of_entries_and_the_directory_are_capped(monkeypatch):
    monkeypatch.setattr(zip_directory, "MAX_ENTRIES", 3)
    assert "past the limit" in parse(GOOD, "x.pt").warning
    monkeypatch.setattr(zip_directory, "MAX_ENTRIES", 100)
    monkeypatch.setattr(zip_directory, "MAX_DIRECTORY_BYTES", 100)
    assert "past the limit" in parse(GOOD, "x.pt").warning


def test_64_bit_sizes_are_read(tmp_path):
    path = tmp_path / "x.pt"
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in (("a/data.pkl", tensor_pickle() + b"."), ("a/data/0", WEIGHTS)):
            with archive.open(name, "w", force_zip64=True) as entry:
                entry.write(content)
    data = path.read_bytes()
    assert named_views(data, parse(data, "x.pt"))["tensor"][2] == WEIGHTS
    local = data.index(b"PK\x03\x04", 10)
    data = patched(data, local + 18, b"\xff" * 8)  # as Python writes them from 3.11.4 on
    assert named_views(data, parse(data, "x.pt"))["tensor"][2] == WEIGHTS
    refused(patched(data, local + 30 + len("a/data/0") + 4, struct.pack("<Q", 15)))


def test_archives_written_as_a_stream_are_read():
    class Pipe(io.RawIOBase):
        """A target that cannot seek: sizes follow the data."""

        def __init__(self):
            self.data = bytearray()

        def writable(self):
            return True

        def write(self, piece):
            self.data += piece
            return len(piece)

    pipe = Pipe()
    with zipfile.ZipFile(pipe, "w") as archive:
        archive.writestr("a/data.pkl", tensor_pickle() + b".")
        archive.writestr("a/data/0", WEIGHTS)
    data = bytes(pipe.data)
    assert named_views(data, parse(data, "x.pt"))["tensor"][2] == WEIGHTS


# ---------------------------------------------------------------- random damage


def _npz() -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, a=np.arange(5.0), f=np.asfortranarray(np.ones((2, 3), np.int16)))
    return buffer.getvalue()


def _npy() -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, np.asfortranarray(np.ones((2, 3), np.int16)))
    return buffer.getvalue()


def _gguf() -> bytes:
    def string(raw):
        return struct.pack("<Q", len(raw)) + raw

    head = b"GGUF" + struct.pack("<IQQ", 3, 2, 2)
    head += string(b"general.alignment") + struct.pack("<II", 4, 16)
    head += string(b"words") + struct.pack("<IIQ", 9, 8, 2) + string(b"a") + string(b"bc")
    head += string(b"x") + struct.pack("<IQQIQ", 2, 2, 2, 0, 0)
    head += string(b"q") + struct.pack("<IQIQ", 1, 32, 2, 16)
    return head + bytes(-len(head) % 16) + bytes(34)


SAMPLES = {
    "x.pt": torch_archive(
        b"}(" + text("a") + tensor_pickle() + text("b") + b"](" + tensor_pickle() + b"cx\ny\n)Reu.",
        {"0": WEIGHTS},
    ),
    "x.npz": _npz(),
    "x.npy": _npy(),
    "x.gguf": _gguf(),
    "x.safetensors": safetensors.numpy.save({"a": np.arange(5.0), "b": np.ones((2, 3), np.int16)}),
}

EDITS = st.lists(
    st.tuples(
        st.sampled_from(["flip", "set", "insert", "delete", "truncate", "copy"]),
        st.floats(0, 1, exclude_max=True),
        st.one_of(
            st.binary(min_size=1, max_size=8),
            st.sampled_from([b"\xff" * 4, b"\xff" * 8, b"\x00" * 8, b"PK\x05\x06", b"PK\x01\x02"]),
        ),
    ),
    min_size=1,
    max_size=4,
)


def damage(data: bytes, edits) -> bytes:
    for kind, place, piece in edits:
        at = int(place * len(data))
        if kind == "flip":
            data = patched(data, at, bytes([data[at] ^ (1 << piece[0] % 8)])) if data else data
        elif kind == "set":
            data = patched(data, at, piece)
        elif kind == "insert":
            data = data[:at] + piece + data[at:]
        elif kind == "delete":
            data = data[:at] + data[at + len(piece) :]
        elif kind == "truncate":
            data = data[:at]
        else:
            data = data[:at] + data[at // 2 : at // 2 + 64] + data[at:]
    return data


@pytest.mark.parametrize("name", SAMPLES)
def test_samples_are_whole(name):
    layout = parse(SAMPLES[name], name)
    assert layout.format != "opaque"
    assert len(named_views(SAMPLES[name], layout)) >= 1


@pytest.mark.parametrize("name", SAMPLES)
@given(edits=EDITS)
def test_damaged_files_always_give_a_checked_layout(name, edits):
    data = damage(SAMPLES[name], edits)
    named_views(data, parse(data, name))


@given(edits=EDITS)
def test_damaged_pickles_in_sound_archives(edits):
    archive = zipfile.ZipFile(io.BytesIO(SAMPLES["x.pt"]))
    pickled = damage(archive.read("archive/data.pkl"), edits)
    data = torch_archive(pickled, {"0": WEIGHTS})
    named_views(data, parse(data, "x.pt"))


@pytest.mark.parametrize("name", SAMPLES)
def test_every_truncation_gives_a_checked_layout(name):
    data = SAMPLES[name]
    for length in range(len(data)):
        named_views(data[:length], parse(data[:length], name))


@pytest.mark.parametrize("name", SAMPLES)
def test_every_byte_set_to_extremes_gives_a_checked_layout(name):
    data = SAMPLES[name]
    for position in range(len(data)):
        for value in (b"\x00", b"\xff"):
            changed = patched(data, position, value)
            named_views(changed, parse(changed, name))


@given(
    st.sampled_from(
        [
            b"",
            b"PK\x03\x04",
            b"GGUF\x03\0\0\0",
            b"\x93NUMPY\x01\0",
            b"\x80\x02",
            b"\x10" + bytes(7) + b"{",
        ]
    ),
    st.binary(max_size=300),
    st.sampled_from([*SAMPLES, "x.bin", "x.ckpt", "x"]),
)
def test_any_bytes_under_any_name(head, data, name):
    named_views(head + data, parse(head + data, name))
