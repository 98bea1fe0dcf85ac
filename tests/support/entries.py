"""Index entries of files that are made, rewritten in place, or racy."""

from __future__ import annotations

import os
from dataclasses import replace

from mvc.fs import find_stat
from mvc.history.values import Index, IndexEntry

FILE, RUNNABLE, LINK = 0o100644, 0o100755, 0o120000


def entry_of(history, path, data=b"content", **changes):
    options = {"path": path, "blob": history.write_blob(data), "mode": FILE}
    return IndexEntry(**{**options, **changes})


def entry_from_stat(path, blob, stat):
    return IndexEntry(
        path=path, blob=blob, mode=FILE, size_bytes=stat.size_bytes, mtime_ns=stat.mtime_ns,
        ctime_ns=stat.ctime_ns, inode=stat.inode, device=stat.device,
    )  # fmt: skip


def write(history, *entries):
    with history.lock():
        history.write_index(Index({entry.path: entry for entry in entries}))


def make_racy(history, path, data):
    """Stage a file and set the index file's own time to that of the file."""
    path.write_bytes(data)
    blob = history.write_blob(data)
    write(history, entry_from_stat(path.name, blob, find_stat(path)))
    set_index_time(history, find_stat(path).mtime_ns)
    return blob


def set_index_time(history, time_ns):
    os.utime(history.git_dir / "index", ns=(time_ns, time_ns))


def rewrite_in_place(path, data):
    """Change a file so that its stat data stay what they were, but for the change time."""
    before = find_stat(path)
    with path.open("r+b") as file:
        file.write(data)
    os.utime(path, ns=(before.mtime_ns, before.mtime_ns))
    return replace(find_stat(path), ctime_ns=before.ctime_ns)
