"""The samples of MDS files, decoded as mosaicml-streaming encodes them."""

from __future__ import annotations

import json
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np

from mvc import FormatError, UnsupportedError
from mvc.shards import FileStream, read_mds_head
from mvc_data.readers.reader import SlicedFile, naming_shard

_WORD = 4
_NUMBERS = frozenset(f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)) | {
    "float16",
    "float32",
    "float64",
}
_DECODERS: dict[str, Any] = {
    "bytes": bytes,
    "jpeg": bytes,
    "png": bytes,
    "str": bytes.decode,
    "str_int": int,
    "str_float": float,
    "json": json.loads,
    "int": lambda data: int(np.frombuffer(data, "<i8")[0]),
}


def open_mds(path: str) -> SlicedFile:
    """Open an MDS file; pictures come as the bytes of their format."""
    with open(path, "rb") as file, naming_shard(path):
        offsets, config = read_mds_head(FileStream(file.fileno()))
    decode = partial(_decode, *_parse_config(path, config))
    return SlicedFile(path, offsets[:-1], offsets[1:], decode)


def _parse_config(path: str, text: bytes) -> tuple[list[str], list[Any], list[int | None]]:
    try:
        told = json.loads(text)
        names, kinds, sizes = (
            list(told[f"column_{part}"]) for part in ("names", "encodings", "sizes")
        )
    except (ValueError, KeyError, TypeError):
        raise FormatError(f"shard {path} does not tell its columns") from None
    if not len(names) == len(kinds) == len(sizes):
        raise FormatError(f"shard {path} does not tell its columns")
    return names, [_find_decoder(path, str(kind)) for kind in kinds], sizes


def _find_decoder(path: str, kind: str) -> Any:
    if kind in _DECODERS:
        return _DECODERS[kind]
    if kind in _NUMBERS:
        return lambda data: np.frombuffer(data, kind)[0]
    try:
        encodings: Any = import_module("streaming.base.format.mds.encodings")
    except ImportError:
        encodings = None
    if encodings is None or not encodings.is_mds_encoding_safe(kind):
        raise UnsupportedError(
            f"shard {path} has a column of kind {kind!r}",
            hint="pass open_fn= that yields its samples, with a library that reads it",
        )
    return partial(encodings.mds_decode, kind)


def _decode(
    names: list[str], decoders: list[Any], sizes: list[int | None], data: bytes
) -> dict[str, Any]:
    at, lengths = 0, []
    for size in sizes:
        if size is None:
            lengths.append(int.from_bytes(data[at : at + _WORD], "little"))
            at += _WORD
        else:
            lengths.append(size)
    if at + sum(lengths) != len(data):
        raise ValueError("its columns do not fill it")
    sample = {}
    for name, decode, length in zip(names, decoders, lengths, strict=True):
        sample[name] = decode(data[at : at + length])
        at += length
    return sample
