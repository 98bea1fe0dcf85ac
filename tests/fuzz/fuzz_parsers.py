"""Coverage-guided fuzzing of every parser: `python tests/fuzz/fuzz_parsers.py TARGET [-runs=N]`.

The invariant of each target: any bytes either parse or raise the one documented family of errors,
and what parses obeys the rules of its format. libFuzzer's own options follow the target; it stops
at the first input that breaks the invariant and writes it to a file.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable

import atheris

with atheris.instrument_imports(include=["mvc"]):
    from mvc.checkpoints.dcp.metadata import parse_dcp_metadata
    from mvc.checkpoints.detect import read_layout
    from mvc.checkpoints.safetensors import find_shards
    from mvc.checkpoints.torch_pickle.unpickler import unpickle
    from mvc.dtypes import DTYPES
    from mvc.errors import MvcError, UnsupportedError
    from mvc.formats.decoding import DecodeScratch, apply_delta, decode_chunk, parse_cast
    from mvc.formats.layout import check_layout
    from mvc.formats.manifest_lines import encode_manifest, parse_manifest
    from mvc.formats.pack import References, encode_references, parse_references, scan_pack
    from mvc.formats.pack_index import parse_pack_index
    from mvc.history.messages import format_message, parse_trailers
    from mvc.history.names import find_path_fault
    from mvc.sources import MemorySource
    from mvc.states.state import plan_state

from mvc.errors import FormatError

SUFFIXES = (".safetensors", ".pt", ".npz", ".npy", ".gguf", ".bin", ".distcp", "")


def refuses(*kinds: type[MvcError]) -> Callable:
    """Return a decorator of a target that may raise these errors."""

    def decorate(target: Callable[[bytes], None]) -> Callable[[bytes], None]:
        def run(data: bytes) -> None:
            with contextlib.suppress(*kinds):
                target(data)

        return run

    return decorate


def fuzz_layout(data: bytes) -> None:
    """Every file has a layout, and the layout is sound."""
    suffix = SUFFIXES[data[0] % len(SUFFIXES)] if data else ""
    layout = read_layout(MemorySource(data[1:]), f"x{suffix}")
    check_layout(layout.size_bytes, layout.segments)


@refuses(FormatError)
def fuzz_pickle(data: bytes) -> None:
    """A pickle gives inert values or a FormatError."""
    unpickle(b"\x80" + data, lambda _callee, _arguments: None, lambda _pid: None)


@refuses(FormatError)
def fuzz_dcp(data: bytes) -> None:
    """The metadata of a DCP folder parse, or are refused."""
    metadata = parse_dcp_metadata(data)
    assert all(item.key in metadata.entries for items in metadata.files.values() for item in items)


def fuzz_manifest(data: bytes) -> None:
    """What parses is written back as something that parses to the same."""
    try:
        manifest = parse_manifest(b'{"mvc-manifest":1,' + data)
    except (FormatError, UnsupportedError):
        return
    assert parse_manifest(encode_manifest(manifest)) == manifest


@refuses(FormatError, UnsupportedError)
def fuzz_encoding(data: bytes) -> None:
    """A body fills its chunk exactly or is refused."""
    if len(data) < 3:
        return
    plain = memoryview(bytearray(int.from_bytes(data[1:3], "little")))
    decode_chunk(data[0] % 6, memoryview(data)[3:], plain, DecodeScratch())


def fuzz_delta(data: bytes) -> None:
    """A difference is added to its base, or refused and the base is as it was."""
    if len(data) < 5:
        return
    base = bytes(range(256)) * 2
    plain = memoryview(bytearray(base[: int.from_bytes(data[1:3], "little") % 512]))
    before = bytes(plain)
    block = encode_references(References((b"b" * 32,), data[3], data[4]))
    try:
        if data[0] % 8:
            apply_delta(memoryview(block + data[5:]), plain, DecodeScratch())
        else:
            parse_cast(memoryview(data[1:]))
    except FormatError:
        assert plain == before


def fuzz_references(data: bytes) -> None:
    """A block that parses is written back as the same bytes."""
    try:
        references = parse_references(data)
    except FormatError:
        return
    assert encode_references(references) == data[: references.size_bytes]


@refuses(FormatError)
def fuzz_pack(data: bytes) -> None:
    """Records of a pack lie inside it."""

    def read_at(offset: int, size: int) -> bytes:
        if offset + size > len(data):
            raise FormatError("past the end")
        return data[offset : offset + size]

    for record in scan_pack(read_at, len(data)):
        assert record.end <= len(data)


@refuses(FormatError)
def fuzz_index(data: bytes) -> None:
    """A pack index parses or is refused."""
    parse_pack_index(data)


@refuses(MvcError)
def fuzz_state(data: bytes) -> None:
    """A state description asks for nothing that its files do not hold."""
    plan_state(data, {"a.safetensors": {"w": 8}}, framework="numpy")


@refuses(FormatError)
def fuzz_hub(data: bytes) -> None:
    """Shards are names inside the folder."""
    names = find_shards(data)
    assert not any("/" in name or name in (".", "..") for name in names)


def fuzz_path(data: bytes) -> None:
    """A tree path that passes stays inside the worktree."""
    path = data.decode("utf-8", "surrogateescape")
    if find_path_fault(path) is not None:
        return
    assert not path.startswith("/")
    assert not {".", "..", ".git", ".mvc", ""} & set(path.split("/"))


def fuzz_message(data: bytes) -> None:
    """Trailers that are written are read."""
    text = data.decode("utf-8", "replace")
    message = format_message("subject\n\n" + text, [("Step", "7")])
    assert parse_trailers(message)[-1] == ("Step", "7")


TARGETS: dict[str, Callable[[bytes], None]] = {
    name.removeprefix("fuzz_"): value
    for name, value in sorted(globals().items())
    if name.startswith("fuzz_")
}
assert DTYPES


def main() -> None:
    """Fuzz one target."""
    name = sys.argv[1]
    atheris.Setup([sys.argv[0], *sys.argv[2:]], TARGETS[name])
    atheris.Fuzz()


if __name__ == "__main__":
    main()
