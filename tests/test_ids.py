from __future__ import annotations

import hashlib

import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st

from mvc.ids import hash_chunk, hash_git_object, hash_tensor, is_hex_id


def test_chunks_are_known_answers():
    """From the test vectors of BLAKE3."""
    assert hash_chunk(b"").hex() == (
        "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262"
    )
    data = bytes(number % 251 for number in range(1024))
    for buffer in (data, bytearray(data), memoryview(data)):
        assert hash_chunk(buffer).hex() == (
            "42214739f095a406f3fc83deb889744ac00df831c10daa55189b5d121c855af7"
        )


def test_tensors():
    chunks = [hash_chunk(b"a"), hash_chunk(b"b")]
    expected = blake3(b"F32 2,3\n" + b"".join(chunks)).hexdigest()
    assert hash_tensor("F32", (2, 3), chunks) == expected
    assert hash_tensor("F32", [2, 3], iter(chunks)) == expected
    assert hash_tensor("F32", (), chunks) == blake3(b"F32 \n" + b"".join(chunks)).hexdigest()


def test_tensors_that_differ_in_anything_differ():
    one, two = hash_chunk(b"a"), hash_chunk(b"b")
    ids = [
        hash_tensor("F32", (2, 3), [one]),
        hash_tensor("I32", (2, 3), [one]),
        hash_tensor("F32", (3, 2), [one]),
        hash_tensor("F32", (6,), [one]),
        hash_tensor("F32", (23,), [one]),
        hash_tensor("F32", (2, 3), [two]),
        hash_tensor("F32", (2, 3), [one, two]),
        hash_tensor("F32", (2, 3), [two, one]),
        hash_tensor("F32", (2, 3), []),
    ]
    assert len(set(ids)) == len(ids)


@given(st.binary(max_size=300))
def test_blobs_are_gits(data):
    assert (
        hash_git_object("blob", data) == hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
    )


@pytest.mark.parametrize(
    ("text", "digits", "is_id"),
    [
        ("0123456789abcdef", 16, True),
        ("0123456789abcdef", 40, False),
        ("0123456789ABCDEF", 16, False),
        ("0123456789abcdeg", 16, False),
        ("", 0, True),
        ("a\n", 2, False),
        ("٣" * 16, 16, False),
    ],
)
def test_hex(text, digits, is_id):
    assert is_hex_id(text, digits) is is_id
