"""The vocabulary of a tokenizer's file: which token has which row of the embedding.

Read are ``tokenizer.json`` (BPE, WordPiece, WordLevel, Unigram; with its added tokens), ``vocab.json``,
``vocab.txt``, and ``tokenizer.model``, which is a SentencePiece protobuf or a list of tiktoken.
Tokens are compared as they are written there: two tokenizers of one family agree, a byte-level one
and a SentencePiece one do not.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from mvc.errors import FormatError

if TYPE_CHECKING:
    from numpy.typing import NDArray

TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt")
"""Names that ``parse_tokenizer`` reads; where a folder has several, the first of these tells most."""
MAX_FILE_BYTES = 2**28
_MAX_ID = 2**24  # no vocabulary comes near; bounds what a hostile file makes of memory
_ADDED_FILE = "added_tokens.json"


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The tokens of a tokenizer."""

    ids: Mapping[str, int]  # token → its row
    size: int  # rows that an embedding needs at least: the highest id and one


def find_tokenizer(names: Iterable[str]) -> str | None:
    """Return which of the names of one folder to parse, or None."""
    present = set(names)
    return next((name for name in TOKENIZER_FILES if name in present), None)


def parse_tokenizer(name: str, data: bytes, added: bytes | None = None) -> Vocabulary:
    """Return the vocabulary of a file, whose name has no folders.

    ``added`` is an ``added_tokens.json`` beside it, for a file that lacks those. FormatError: it is not a
    tokenizer's file, or damaged.
    """
    if len(data) > MAX_FILE_BYTES:
        raise FormatError(f"{name} has {len(data):,} bytes; a tokenizer has at most 256 MiB")
    try:
        ids = _read_ids(name, data)
        if added is not None and name != "tokenizer.json":
            ids |= _mapping(_decode_json(_ADDED_FILE, added), _ADDED_FILE)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{name} is not a valid tokenizer: {error}") from error
    if not ids:
        raise FormatError(f"{name} has no tokens")
    for token, row in ids.items():
        if type(row) is not int or not 0 <= row < _MAX_ID:
            raise FormatError(f"{name} gives token {token!r} the id {row!r}")
    return Vocabulary(ids, max(ids.values()) + 1)


def map_rows(old: Vocabulary, new: Vocabulary) -> NDArray[np.int64]:
    """Return for each row of the new vocabulary the row of the same token in the old one, or -1."""
    rows = np.full(new.size, -1, np.int64)
    for token, row in new.ids.items():
        rows[row] = old.ids.get(token, -1)
    return rows


def _read_ids(name: str, data: bytes) -> dict[str, int]:
    if name == "tokenizer.json":
        return _read_fast(_decode_json(name, data))
    if name == "vocab.json":
        return _mapping(_decode_json(name, data), name)
    if name == "vocab.txt":
        return {line: row for row, line in enumerate(data.decode().splitlines())}
    if name == "tokenizer.model":
        is_text = data[:4096].isascii() and b"\n" in data[:4096]
        return _read_tiktoken(data) if is_text else _read_sentencepiece(data)
    raise FormatError(f"{name!r} is not the name of a tokenizer's file")


def _decode_json(name: str, data: bytes) -> dict[str, Any]:
    value = msgspec.json.decode(data)
    if not isinstance(value, dict):
        raise FormatError(f"{name} is not a JSON object")
    return value


def _mapping(value: object, name: str) -> dict[str, int]:
    if not isinstance(value, dict):
        raise FormatError(f"{name} has no vocabulary")
    return value


def _read_fast(top: dict[str, Any]) -> dict[str, int]:
    """Read what the tokenizers library writes."""
    model = top.get("model")
    vocabulary = model.get("vocab") if isinstance(model, dict) else None
    if isinstance(vocabulary, list):  # Unigram: pairs of token and score
        pairs = msgspec.convert(vocabulary, list[tuple[str, float]])
        ids = {token: row for row, (token, _) in enumerate(pairs)}
    else:
        ids = dict(_mapping(vocabulary, "tokenizer.json"))
    added = msgspec.convert(top.get("added_tokens") or [], list[_AddedToken])
    return ids | {token.content: token.id for token in added}


class _AddedToken(msgspec.Struct):
    id: int
    content: str


def _read_tiktoken(data: bytes) -> dict[str, int]:
    """Read lines of a token in base64 and its rank; bytes become the characters of latin-1."""
    ids = {}
    for line in data.splitlines():
        token, _, rank = line.partition(b" ")
        try:
            ids[base64.b64decode(token, validate=True).decode("latin-1")] = int(rank)
        except (binascii.Error, ValueError):
            raise FormatError("tokenizer.model is not a valid list of tokens") from None
    return ids


def _read_sentencepiece(data: bytes) -> dict[str, int]:
    """Read a ModelProto: each field 1 is a piece, whose own field 1 is its text."""
    ids: dict[str, int] = {}
    row = 0
    for number, value in _read_fields(memoryview(data)):
        if number != 1 or isinstance(value, int):
            continue
        texts = [text for number, text in _read_fields(value) if number == 1]
        if len(texts) != 1 or isinstance(texts[0], int):
            raise FormatError("tokenizer.model is not a valid SentencePiece model")
        ids.setdefault(bytes(texts[0]).decode(), row)
        row += 1
    return ids


_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5  # wire types of protobuf


def _read_fields(data: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    at = 0
    while at < len(data):
        key, at = _read_varint(data, at)
        kind = key & 7
        if kind == _VARINT:
            size, at = 0, _read_varint(data, at)[1]
        elif kind == _BYTES:
            size, at = _read_varint(data, at)
        else:
            size = {_FIXED64: 8, _FIXED32: 4}.get(kind, len(data) + 1)
        if size > len(data) - at:
            raise FormatError("tokenizer.model is not a valid SentencePiece model")
        yield key >> 3, data[at : at + size] if kind == _BYTES else 0
        at += size


def _read_varint(data: memoryview, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            break
        value |= (data[at] & 0x7F) << shift
        at += 1
        if data[at - 1] < 0x80:  # noqa: PLR2004  the last byte
            return value, at
    raise FormatError("tokenizer.model is not a valid SentencePiece model")
