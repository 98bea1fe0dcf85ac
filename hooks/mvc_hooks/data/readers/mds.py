"""MDS files of mosaicml-streaming: number of samples, offsets, settings as JSON, samples."""

from __future__ import annotations

import json
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np

from mvc import FormatError, UnsupportedError
from mvc_hooks.data.readers.reader import SlicedFile

_MAX_SETTINGS = 1 << 20
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
    with open(path, "rb") as file:
        size = file.seek(0, 2)
        file.seek(0)
        count = int.from_bytes(file.read(_WORD), "little")
        head = _WORD * (count + 2)
        if head > size:
            raise FormatError(f"shard {path} is not an MDS file, or cut off in its head")
        offsets = np.frombuffer(file.read(head - _WORD), "<u4").astype(np.int64)
        if not head <= offsets[0] <= head + _MAX_SETTINGS or np.any(np.diff(offsets) < 0):
            raise FormatError(f"shard {path} has offsets that no MDS file has")
        if offsets[-1] != size:
            raise FormatError(f"shard {path} has {size} bytes, its offsets say {offsets[-1]}")
        settings = file.read(int(offsets[0]) - head)
    names, decoders, sizes = _parse_settings(path, settings)
    decode = partial(_decode, names, decoders, sizes)
    return SlicedFile(path, offsets[:-1], offsets[1:], decode)


def _parse_settings(path: str, text: bytes) -> tuple[list[str], list[Any], list[int | None]]:
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
