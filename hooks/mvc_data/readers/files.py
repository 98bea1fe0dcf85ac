"""Readers of files in which the place of each record is known: JSON lines, arrays, MDS, tar.

What the formats are is described once, in ``mvc.shards``, where ``mvc data add`` counts their records; here
are the samples. Of a tar file as webdataset writes it, a sample is {"__key__": the path up to the first
dot of its name, extension: bytes, ...}.
"""

from __future__ import annotations

import json
import os
from array import array
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from tokenize import TokenError
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
import numpy as np

from mvc import FormatError, UnsupportedError, UsageError, shards

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

_CHUNK_BYTES = 1 << 20
_LONG_BYTES = 1 << 10  # of a line
_WORD = 4  # bytes of a length in a sample of MDS
_MDS_NUMBERS = frozenset(
    f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)
) | {"float16", "float32", "float64"}
_MDS_DECODERS: dict[str, Any] = {
    "bytes": bytes,
    "jpeg": bytes,
    "png": bytes,
    "str": bytes.decode,
    "str_int": int,
    "str_float": float,
    "json": json.loads,
    "int": lambda data: int(np.frombuffer(data, "<i8")[0]),
}


class Reader(Protocol):
    """The records of one shard."""

    @property
    def count(self) -> int | None:
        """How many there are, or None if only reading them all can tell."""

    def read(self, numbers: Sequence[int]) -> list[Any]:
        """Return some records, in the order of ``numbers``, which are within the shard.

        Raises:
            FormatError: the shard does not hold what its format demands.
        """

    def close(self) -> None:
        """Close the file."""


def read_by_owner(
    owners: NDArray[np.int64], read: Callable[[int, NDArray[np.int64]], Sequence[Any]]
) -> list[Any]:
    """Return what several owners have, in the order of ``owners``, which says whose each place is.

    ``read`` is called once for each owner, with it and its places, in the order in which they come first.
    """
    places_of: dict[int, list[int]] = {}
    for place, owner in enumerate(owners.tolist()):
        places_of.setdefault(owner, []).append(place)
    items: list[Any] = [None] * len(owners)
    for owner, places in places_of.items():
        for place, item in zip(places, read(owner, np.array(places)), strict=True):
            items[place] = item
    return items


def describe_fault(path: str, number: int, error: Exception) -> FormatError:
    """Return the error of a record that cannot be read."""
    text = str(error) or type(error).__name__
    return FormatError(
        f"record {number} of shard {path} cannot be read: {text.splitlines()[0][:200]}"
    )


@contextmanager
def _naming_shard(path: str) -> Iterator[None]:
    """Say of a FormatError of the shard's format which shard it is."""
    try:
        yield
    except FormatError as error:
        raise FormatError(f"shard {path} cannot be read: {error.message}") from None


class _SlicedFile:
    """A file of which each record is one run of bytes, read alone.

    Nothing is kept but offsets, 16 bytes a record: the page cache of the machine, which all workers
    and ranks share, holds the rest.
    """

    def __init__(
        self,
        path: str,
        begins: NDArray[np.int64],
        ends: NDArray[np.int64],
        decode: Callable[[bytes], Any],
    ) -> None:
        self.path, self._begins, self._ends, self._decode = path, begins, ends, decode
        self.count = len(begins)
        self._file = os.open(path, os.O_RDONLY)

    def read(self, numbers: Sequence[int]) -> list[Any]:
        chosen = np.asarray(numbers, np.int64)
        places = zip(self._begins[chosen].tolist(), self._ends[chosen].tolist(), strict=True)
        return [self._read(number, *place) for number, place in zip(numbers, places, strict=True)]

    def _read(self, number: int, begin: int, end: int) -> Any:
        data = os.pread(self._file, end - begin, begin)
        if len(data) != end - begin:
            raise FormatError(f"shard {self.path} became shorter: record {number} is cut off")
        try:
            return self._decode(data)
        except ValueError as error:
            raise describe_fault(self.path, number, error) from None

    def close(self) -> None:
        os.close(self._file)


# JSON lines: plain, where the offset of each line is found by one scan, or compressed.


def open_lines(path: str) -> Reader:
    """Open a file of JSON lines; empty lines are no records."""
    ends, start = [], 0
    with open(path, "rb", buffering=0) as file:
        while chunk := file.read(_CHUNK_BYTES):
            ends.append(start + _find_breaks(chunk))
            start += len(chunk)
        stops = np.concatenate((*ends, [start]))
        begins = np.concatenate(([0], stops[:-1] + 1))
        is_record = stops > begins
        short = np.flatnonzero(stops - begins == 1)
        for line, at in zip(short.tolist(), begins[short].tolist(), strict=True):
            is_record[line] = os.pread(file.fileno(), 1, at) not in shards.EMPTY_LINES
    return _SlicedFile(path, begins[is_record], stops[is_record], parse_line)


def _find_breaks(chunk: bytes) -> NDArray[np.int64]:
    if _LONG_BYTES * chunk.count(b"\n") > len(chunk):
        return np.flatnonzero(np.frombuffer(chunk, np.uint8) == ord("\n"))
    # A search for one byte runs at several GB/s, and comparing arrays at less; but each find costs, too.
    breaks, at = array("q"), chunk.find(b"\n")
    while at >= 0:
        breaks.append(at)
        at = chunk.find(b"\n", at + 1)
    return np.array(breaks, np.int64)


def parse_line(line: bytes) -> Any:
    """Return the value of a line; ValueError if it has none."""
    try:
        try:
            return msgspec.json.decode(line)
        except msgspec.DecodeError:
            return json.loads(line)  # slower, and knows NaN
    except RecursionError:
        raise ValueError("it is nested too deep") from None


def iterate_compressed_lines(path: str) -> Iterator[list[bytes]]:
    """Yield the lines of a .zst or .gz file that are not empty, some at a time."""
    begun: list[bytes] = []  # parts of a line that has not ended: a long one is copied once
    pieces = shards.unpack_file(path)
    while True:
        with _naming_shard(path):
            piece = next(pieces, None)
        if piece is None:
            break
        begun.append(piece)
        if b"\n" in piece:
            *lines, rest = b"".join(begun).split(b"\n")
            begun = [rest]
            if any(empty in lines for empty in shards.EMPTY_LINES):
                lines = [line for line in lines if line not in shards.EMPTY_LINES]
            yield lines
    if (rest := b"".join(begun)) not in shards.EMPTY_LINES:
        yield [rest]


# Arrays of tokens: .npy files and bare .bin files. A record is a row, or as many tokens as are asked for.


class _Rows:
    """The rows of an array that is mapped into memory."""

    def __init__(self, path: str, rows: NDArray[Any], tokens: int | None) -> None:
        if rows.ndim == 1:
            if tokens is None:
                raise UsageError(
                    f"shard {path} is one sequence of {len(rows)} numbers",
                    hint="tokens=2048 makes records of 2048; a shorter rest at its end is left out",
                )
            rows = rows[: len(rows) // tokens * tokens].reshape(-1, tokens)
        self._rows, self.count = rows, len(rows)

    def read(self, numbers: Sequence[int]) -> list[Any]:
        return list(self._rows[np.asarray(numbers, np.int64)])  # copies

    def close(self) -> None:
        del self._rows


def open_npy(path: str, tokens: int | None) -> Reader:
    """Open an .npy file; one of one dimension is cut into records of ``tokens``."""
    try:
        rows = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError, TokenError) as error:  # the last is of a header's text
        raise FormatError(f"shard {path} cannot be read: {str(error)[:200]}") from None
    if not isinstance(rows, np.ndarray) or not rows.ndim:
        raise FormatError(f"shard {path} is not one array of records")
    return _Rows(path, rows, tokens)


def open_bin(path: str, tokens: int | None, dtype: str | None) -> Reader:
    """Open a file of numbers of one type, without a header."""
    if dtype is None:
        raise UsageError(
            f"shard {path} does not say the dtype of its numbers", hint="dtype='uint16'"
        )
    kind = shards.parse_number_dtype(dtype)
    with _naming_shard(path):
        count = shards.count_numbers(os.stat(path).st_size, kind.itemsize)
    return _Rows(path, np.memmap(path, kind, "r") if count else np.zeros(0, kind), tokens)


# MDS files, decoded as mosaicml-streaming encodes them; pictures come as the bytes of their format.


def open_mds(path: str) -> Reader:
    """Open an MDS file."""
    with open(path, "rb") as file, _naming_shard(path):
        offsets, text = shards.read_mds_head(shards.FileStream(file.fileno()))
    try:
        config = json.loads(text)
        names, kinds, sizes = (
            list(config[f"column_{part}"]) for part in ("names", "encodings", "sizes")
        )
        columns = list(zip(names, kinds, sizes, strict=True))
    except (ValueError, KeyError, TypeError):
        raise FormatError(f"shard {path} does not tell its columns") from None
    decoders = [(name, _find_mds_decoder(path, str(kind)), size) for name, kind, size in columns]
    return _SlicedFile(path, offsets[:-1], offsets[1:], partial(_decode_mds, decoders))


def _find_mds_decoder(path: str, kind: str) -> Any:
    if kind in _MDS_DECODERS:
        return _MDS_DECODERS[kind]
    if kind in _MDS_NUMBERS:
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


def _decode_mds(columns: Sequence[tuple[str, Any, int | None]], data: bytes) -> dict[str, Any]:
    at, lengths = 0, []
    for _, _, size in columns:
        if size is None:
            lengths.append(int.from_bytes(data[at : at + _WORD], "little"))
            at += _WORD
        else:
            lengths.append(size)
    if at + sum(lengths) != len(data):
        raise ValueError("its columns do not fill it")
    sample = {}
    for (name, decode, _), length in zip(columns, lengths, strict=True):
        sample[name] = decode(data[at : at + length])
        at += length
    return sample


# Tar files.


class TarSamples:
    """The samples of a tar file."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._file = os.open(path, os.O_RDONLY)
        try:
            with _naming_shard(path):
                self._samples = list(shards.list_tar_samples(shards.FileStream(self._file)))
        except BaseException:
            self.close()
            raise
        self.count = len(self._samples)

    def read(self, numbers: Sequence[int]) -> list[Any]:
        """Return some samples."""
        return [self._read(self._samples[number]) for number in numbers]

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)

    def _read(self, place: shards.TarSample) -> dict[str, Any]:
        sample: dict[str, Any] = {"__key__": place.key}
        for extension, offset, size in place.files:
            data = os.pread(self._file, size, offset)
            if len(data) != size:
                raise FormatError(f"shard {self.path} became shorter: {place.key!r} is cut off")
            sample[extension] = data
        return sample
