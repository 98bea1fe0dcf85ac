"""The events of a Chrome trace, one by one: a trace of 500 MB never is in memory as a whole.

The format is JSON: ``{"traceEvents": [...], ...}``, or the bare list. Values are decoded where they begin in a
window of text that grows until one fits in, up to a bound, and then moves on.
"""

from __future__ import annotations

import codecs
import gzip
import json
import os
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO, NoReturn, cast

from mvc.errors import FormatError, NotFoundError, UsageError, translate_os_errors

_WINDOW_BYTES = 2**18
_MOST_CHARS = 2**24  # of one value: an event has some hundred
_NUMBER_TAIL = 2  # of 1e+9, 1 decodes without the rest, while that is not there
_GZIP = b"\x1f\x8b"
_EVENTS = "traceEvents"
_SPACE = " \t\r\n"


def read_events(path: str, facts: dict[str, Any]) -> Iterator[Any]:
    """Yield the events of a trace, which may be compressed by gzip; put all else that it says into ``facts``.

    Raises:
        NotFoundError: there is no such file.
        UsageError: it is a folder.
        FormatError: it is not a Chrome trace, or damaged.
    """
    if os.path.isdir(path):
        raise UsageError(f"{path!r} is a folder", hint="name a trace in it")
    with _open(path) as stream:
        text = _Text(path, stream)
        if text.peek() == "[":
            yield from text.items()
            return
        text.take("{", "not a Chrome trace: it does not begin with an object or a list")
        has_events = False
        for key in text.names():
            if key == _EVENTS and text.peek() == "[":
                has_events = True
                yield from text.items()
            else:
                facts[key] = text.value()
        if not has_events:
            raise FormatError(f"{path!r} is not a Chrome trace: it has no list {_EVENTS!r}")


@contextmanager
def _open(path: str) -> Iterator[BinaryIO]:
    try:
        with translate_os_errors(f"read {path}"), open(path, "rb") as file:
            head = file.read(2)
            file.seek(0)
            if head == _GZIP:
                with gzip.open(file) as unpacked:
                    yield cast("BinaryIO", unpacked)
            else:
                yield file
    except FileNotFoundError:
        raise NotFoundError(f"file {path!r} does not exist") from None


class _Text:
    """JSON that is read as far as it is needed."""

    def __init__(self, path: str, stream: BinaryIO) -> None:
        self._path, self._stream = path, stream
        self._decode_bytes = codecs.getincrementaldecoder("utf-8")(errors="replace").decode
        decoder = json.JSONDecoder(
            parse_constant=lambda name: self.fail(f"damaged: {name} is not JSON")
        )
        self._decode: Callable[[str, int], tuple[Any, int]] = decoder.raw_decode
        self._text, self._at, self._is_whole = "", 0, False

    def fail(self, why: str) -> NoReturn:
        raise FormatError(f"{self._path!r} is {why}")

    def _read(self, size: int) -> None:
        """Let the window go on by some bytes; what is behind is dropped."""
        try:
            data = self._stream.read(size)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            self.fail(f"damaged: {error}".lower())
        self._is_whole = not data
        self._text = self._text[self._at :] + self._decode_bytes(data, self._is_whole)
        self._at = 0

    def peek(self) -> str:
        """Return the next sign that is not a space, and go there; empty at the end."""
        while True:
            while self._at < len(self._text) and self._text[self._at] in _SPACE:
                self._at += 1
            if self._at < len(self._text):
                return self._text[self._at]
            if self._is_whole:
                return ""
            self._read(_WINDOW_BYTES)

    def take(self, sign: str, why: str = "damaged") -> None:
        """Pass a sign that must be there."""
        next_sign = self.peek()
        if next_sign != sign:
            self.fail("empty" if not self._text else why if next_sign else "cut off")
        self._at += 1

    def value(self) -> Any:
        """Return the next value."""
        if not self.peek():
            self.fail("cut off")
        while True:
            try:
                value, end = self._decode(self._text, self._at)
            except RecursionError:
                self.fail("damaged: lists in it are nested too deeply")
            except ValueError:
                end = len(self._text)
                if self._is_whole:
                    self.fail("damaged or cut off: a value in it is not JSON")
            else:
                if end + _NUMBER_TAIL < len(self._text) or self._is_whole:
                    self._at = end
                    return value
            if end - self._at > _MOST_CHARS:
                self.fail("damaged: a value in it has no end")
            self._read(
                max(_WINDOW_BYTES, end - self._at)
            )  # twice as much, so all in all it is linear

    def names(self) -> Iterator[str]:
        """Yield the keys of an object that has been entered; read its value after each."""
        if self.peek() != "}":
            while True:
                key = self.value()
                self.take(":")
                yield str(key)
                if self.peek() != ",":
                    break
                self._at += 1
        self.take("}")

    def items(self) -> Iterator[Any]:
        """Yield the values of the list that is next."""
        self.take("[")
        if self.peek() != "]":
            yield self.value()
            while self.peek() == ",":
                self._at += 1
                yield self.value()
        self.take("]")
