"""The pickle machine against the real pickler, on values that hold no object."""

import collections
import contextlib
import pickle
import pickletools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mvc.checkpoints.torch_pickle import unpickler
from mvc.checkpoints.torch_pickle.objects import reduce_torch
from mvc.checkpoints.torch_pickle.values import (
    LITERALS,
    Global,
    Opaque,
    Pairs,
)
from mvc.errors import FormatError
from support.cases import for_each

PROTOCOL = b"\x80\x02"
OF_PROTOCOL_0 = {
    *("INT", "LONG", "STRING", "UNICODE", "FLOAT", "LIST", "DICT", "GET", "PUT", "PERSID"),
    *("INST", "OBJ"),
}


def run(data: bytes):
    return unpickler.unpickle(data, reduce_torch, lambda pid: None)


def test_shared_values_stay_shared_and_cycles_close():
    inner = [1]
    loop = [inner, inner]
    loop.append(loop)
    for protocol in range(2, 6):
        result = run(pickle.dumps(loop, protocol))
        assert result[0] is result[1]
        assert result[2] is result


class Thing:
    def __init__(self):
        self.weight = [1, 2]


class Both(dict):
    __slots__ = ("slot",)


@pytest.mark.parametrize("protocol", range(2, 6))
def test_objects_become_opaque_with_what_they_hold(protocol):
    result = run(pickle.dumps(Thing(), protocol))
    assert isinstance(result, Opaque)
    assert result.states == [Pairs(["weight", [1, 2]])]


def test_containers_of_unknown_classes_keep_their_members():
    value = Both(a=1)
    value.slot = 2
    result = run(pickle.dumps(value, 4))
    assert result.pairs == Pairs(["a", 1])
    assert result.states == [(None, Pairs(["slot", 2]))]
    result = run(pickle.dumps(collections.deque([1, 2]), 4))
    assert result.maker == Global("collections.deque")
    assert result.members == [1, 2]


@pytest.mark.parametrize("protocol", [0, 1])
def test_old_protocols_are_refused_with_what_to_do(protocol):
    with pytest.raises(FormatError, match=r"torch\.save with its default protocol"):
        run(pickle.dumps([1], protocol))


def test_every_opcode_since_protocol_2_is_known():
    refused = {"NEXT_BUFFER", "READONLY_BUFFER", "STOP"}  # buffers outside the file; STOP ends
    known = {*LITERALS, *unpickler._OPERATIONS}
    missing = {op.name for op in pickletools.opcodes if ord(op.code) not in known}
    assert missing == refused | OF_PROTOCOL_0


@for_each(
    "data",
    [
        b"",
        b".",  # empty stack
        b"N",  # no STOP
        b"\x80\x06N.",  # protocol of the future
        b"\xffN.",
        b"I1\n.",  # of protocol 0
        b"h\x00.",  # memo slot never set
        b"j\xff\xff\xff\xff.",
        b"j\xff",
        b"t.",  # no mark
        b"(1.",
        b"0.",
        b"2.",
        b"q\x00.",
        b"N(0(00t.",
        b"\x85.",
        b"N\x87.",
        b"Na.",  # append to nothing
        b"}Na.",  # append to a dictionary
        b"]NNs.",  # set a key in a list
        b"}(Nu.",  # key without value
        b"R.",
        b"NR.",
        b"\x93.",
        b"NN\x93.",  # names that are no text
        b"cos\nsystem",  # cut off
        b"cos",
        b"c\xff\n\xff\n.",
        b"X\xff\xff\xff\xffabc.",
        b"\x8d\xff\xff\xff\xff\xff\xff\xff\xffabc.",
        b"\x8d" + (2**60).to_bytes(8, "little") + b"abc.",
        b"\x8b\xff\xff\xff\x7f\x01.",
        b"\x95" + (2**60).to_bytes(8, "little") + b"N.",  # a frame that lies
        b"\x95\x00\x00",
        b"X\x02\x00\x00\x00\xff\xff.",  # not utf-8
        b"J\x00.",
        b"G\x00.",
        b"K",
        b"\x97N.",  # NEXT_BUFFER
    ],
)
def test_damaged_pickles_are_refused_with_one_error(data):
    with pytest.raises(FormatError):
        run(PROTOCOL + data)


@given(st.binary(max_size=200))
def test_any_bytes_either_run_or_are_refused(data):
    with contextlib.suppress(FormatError):
        run(PROTOCOL + data)


@given(
    st.lists(
        st.sampled_from(sorted({*LITERALS, *unpickler._OPERATIONS})).map(
            lambda code: bytes([code])
        ),
        max_size=60,
    ).map(b"".join)
)
def test_any_opcodes_either_run_or_are_refused(data):
    with contextlib.suppress(FormatError):
        run(PROTOCOL + b"(NN]}cos\nsystem\n" + data + b".")


def test_the_number_of_opcodes_is_capped(monkeypatch):
    monkeypatch.setattr(unpickler, "MAX_OPCODES", 1000)
    assert run(PROTOCOL + b"N" * 998 + b".") is None
    with pytest.raises(FormatError, match="1,000 opcodes"):
        run(PROTOCOL + b"N" * 999 + b".")
    text = b"C\x08" + bytes(8)
    assert run(PROTOCOL + text * 1100 + b".") == bytes(8), "a long one may have more"
