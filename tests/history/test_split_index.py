"""A split index of stock Git is read as the whole that it stands for."""

from __future__ import annotations

import hashlib
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mvc.errors import CorruptionError
from mvc.history.split_index import parse_link
from support.entries import entry_of, write
from support.stockgit import git


def stage(history, changes):
    """Have Git stage path → blob; None removes."""
    lines = [
        f"100644 {blob}\t{path}" if blob else f"0 {'0' * 40}\t{path}" for path, blob in changes
    ]
    git(history.git_dir, "update-index", "--index-info", data="\n".join(lines).encode() + b"\n")


def as_git_sees_it(history):
    lines = git(history.git_dir, "ls-files", "-s").splitlines()
    return {line.split("\t")[1]: line.split()[1] for line in lines}


def as_we_see_it(history):
    return {path: entry.blob for path, entry in history.read_index().entries.items()}


@pytest.fixture
def split(history):
    """An index of 500 files, then split; Git keeps changes beside it for long."""
    one = history.write_blob(b"one")
    stage(history, [(f"folder{number % 7}/file{number:03}", one) for number in range(500)])
    git(history.git_dir, "config", "splitIndex.maxPercentChange", "100")
    git(history.git_dir, "update-index", "--split-index")
    return history


@pytest.mark.parametrize("version", [2, 4])
def test_what_git_changes_is_seen(split, version):
    git(split.git_dir, "update-index", "--index-version", str(version))
    git(split.git_dir, "update-index", "--split-index")
    paths = sorted(as_git_sees_it(split))
    assert as_we_see_it(split) == as_git_sees_it(split)
    chance = random.Random(version)
    for turn in range(6):
        blob = split.write_blob(b"turn %d" % turn)
        some = chance.sample(paths, 40) if turn else paths[100:300]  # whole words of one bit
        stage(split, [(path, chance.choice([blob, None])) for path in some])
        stage(split, [(f"new/{turn}/{number}", blob) for number in range(3)])
        assert b"link" in (split.git_dir / "index").read_bytes()
        assert as_we_see_it(split) == as_git_sees_it(split)
    stage(split, [(path, None) for path in as_git_sees_it(split)])
    assert as_we_see_it(split) == {}


def test_what_is_written_is_whole(split):
    before = split.read_index()
    write(split, *before.entries.values(), entry_of(split, "z"))
    assert b"link" not in (split.git_dir / "index").read_bytes()
    assert as_git_sees_it(split) == as_we_see_it(split)
    assert len(as_we_see_it(split)) == 501


def test_the_shared_part_is_missing_or_another(split):
    stage(split, [("own", split.write_blob(b"own"))])
    (shared,) = split.git_dir.glob("sharedindex.*")
    data = shared.read_bytes()
    shared.unlink()
    with pytest.raises(CorruptionError, match=r"split, and its part sharedindex\.\w+ is missing"):
        split.read_index()
    body = data[:-21] + b"x"
    shared.write_bytes(body + hashlib.sha1(body).digest())
    with pytest.raises(CorruptionError, match="is another one"):
        split.read_index()
    shared.write_bytes(data[:99] + b"?" + data[100:])
    with pytest.raises(CorruptionError, match="checksum"):
        split.read_index()


@given(st.binary(max_size=200), st.integers(0, 300))
def test_any_bitmaps_are_read_or_refused(data, count):
    link = parse_link(b"\1" * 20 + data)
    try:
        link.join([], [])
    except (ValueError, LookupError):
        pass
    else:
        assert not data.strip(b"\0") or len(data) >= 12


def test_a_link_to_nothing():
    assert parse_link(bytes(20)) is None
    with pytest.raises(ValueError, match="cut off"):
        parse_link(b"short")
