"""Reports as files: all of it or nothing, and clear errors before any work."""

import os
import threading
from contextlib import suppress

import pytest

from mvc import NotFoundError, StorageError, UsageError
from mvc.cli.pages.report import check_target, write_page
from support.faults import OneFault


def _write(fields, target):
    return write_page("diff", "title", fields, str(target))


def test_a_fault_leaves_the_old_file(tmp_path, fields):
    target = tmp_path / "page.html"
    target.write_text("old")
    with OneFault() as quiet:
        _write(fields, target)
    assert quiet.calls > 2
    page = target.read_bytes()
    for at in range(1, quiet.calls + 1):
        target.write_text("old")
        with OneFault(OSError(28, "No space left on device"), at), suppress(StorageError):
            _write(fields, target)
        assert target.read_bytes() in (b"old", page)


def test_links_and_pipes_stay_what_they_are(tmp_path, fields):
    (tmp_path / "link.html").symlink_to("real.html")
    _write(fields, tmp_path / "link.html")
    assert (tmp_path / "link.html").is_symlink()
    page = (tmp_path / "real.html").read_bytes()
    pipe, read = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()))
    reader.start()
    _write(fields, pipe)
    reader.join()
    assert read == [page]
    assert pipe.is_fifo()


def test_targets_that_cannot_be_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    for target, error, text in (
        ("missing/page.html", NotFoundError, "folder 'missing' does not exist"),
        ("folder", UsageError, "'folder' is a folder"),
        ("folder/", UsageError, "'folder/' is a folder"),
        ("--stats", UsageError, "'--stats' is an option, not a file"),
        ("model.safetensors", UsageError, "'model.safetensors' would be a checkpoint"),
    ):
        with pytest.raises(error, match=text):
            check_target(target)
