"""Files made to harm: every parser answers with a checked layout, and nothing ever runs."""

import codecs
import contextlib
import io
import os
import pickle
import struct
import subprocess
import sys
import zipfile

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given
from hypothesis import strategies as st

from mvc.checkpoints import torch_zip
from support.cases import for_each
from support.forged_files import WEIGHTS, patched, stored, tensor_pickle, text
from support.machine import peak_below
from support.parsed import named_views, npy, npz, parse, torch_archive


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
        "eval": pickle.dumps(Call(eval, code), 2),
        "exec": pickle.dumps(Call(exec, code), 4),
        "subprocess": pickle.dumps(Call(subprocess.call, ["touch", str(marker)]), 2),
        "nested": pickle.dumps({"a": [Call(exec, code), (Call(list, Call(eval, code)),)]}, 2),
        "getattr chain": pickle.dumps(
            Call(getattr, Call(__import__, "os"), "system"), 2
        )[:-1] + b"(" + quoted + b"tR.",
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


@pytest.mark.parametrize("name", ["os.system", "exec", "getattr chain", "stack global", "map"])  # fmt: skip
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
    assert module not in sys.modules


@for_each(
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
        b"NQ.",
        b")Q.",
        b"]Q.",
        b"(" + text("module") + b"NNNNtQ.",
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
    "shared state": b"}(" + b"NN" * 20_000 + b"u\x940cx\ny\n\x940" + b"h\x01)Rh\x00b" * 20_000 + b".",
    "shared keys": b"(" + b"K\x01" * 20_000 + b"t\x940}(" + b"h\x00]" * 20_000 + b"u.",
    "colliding keys": b"}(" + b"".join(
        b"\x8a\x0a" + (i * (2**61 - 1)).to_bytes(10, "little") + b"N" for i in range(20_000)
    ) + b"u.",
    "memo": b"N" + b"".join(b"r" + struct.pack("<I", 2**32 - 1 - i) for i in range(50_000)) + b".",
    "long name": b"c" + b"x" * 1_000_000 + b"\ny\n.",
    "long number": b"\x8b" + struct.pack("<i", 1_000_000) + b"\xff" * 1_000_000 + b".",
}  # fmt: skip


@for_each("name", BOMBS)
def test_bombs_cost_no_more_than_their_size(name):
    data = torch_archive(BOMBS[name])
    with peak_below(64 * 2**20):
        parse(data, "x.pt")


def test_long_pickles_are_not_even_read(monkeypatch):
    monkeypatch.setattr(torch_zip, "MAX_PICKLE_BYTES", 10)
    layout = parse(torch_archive(b"N" * 20 + b"."), "x.pt")
    assert "the limit is 10" in layout.warning


def test_two_pickles_are_refused():
    layout = parse(stored(("a/data.pkl", b"N."), ("b/data.pkl", b"N.")), "x.pt")
    assert "2 entries called data.pkl" in layout.warning


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
    "x.npz": npz(a=np.arange(5.0), f=np.ones((2, 3), np.int16, "F")),
    "x.npy": npy(np.ones((2, 3), np.int16, "F")),
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
