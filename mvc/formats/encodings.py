"""Encodings: how a chunk's plain bytes become a stored body, and come back.

An encoding is never part of a chunk's identity: any body that decodes to the right bytes is right.
``mvc.formats.decoding`` is the format and is fixed for ever; how bodies are made is a policy, and a
later mvc may choose otherwise. This module is the front of both; behind it stand

* ``mvc.formats.ordinary``: chunks by themselves;
* ``mvc.formats.deltas``: chunks as differences to others;
* ``mvc.formats.casts``: chunks that are the rounding of others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mvc.formats.casts import find_cast, round_words
from mvc.formats.compressing import EncodedChunk, EncodeScratch
from mvc.formats.decoding import DecodeScratch, Encoding, apply_cast, apply_delta, decode_chunk
from mvc.formats.deltas import ESTIMATE_BYTES, MIN_DELTA_BYTES, encode_delta, estimate_delta
from mvc.formats.ordinary import encode_chunk
from mvc.formats.references import References, encode_references

if TYPE_CHECKING:
    from mvc.ids import ChunkId

__all__ = [
    "ESTIMATE_BYTES",
    "MIN_DELTA_BYTES",
    "DecodeScratch",
    "EncodeScratch",
    "EncodedChunk",
    "Encoding",
    "apply_cast",
    "apply_delta",
    "decode_chunk",
    "encode_cast",
    "encode_chunk",
    "encode_delta",
    "estimate_delta",
    "find_cast",
    "round_words",
]


def encode_cast(kind: int, masters: tuple[ChunkId, ...]) -> EncodedChunk:
    """Encode a chunk that is the rounding of others; the caller has compared.

    Args:
        kind: what ``find_cast`` returned.
        masters: the chunks that, one behind the other, are rounded; at most ``MAX_BASES``.
    """
    return EncodedChunk(Encoding.CAST, (encode_references(References(masters, kind, 0)),), masters)
