"""Loose objects and short packs become one pack: nothing is lost, and stock Git agrees."""

import os
import shutil
import time

import pytest

from mvc.errors import UsageError
from mvc.history import object_gather
from mvc.history.check import check as check_history
from mvc.history.git import GitHistory
from mvc.history.object_gather import (
    find_loose,
    find_short_packs,
    gather_objects,
    has_many_loose,
    plan_gathering,
)
from mvc.history.reachability import reachable_objects
from mvc.history.values import MODE_FILE, TreeEntry
from support.forgetful import ForgetfulDisk, PowerLoss
from support.stockgit import at, git, spoil

OLD_S = 40 * 24 * 3600


@pytest.fixture(autouse=True)
def few(monkeypatch):
    """Few objects are many."""
    monkeypatch.setattr(object_gather, "FEW_OBJECTS", 3)


def commit(history, text, *, branch="main", data=None):
    tip = history.find_ref(f"refs/heads/{branch}")
    entry = TreeEntry(MODE_FILE, history.write_blob(data or text.encode()))
    tree = history.write_tree({f"folder/{text}": entry})
    parents = [] if tip is None else [tip]
    new = history.write_commit(tree=tree, parents=parents, message=text, author=at())
    history.update_ref(f"refs/heads/{branch}", new, expected=tip, message="commit", stamp=at())
    return new


def loose_of(history):
    return set(history.objects.loose.iterate())


def gather(history, tip, packs=(), kept=None):
    with history.sweep_alone():
        gather_objects(history, find_loose(history.objects, [tip]), packs, kept)


def packs_of(history):
    return sorted(path.stem for path in (history.git_dir / "objects/pack").glob("*.idx"))


def check(history, reachable):
    """All is there, for a reader that knew the old files, for a new one, and for stock Git."""
    for reader in (history, GitHistory.open(history.git_dir)):
        assert reachable_objects(reader) == reachable
        for one in reachable:
            reader.objects.read(one)
    git(history.git_dir, "fsck", "--strict")


def test_what_a_branch_needs_is_moved_and_the_rest_stays(history):
    tip = [commit(history, f"{number}") for number in range(5)][-1]
    other = commit(history, "other", branch="other")
    blob = history.write_blob(b"staged")
    reachable = reachable_objects(history)
    gather(history, tip)
    left = loose_of(history)
    assert len(left) == 5
    assert {other, blob} < left
    check(history, reachable)
    assert commit(history, "more")  # on top of what lies in a pack
    assert len(find_loose(history.objects, [history.get_branch("main")])) == 4


def test_of_very_many_the_oldest_stay(history, monkeypatch):
    """One commit after an upgrade does not pay for all that lies there."""
    monkeypatch.setattr(object_gather, "MANY_OBJECTS", 8)
    tip = [commit(history, f"{number}") for number in range(5)][-1]
    reachable = reachable_objects(history)
    gather(history, tip)
    assert len(loose_of(history)) == 12
    assert not history.objects.loose.path(tip).exists()
    assert find_loose(history.objects, [tip]) == []
    check(history, reachable)


def test_a_damaged_commit_ends_the_look(history):
    first, second = commit(history, "one"), commit(history, "two")
    path = history.objects.loose.path(first)
    spoil(path, b"nothing")
    gather(history, second)
    assert len(loose_of(history)) == 4
    assert path.read_bytes() == b"nothing"


def test_long_objects_stay_loose(history):
    data = os.urandom(object_gather.MAX_LOOSE_BYTES + 1)
    tip = commit(history, "long", data=data)
    gather(history, tip)
    (left,) = loose_of(history)
    assert history.read_blob(left) == data


def test_short_packs_are_joined(history, monkeypatch):
    monkeypatch.setattr(object_gather, "GATHER_PACKS", 3)
    for number in range(3):
        assert not find_short_packs(history.objects)
        gather(history, commit(history, f"{number}"))
    reachable = reachable_objects(history)
    assert find_short_packs(history.objects) == packs_of(history)
    tip = commit(history, "last")
    gather(history, tip, find_short_packs(history.objects))
    assert len(packs_of(history)) == 1
    assert not loose_of(history)
    check(history, reachable | reachable_objects(history))
    gather(history, tip, packs_of(history))
    before = packs_of(history)
    gather(history, tip, before)  # it comes out as it is
    assert packs_of(history) == before
    check(history, reachable_objects(history))


@pytest.mark.parametrize("mark", [".keep", ".rev", ".bitmap", "multi-pack-index"])
def test_packs_that_git_has_marked_are_its_own(history, monkeypatch, mark):
    monkeypatch.setattr(object_gather, "GATHER_PACKS", 1)
    gather(history, commit(history, "one"))
    (name,) = packs_of(history)
    assert find_short_packs(history.objects) == [name]
    beside = f"{name}{mark}" if mark.startswith(".") else mark
    (history.git_dir / "objects/pack" / beside).touch()
    assert not find_short_packs(history.objects)


def test_a_damaged_object_stays_where_it_is(history):
    tip = [commit(history, f"{number}") for number in range(3)][-1]
    (blob,) = [entry.blob for entry in history.read_tree(tip).values()]
    path = history.objects.loose.path(blob)
    spoil(path, path.read_bytes()[:-4] + b"....")
    gather(history, tip)
    assert loose_of(history) == {blob}


def test_a_damaged_pack_stays_as_it_is(history):
    gather(history, commit(history, "one"))
    (hurt,) = packs_of(history)
    path = history.git_dir / "objects/pack" / f"{hurt}.pack"
    data = bytearray(path.read_bytes())
    data[20] ^= 1
    spoil(path, data)
    tip = commit(history, "two")
    gather(history, tip, [hurt])
    assert len(packs_of(history)) == 2
    assert path.read_bytes() == data


def test_a_check_beside_it_finds_nothing_wrong(history, monkeypatch):
    """The pack goes between the listing and the look at it."""
    gather(history, commit(history, "one"))
    (name,) = packs_of(history)
    tip = commit(history, "two")
    read_ids = history.objects.packs.read_ids

    def gather_first(wanted):
        if wanted == name and packs_of(history) == [name]:
            other = GitHistory.open(history.git_dir)
            gather(other, tip, [name])
        return read_ids(wanted)

    monkeypatch.setattr(history.objects.packs, "read_ids", gather_first)
    assert list(check_history(history)) == []
    assert packs_of(history) != [name]
    (now,) = packs_of(history)
    (history.git_dir / "objects/pack" / f"{now}.pack").unlink()
    assert any(problem.what == now for problem in check_history(GitHistory.open(history.git_dir)))


def test_many_are_seen_in_one_folder(history):
    folders = {}
    for number in range(600):
        blob = history.write_blob(b"%d" % number)
        folders.setdefault(blob[:2], []).append(blob)
    for blobs in folders.values():
        assert has_many_loose(history.objects, blobs[0]) == (len(blobs) >= 5)
    assert max(map(len, folders.values())) >= 5


def test_only_alone(history):
    with pytest.raises(UsageError):
        gather_objects(history, [], [])


class TestRepack:
    @pytest.fixture
    def garbage(self, history):
        """A pack in which half is garbage, and another; both old."""
        gather(history, commit(history, "one"))
        keep, drop = commit(history, "keep"), commit(history, "drop", branch="gone")
        with history.sweep_alone():
            loose = [*find_loose(history.objects, [keep]), *find_loose(history.objects, [drop])]
            gather_objects(history, loose, [])
        history.delete_ref("refs/heads/gone", expected=drop, stamp=at())
        then_s = time.time() - OLD_S
        for path in (history.git_dir / "objects/pack").iterdir():
            os.utime(path, (then_s, then_s))
        return drop

    def repack(self, history, older_than_s):
        needed = reachable_objects(history)
        with history.sweep_alone():
            loose, packs = plan_gathering(history, needed, older_than_s=older_than_s)
            gather_objects(history, loose, packs, needed)

    def test_old_garbage_goes(self, history, garbage):
        self.repack(history, 14 * 24 * 3600)
        (name,) = packs_of(history)
        assert not GitHistory.open(history.git_dir).has_object(garbage)
        check(history, reachable_objects(history))
        stat = (history.git_dir / "objects/pack" / f"{name}.pack").stat()
        assert stat.st_mtime < time.time() - OLD_S + 60  # what is garbage next is not young again
        self.repack(history, 14 * 24 * 3600)
        assert packs_of(history) == [name]

    def test_young_garbage_stays_and_grows_old(self, history, garbage):
        before = {name: self.age_of(history, name) for name in packs_of(history)}
        self.repack(history, 2 * OLD_S)
        assert GitHistory.open(history.git_dir).has_object(garbage)
        assert {name: self.age_of(history, name) for name in packs_of(history)} == before

    def age_of(self, history, name):
        return (history.git_dir / "objects/pack" / f"{name}.pack").stat().st_mtime_ns

    def test_few_are_left_alone(self, history, monkeypatch):
        monkeypatch.setattr(object_gather, "FEW_OBJECTS", 5)
        gather(history, commit(history, "one"))
        assert len(loose_of(history)) == 4
        self.repack(history, 0)
        assert len(loose_of(history)) == 4
        commit(history, "more")
        self.repack(history, 0)
        assert not loose_of(history)


@pytest.mark.slow
def test_power_loss_at_every_step(tmp_path):
    origin = tmp_path / "origin"
    history = GitHistory.init(origin)
    for number in range(3):
        gather(history, commit(history, f"{number}"))
    tip = commit(history, "last")
    reachable = reachable_objects(history)

    def run(folder):
        opened = GitHistory.open(folder)
        gather(opened, tip, packs_of(opened))

    step, stopped = 0, True
    while stopped:
        work, after = tmp_path / f"work {step}", tmp_path / f"after {step}"
        shutil.copytree(origin, work)
        with ForgetfulDisk(work, stop_at=step) as disk:
            try:
                run(work)
                stopped = False
            except PowerLoss:
                step += 1
        disk.survivors(after)
        disk.close()
        for folder in (work, after):
            check(GitHistory.open(folder), reachable)
            run(folder)
            check(GitHistory.open(folder), reachable)
            assert len(packs_of(GitHistory.open(folder))) == 1, f"step {step}"
        shutil.rmtree(work)
        shutil.rmtree(after)
    assert step > 15
