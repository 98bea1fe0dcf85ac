"""The chunks of the golden pack, made by arithmetic alone so that they are the same for ever."""

from __future__ import annotations

import struct

from blake3 import blake3


def _noise(name: bytes, size_bytes: int) -> bytes:
    return blake3(name).digest(length=size_bytes)


def _weights(name: bytes, count: int) -> list[float]:
    """Return numbers around zero whose exponents vary as those of weights do."""
    noise = _noise(name, 4 * count)
    return [sum(noise[i : i + 4]) / 510 - 1 for i in range(0, 4 * count, 4)]


def _f32() -> bytes:
    noise = _noise(b"mantissa", 1500)
    words = struct.pack("<1500f", *_weights(b"f32", 1500))
    return bytes(b if i % 4 else noise[i // 4] for i, b in enumerate(words))


def _bf16() -> bytes:
    words = struct.pack("<3000f", *_weights(b"bf16", 3000))
    return b"".join(words[i + 2 : i + 4] for i in range(0, len(words), 4))


CHUNKS = {
    "noise": (_noise(b"noise", 500), None),
    "empty": (b"", None),
    "one byte": (b"\x7f", "U8"),
    "zeros": (bytes(4096), "F32"),
    "ones": (struct.pack("<f", 1.0) * 700, "F32"),
    "text": (b"".join(b"line %d of a header\n" % i for i in range(300)), None),
    "f32": (_f32(), "F32"),
    "bf16": (_bf16(), "BF16"),
    "f64": (struct.pack("<800d", *_weights(b"f64", 800)), "F64"),
    "i64": (struct.pack("<900q", *(7 * i for i in range(900))), "I64"),
    "i32": (struct.pack("<900i", *(i * i - 5000 for i in range(900))), "I32"),
    "u8": (bytes(i * i % 7 for i in range(3000)), "U8"),
    "fp8": (bytes((b & 0x83) | 0x38 for b in _noise(b"fp8", 2000)), "F8_E4M3"),
}
"""name → (plain bytes, dtype)"""
