"""Packs made by hand from the format functions alone: any record, any reference, sound or not."""

from __future__ import annotations

import numpy as np
import zstandard
from blake3 import blake3

from mvc.formats.casts import round_words
from mvc.formats.decoding import CODING_ZSTD, Encoding
from mvc.formats.encoding import encode_cast
from mvc.formats.pack import (
    FOOTER_BYTES,
    PackRecord,
    References,
    encode_pack_footer,
    encode_pack_header,
    encode_record_header,
    encode_references,
    is_referring,
    parse_references,
)
from mvc.formats.pack_index import encode_pack_index, index_records
from mvc.formats.planes import ARENA_BYTES
from mvc.ids import PackId, hash_chunk


def delta_body(plain: bytes, base: bytes, base_id=None) -> bytes:
    """Return a sound delta of single bytes, however short."""
    difference = np.frombuffer(plain, np.uint8) - np.frombuffer(base, np.uint8)
    block = encode_references(References((base_id or hash_chunk(base),), 1, CODING_ZSTD))
    return block + zstandard.ZstdCompressor().compress(difference.tobytes())


def whole(plain: bytes):
    """Return a record of a chunk that needs nothing."""
    return hash_chunk(plain), Encoding.RAW, len(plain), plain


def delta(plain: bytes, base: bytes, base_id=None):
    """Return a record of a chunk as the difference to another."""
    return hash_chunk(plain), Encoding.DELTA, len(plain), delta_body(plain, base, base_id)


def cast(plain: bytes, masters, kind=1):
    """Return a record of a chunk as the rounding of others, given by their ids."""
    body = b"".join(encode_cast(kind, tuple(masters)).parts)
    return hash_chunk(plain), Encoding.CAST, len(plain), body


def rounded(*masters: bytes, kind=1) -> bytes:
    """Return the rounding of F32 words to BF16, or to F16 as kind 2."""
    words = np.frombuffer(b"".join(masters), np.uint8)
    plain = np.empty(words.size // 2, np.uint8)
    round_words(kind, words, plain, np.empty(ARENA_BYTES, np.uint8))
    return plain.tobytes()


def put_pack(storage, records, *, with_index=True) -> PackId:
    """Publish a pack of (id, tag, plain size, body) and its index; return its id."""
    parts, listed = [encode_pack_header()], []
    offset = len(parts[0])
    for chunk_id, encoding, plain_bytes, body in records:
        bases = parse_references(body).bases if is_referring(encoding) else ()
        record = PackRecord(chunk_id, int(encoding), plain_bytes, len(body), offset, bases)
        parts += [encode_record_header(chunk_id, encoding, plain_bytes, len(body)), body]
        listed.append(record)
        offset = record.end
    size_bytes = offset + FOOTER_BYTES
    data = b"".join([*parts, encode_pack_footer(len(listed), size_bytes)])
    pack = PackId(blake3(data).hexdigest())
    publish(storage, f"packs/{pack}.pack", data)
    if with_index:
        index = index_records(pack, size_bytes, listed)
        publish(storage, f"packs/{pack}.idx", encode_pack_index(index))
    return pack


def publish(storage, key, data) -> None:
    """Publish an object."""
    with storage.create("packs/") as file:
        file.write([data])
        file.publish(key)


def find_decodable(packs) -> dict:
    """Return chunk → length of its shortest chain, for all that can be decoded; by brute force.

    Args:
        packs: lists of records as ``put_pack`` takes them.
    """
    depths = {}
    for depth in range(9):
        before = dict(depths)
        for records in packs:
            for chunk_id, encoding, _, body in records:
                bases = parse_references(body).bases if is_referring(encoding) else ()
                if chunk_id not in depths and all(base in before for base in bases):
                    depths[chunk_id] = depth
    return depths
