"""What differs between a map and its shards is named, each by path."""

import os

import pytest

from mvc.errors import StorageError
from mvc.shards.checking import check_shards
from mvc.shards.hashing import StatCache, hash_shards
from mvc.shards.places import GONE, Folder, FoundShard
from mvc.shards.shard_map import Shard, ShardMap
from mvc.workspace.kept import Kept


@pytest.fixture
def place(tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    for name, content in {"a": b"one", "b": b"two", "c": b"three", "d": b"three"}.items():
        (folder / name).write_bytes(content)
    return Folder(folder, "data")


@pytest.fixture
def made(place):
    return ShardMap.build(
        "data", [hashed.shard for hashed in hash_shards(place, place.list(None), threads=1)]
    )


def faults(report):
    return [(fault.kind, fault.path) for fault in report.faults]


def test_what_is_right_is_right(made, place, tmp_path):
    report = check_shards(made, place)
    assert report.ok
    assert (report.read, report.read_bytes, report.known, report.unproven) == (4, 16, 0, 0)
    assert check_shards(made, place, level="quick").unproven == 4
    cache = StatCache(Kept(tmp_path / "shards.db"), place)
    assert check_shards(made, place, cache=cache).read == 4
    assert check_shards(made, place, cache=cache).known == 4
    assert check_shards(made, place, level="quick", cache=cache).known == 4
    assert check_shards(made, place, level="full", cache=cache, threads=3).read == 4


def test_each_fault_is_named(made, place):
    folder = place.folder
    (folder / "a").write_bytes(b"two")
    (folder / "b").write_bytes(b"one")
    (folder / "c").write_bytes(b"tHree")
    (folder / "d").unlink()
    (folder / "e").write_bytes(b"new")
    report = check_shards(made, place)
    assert faults(report) == [
        ("swapped", "a"),
        ("swapped", "b"),
        ("changed", "c"),
        ("missing", "d"),
        ("extra", "e"),
    ]
    assert "what 'b' should" in report.faults[0].detail
    quick = check_shards(made, place, level="quick")
    assert faults(quick) == [("missing", "d"), ("extra", "e")]
    assert quick.unproven == 3


def test_shards_of_other_lengths_are_swapped_too(made, place):
    os.rename(place.folder / "a", place.folder / "x")
    os.rename(place.folder / "c", place.folder / "a")
    os.rename(place.folder / "x", place.folder / "c")
    assert faults(check_shards(made, place)) == [("swapped", "a"), ("swapped", "c")]
    assert faults(check_shards(made, place, level="quick")) == [("changed", "a"), ("changed", "c")]


def test_a_copy_of_another_shard_is_a_change(made, place):
    (place.folder / "a").write_bytes(b"two")
    (fault,) = check_shards(made, place).faults
    assert (fault.kind, fault.detail) == ("changed", "holds what 'b' should hold")


def test_a_folder_that_is_not_there_is_one_fault(made, tmp_path):
    report = check_shards(made, Folder(tmp_path / "none", "none"))
    assert faults(report) == [("missing", "")]


class Lagging(Folder):
    """A folder whose listing is behind: it still has what is gone, and not yet what is there."""

    def list(self, pattern):
        listed = [one for one in super().list(pattern) if one.path != "b"]
        return [*listed, FoundShard("c", 5), FoundShard("d", 0, fault=GONE)]


def test_a_listing_that_lags_is_named(made, place):
    for name in "cd":
        (place.folder / name).unlink()
    report = check_shards(made, Lagging(place.folder, "data"))
    assert faults(report) == [("stale", "b"), ("stale", "c"), ("stale", "d")]
    assert report.faults[0].detail == "is there, but not listed"
    assert report.faults[1].detail == "is listed, but cannot be opened"


def test_a_hostile_map_opens_nothing_beyond_its_root(place, tmp_path):
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "x").write_bytes(b"x")
    (place.folder / "away").symlink_to(tmp_path / "outside")
    hostile = ShardMap.build("data", [Shard("away/x", 1, b"0" * 32)], "a*")
    assert faults(check_shards(hostile, place)) == [
        ("extra", "a"),
        ("extra", "away"),
        ("missing", "away/x"),
    ]


def test_a_shard_that_became_a_link_is_named(made, place):
    os.rename(place.folder / "a", place.folder.parent / "a")
    (place.folder / "a").symlink_to(place.folder.parent / "a")
    (fault,) = check_shards(made, place).faults
    assert (fault.kind, fault.path, fault.detail) == ("changed", "a", "is a link")


def test_a_root_that_cannot_be_looked_at_is_an_error_of_ours(made, tmp_path):
    with pytest.raises(StorageError, match=r"cannot look at .*: file name too long"):
        check_shards(made, Folder(tmp_path / ("x" * 300), "x"))
