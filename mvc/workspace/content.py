"""The content of a stored file, read back: written to a file or compared with one.

Whole files are never held: what is in memory is chunks in flight.
"""

from __future__ import annotations

import os
import time
from contextlib import ExitStack, contextmanager
from itertools import accumulate
from typing import TYPE_CHECKING

from mvc.chunkstore.values import ReadRequest
from mvc.errors import (
    ConflictError,
    FormatError,
    StorageError,
    UnsupportedError,
    translate_os_errors,
)
from mvc.formats.manifest import cut_sizes
from mvc.fs import DurableFile, write_symlink
from mvc.sources import ByteSource, FileSource, read_bytes, split_buffer
from mvc.workspace.live_chunks import all_same, cut_file
from mvc.workspace.manifests import find_manifest
from mvc.workspace.worktree import MODE_EXECUTABLE, MODE_SYMLINK, git_mode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from mvc.formats.manifest import Manifest
    from mvc.fs import FileStat
    from mvc.ids import GitId
    from mvc.progress import ByteProgress
    from mvc.workspace.context import Context

_TICK_NS = 10_000_000  # file systems use the kernel's tick as their clock: 1 to 10 ms


class GapStream(ByteSource):
    """The gaps of a file, (start, size) of each, one after another as one run of bytes.

    Without a source it only says where they are, for writing.
    """

    def __init__(self, gaps: Iterable[tuple[int, int]], source: ByteSource | None = None) -> None:
        self._gaps = list(gaps)
        self._source = source
        self._starts = [0, *accumulate(size for _, size in self._gaps)]

    @property
    def size_bytes(self) -> int:
        """Length of all gaps."""
        return self._starts[-1]

    def read_into(self, offset: int, buffer: memoryview) -> None:
        """Fill ``buffer`` from that offset of the stream."""
        assert self._source is not None
        for start, part in self.split(offset, buffer):
            self._source.read_into(start, part)

    def split(self, offset: int, buffer: memoryview) -> Iterator[tuple[int, memoryview]]:
        """Yield (offset in the file, part of the buffer) for a range of the stream."""
        for index, inside, part in split_buffer(self._starts, offset, buffer):
            yield self._gaps[index][0] + inside, part


def read_requests(manifest: Manifest, path: str) -> Iterator[ReadRequest]:
    """Yield what to read to restore a file.

    Tensor chunks have their place in the file as offset; chunks of the gap stream have
    -1 - their place in that stream.
    """
    position = 0
    for chunk, size in zip(
        manifest.gaps, cut_sizes(manifest.gap_bytes, manifest.chunk_bytes), strict=True
    ):
        yield ReadRequest(chunk, size, -1 - position, f"{path} (bytes between tensors)")
        position += size
    for stored in manifest.segments:
        position = stored.segment.start
        where = f"tensor {stored.segment.tensors[0].name!r} of {path}"
        sizes = cut_sizes(stored.segment.size_bytes, manifest.chunk_bytes)
        for chunk, size in zip(stored.chunks, sizes, strict=True):
            yield ReadRequest(chunk, size, position, where)
            position += size


def write_content(
    context: Context,
    manifest: Manifest,
    path: str,
    write_at: Callable[[memoryview, int], None],
    progress: ByteProgress = None,
) -> None:
    """Write every byte of a stored file through ``write_at(bytes, offset)``, verified, any order."""
    gaps = GapStream(manifest.gap_ranges())

    def sink(request: ReadRequest, plain: memoryview) -> None:
        if request.offset >= 0:
            write_at(plain, request.offset)
            return
        for start, part in gaps.split(-1 - request.offset, plain):
            write_at(part, start)

    context.store.read_many(list(read_requests(manifest, path)), sink, progress)


def stage_file(
    context: Context, path: str, mode: int, blob: GitId, folder: Path, progress: ByteProgress = None
) -> Path:
    """Write one version of a file to a durable temporary file in ``folder``; return its path."""
    if mode == MODE_SYMLINK:
        return _stage_symlink(context, blob, folder)
    permissions = 0o755 if mode == MODE_EXECUTABLE else 0o644
    manifest = find_manifest(context, blob)
    with DurableFile(folder, mode=permissions) as file:
        if manifest is not None:
            with translate_os_errors(f"write {path}"):
                os.truncate(file.descriptor, manifest.size_bytes)
            write_content(context, manifest, path, file.write_at, progress)
        else:
            data = context.history.read_blob(blob)
            file.write([data])
            if progress is not None:
                progress(len(data))
        return file.keep()


def _stage_symlink(context: Context, blob: GitId, folder: Path) -> Path:
    text = context.history.read_blob(blob)
    if not text or b"\0" in text:
        raise FormatError(f"link {blob} has an impossible text")
    with DurableFile(folder) as placeholder:
        staged = placeholder.keep()
    write_symlink(staged, text)
    return staged


def let_tick_pass(stat: FileStat) -> None:
    """Wait until the clock tick in which a file was last changed is over.

    A second change within that tick might leave no trace in the stat data; from now on every
    change does, so comparing stat data after the reading is enough.
    """
    age_ns = time.time_ns() - stat.mtime_ns
    if 0 <= age_ns < _TICK_NS:
        time.sleep((_TICK_NS - age_ns) / 1e9)


@contextmanager
def open_source(absolute: Path, path: str) -> Iterator[FileSource]:
    """Open a file that was seen to be a regular one a moment ago."""
    with ExitStack() as stack:
        try:
            source = stack.enter_context(FileSource.open(absolute))
        except (FileNotFoundError, NotADirectoryError) as error:
            raise ConflictError(f"{path!r} was removed while it was read") from error
        except UnsupportedError as error:
            raise ConflictError(f"{path!r} was replaced while it was read") from error
        yield source


def content_matches(context: Context, path: str, stat: FileStat, mode: int, blob: GitId) -> bool:
    """Return whether a file of the worktree holds exactly the bytes of a blob, by reading it.

    False for a file that cannot be read or changes meanwhile: what it holds is not known.
    """
    if git_mode(stat) != mode:
        return False
    let_tick_pass(stat)
    try:
        return _holds_blob(context, path, mode, blob)
    except (ConflictError, StorageError, FileNotFoundError):
        return False


def _holds_blob(context: Context, path: str, mode: int, blob: GitId) -> bool:
    absolute = context.worktree / path
    if mode == MODE_SYMLINK:
        with translate_os_errors(f"read link {path}"):
            text = os.readlink(os.fsencode(absolute))
        return text == context.history.read_blob(blob)
    with open_source(absolute, path) as source:
        manifest = find_manifest(context, blob)
        if manifest is None:
            if source.size_bytes != context.history.find_blob_size(blob):
                return False
            return read_bytes(source, 0, source.size_bytes) == context.history.read_blob(blob)
        if source.size_bytes != manifest.size_bytes:
            return False
        return all_same(cut_file(source, GapStream(manifest.gap_ranges(), source), manifest))
