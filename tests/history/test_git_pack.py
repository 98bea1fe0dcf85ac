"""Packs that mvc writes: Git's to the byte, durable in order, garbage until then."""

import os
import random
import shutil

import pytest

from mvc import fs
from mvc.errors import UsageError
from mvc.history import git_pack
from mvc.history.git_pack import write_pack
from mvc.history.object_formats import encode_commit
from mvc.ids import hash_git_object
from support.forgetful import ForgetfulDisk, PowerLoss
from support.stockgit import at, commit_on_head, git


def make_objects(count=300):
    chooser = random.Random(count)
    sizes = [0, 1, 15, 16, 17, 2047, 2048, 2049, 300_000]
    contents = [("blob", chooser.randbytes(size)) for size in sizes]
    contents += [("blob", b"text %d\n" % number * number) for number in range(1, count)]
    tree = ("tree", b"100644 file\0" + bytes.fromhex(hash_git_object(*contents[0])))
    tree_id = hash_git_object(*tree)
    data = encode_commit(tree=tree_id, parents=[], message="one", author=at(), committer=at())
    return [(hash_git_object(*one), *one) for one in [*contents, tree, ("commit", data)]]


def folder_of(history):
    return history.git_dir / "objects" / "pack"


def test_stock_git_takes_the_pack_for_its_own(history):
    objects = make_objects()
    path = write_pack(folder_of(history), len(objects), iter(objects))
    theirs = history.git_dir / "theirs.idx"
    git(history.git_dir, "index-pack", "--strict", "-o", str(theirs), str(path))
    assert path.with_suffix(".idx").read_bytes() == theirs.read_bytes()
    git(history.git_dir, "update-ref", "refs/heads/main", objects[-1][0])
    git(history.git_dir, "fsck", "--strict", "--full", "--no-dangling")
    lines = git(history.git_dir, "cat-file", "--batch-all-objects", "--batch-check").split("\n")
    assert sorted(lines) == sorted(f"{one} {kind} {len(data)}" for one, kind, data in objects)
    for object_id, kind, data in objects[::20]:
        assert history.objects.read(object_id) == (kind, data)


def test_offsets_beyond_two_gigabytes_have_their_own_table(history, monkeypatch):
    objects = make_objects(40)
    path = write_pack(folder_of(history), len(objects), objects)
    index = path.with_suffix(".idx")
    near = git(history.git_dir, "show-index", data=index.read_bytes())
    index.unlink()
    real = git_pack._encode_entries

    def far_away(count, given, places):
        yield from real(count, given, places)
        places[:] = [(name, crc, offset + (5 << 31)) for name, crc, offset in places]

    monkeypatch.setattr(git_pack, "_encode_entries", far_away)
    far_path = write_pack(folder_of(history), len(objects), objects)
    far = git(history.git_dir, "show-index", data=far_path.with_suffix(".idx").read_bytes())
    for one, other in zip(near.split("\n"), far.split("\n"), strict=True):
        assert int(one.split()[0]) + (5 << 31) == int(other.split()[0])
        assert one.split()[1:] == other.split()[1:]


@pytest.mark.parametrize("wrong", [lambda objects: objects[1:], lambda objects: objects[:1] * 49])
def test_a_count_that_does_not_hold_leaves_nothing(history, wrong):
    objects = make_objects(40)
    assert len(objects) > 40
    with pytest.raises(UsageError, match="objects"):
        write_pack(folder_of(history), len(objects), wrong(objects))
    assert list(folder_of(history).iterdir()) == []


@pytest.mark.crash
def test_no_loss_of_power_leaves_an_index_without_its_pack(tmp_path):
    objects = make_objects(30)
    stop_at, is_done = 0, False
    while not is_done:
        work, after = tmp_path / f"work{stop_at}", tmp_path / f"after{stop_at}"
        work.mkdir()
        with ForgetfulDisk(work, stop_at) as disk:
            try:
                write_pack(work, len(objects), objects)
                is_done = True
            except PowerLoss:
                pass
        disk.survivors(after)
        disk.close()
        for folder in (after, work):
            for index in folder.glob("*.idx"):
                git(tmp_path, "verify-pack", str(index))
            assert not is_done or list(folder.glob("*.idx"))
        shutil.rmtree(after)
        stop_at += 1
    assert stop_at > 6


def test_a_pack_costs_four_syncs_however_many_objects(history, monkeypatch):
    synced = []
    monkeypatch.setattr(os, "fsync", synced.append)
    objects = make_objects()
    write_pack(folder_of(history), len(objects), objects)
    assert len(synced) == 4


def test_a_pack_without_its_index_is_kept_from_a_git_gc(history, monkeypatch):
    real, seen = fs.DurableFile.publish, []

    def publish(self, target, **options):
        if target.suffix == ".idx":
            git(history.git_dir, "repack", "-a", "-d", "-q")
            seen.append(target.with_suffix(".keep").exists())
        return real(self, target, **options)

    commit_on_head(history, "one")
    monkeypatch.setattr(fs.DurableFile, "publish", publish)
    objects = make_objects(40)
    path = write_pack(folder_of(history), len(objects), objects)
    assert seen == [True]
    assert not path.with_suffix(".keep").exists()
    for object_id, kind, data in objects[::7]:
        assert history.objects.read(object_id) == (kind, data)
