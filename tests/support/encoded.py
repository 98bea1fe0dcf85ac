"""Chunks to encode, and the format as it is written down, byte by byte."""

from __future__ import annotations

import struct

import numpy as np
import zstandard

from mvc.dtypes import DTYPES
from mvc.formats.decoding import DecodeScratch, decode_chunk
from mvc.formats.encoding import EncodeScratch, encode_chunk

ENCODE, DECODE = EncodeScratch(), DecodeScratch()


def encode(plain, dtype=None, scratch=ENCODE):
    encoded = encode_chunk(memoryview(plain), DTYPES[dtype] if dtype else None, scratch)
    body = b"".join(encoded.parts)
    assert encoded.size_bytes == len(body) <= len(plain)
    return encoded.encoding, body


def decode(encoding, body, size_bytes, scratch=DECODE):
    plain = bytearray(b"\xa5" * size_bytes)
    decode_chunk(encoding, memoryview(body), memoryview(plain), scratch)
    return bytes(plain)


def decode_slowly(encoding, body, size_bytes):
    """The format as it is written down, byte by byte."""
    if encoding == 0:
        return body
    if encoding == 1:
        return zstandard.decompress(body)
    width, rotated = body[0] & 15, body[0] >> 4
    words = size_bytes // width
    at = 4 + 8 * width
    planes = []
    for number in range(width):
        kind, stored = struct.unpack_from("<B3xI", body, 4 + 8 * number)
        piece = body[at : at + stored]
        at += stored
        planes.append(decode_plane_slowly(kind, piece, words))
    plain = bytearray()
    for column in zip(*planes, strict=True):
        word = int.from_bytes(bytes(column), "big")
        if rotated:
            rest = 8 * width - 9
            nine = word >> rest
            nine = nine >> 1 | (nine & 1) << 8
            word = nine << rest | word & ((1 << rest) - 1)
        plain += word.to_bytes(width, "little")
    return bytes(plain)


def decode_plane_slowly(kind, piece, words):
    if kind == 0:
        return piece
    if kind == 1:
        return piece * words
    if kind == 2:
        return zstandard.decompress(piece)
    if kind == 3:
        base, count = struct.unpack_from("<B3xI", piece)
        plane = join_nibbles(piece[8 + 5 * count :], base)
        for number in range(count):
            (position,) = struct.unpack_from("<I", piece, 8 + 4 * number)
            plane[position] = piece[8 + 4 * count + number]
        return bytes(byte % 256 for byte in plane[:words])
    plane = [0] * words
    if kind == 5:
        (size,) = struct.unpack_from("<I", piece)
        plane = join_nibbles(piece[4 : 4 + size], -8)[:words]
        piece = piece[4 + size :]
    count, size = struct.unpack_from("<II", piece)
    gaps, values = map(zstandard.decompress, (piece[8 : 8 + size], piece[8 + size :]))
    assert len(gaps) == len(values) == count
    position = -1
    for gap, value in zip(gaps, values, strict=True):
        position += gap + 1
        plane[position] += value
    return bytes(byte % 256 for byte in plane)


def join_nibbles(packed, base):
    plain = zstandard.decompress(packed)
    return [base + (byte & 15) for byte in plain] + [base + (byte >> 4) for byte in plain]


def frame(plain, **options):
    return zstandard.ZstdCompressor(**options).compress(plain)


def weights(count, dtype, seed=0, scale=0.02):
    values = np.random.default_rng(seed).normal(0, scale, count)
    if dtype == "BF16":
        bits = values.astype("<f4").view("<u4")
        return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2").tobytes()
    return values.astype({"F16": "<f2", "F32": "<f4", "F64": "<f8"}[dtype]).tobytes()


def ramp(size_bytes):
    return np.arange(size_bytes // 8 + 1, dtype="<u8").tobytes()[:size_bytes]


def special_floats(size_bytes):
    """NaN payloads, -0.0, infinities and subnormals of every width, in turn."""
    words = [
        *(0x7FC00001, 0xFFBFFFFF, 0x80000000, 0x00000001, 0x7F800000, 0xFF800000, 0x807FFFFF),
        *(0x7FF80001, 0xFFF00000, 0x80000001, 0x000F0000, 0x7C01FC00, 0xFF80807F, 0xFFFFFFFF),
    ]
    return (np.array(words, "<u4").tobytes() * (size_bytes // 56 + 1))[:size_bytes]


def half_zeros(size_bytes):
    return bytes(size_bytes // 2) + np.random.default_rng(1).bytes(size_bytes - size_bytes // 2)


CONTENTS = {
    "random": np.random.default_rng(0).bytes,
    "zeros": bytes,
    "ones": lambda size: b"\xff" * size,
    "one word": lambda size: (b"\x00\x00\x80\x3f\x01\x02\x03\x04" * (size // 8 + 1))[:size],
    "ramp": ramp,
    "special floats": special_floats,
    "half zeros": half_zeros,
    "fp32 weights": lambda size: weights(size // 4 + 1, "F32")[:size],
    "bf16 weights": lambda size: weights(size // 2 + 1, "BF16")[:size],
    "text": lambda size: (b'{"lm_head.weight": {"dtype": "BF16"}}' * (size // 37 + 1))[:size],
}
