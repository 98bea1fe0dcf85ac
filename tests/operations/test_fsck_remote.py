"""fsck of remotes, and repair from them: damage on a store is found, damage here is mended."""

import shutil

import pytest

from mvc import NotFoundError, UsageError, clone
from support.damage import flip
from support.remote_repos import commit_model


@pytest.fixture
def repo(linked):
    repo = linked
    commit_model(repo)
    commit_model(repo, seed=1)
    repo.tags.create("v1")
    repo.push(tags=True, all_branches=True)
    return repo


def largest(paths):
    return max(paths, key=lambda path: path.stat().st_size)


def largest_pack(folder):
    return max(folder.glob("packs/*.pack"), key=lambda path: path.stat().st_size)


def state(repo):
    return {
        path.relative_to(repo.git_dir): path.read_bytes()
        for path in repo.git_dir.rglob("*")
        if path.is_file()
    }


def kinds(report):
    return {problem.kind for problem in report.problems}


def test_a_sound_remote_and_nothing_changes(repo, store):
    before, there = state(repo), sorted(store.rglob("*"))
    for data in (False, True):
        report = repo.upkeep.fsck(remote="origin", data=data)
        assert (report.problems, report.notices, report.data) == ((), (), data)
        assert (report.commits, report.files) == (2, 2)
        assert report.chunks == repo.upkeep.fsck().chunks
    assert state(repo) == before
    assert sorted(store.rglob("*")) == there


@pytest.mark.parametrize(
    ("spoil", "found"),
    [
        (lambda store: largest_pack(store).unlink(), {"missing-pack", "missing-chunk"}),
        (
            lambda store: shutil.copy(store / "root", largest_pack(store)),
            {"bad-pack", "missing-chunk"},
        ),
        (
            lambda store: largest_pack(store).with_suffix(".idx").unlink(),
            {"missing-index", "missing-chunk"},
        ),
        (lambda store: flip(largest_pack(store).with_suffix(".idx")), {"bad-index"}),
        (lambda store: next(store.glob("history/*.pack")).unlink(), {"missing-history"}),
        (lambda store: flip(next(store.glob("history/*.pack"))), {"bad-history"}),
        (lambda store: (store / "root").write_bytes(b"{" * 100_000), {"bad-root"}),
    ],
)
def test_what_is_wrong_there_is_found_without_reading_data(repo, store, spoil, found):
    before = state(repo)
    spoil(store)
    assert found <= kinds(repo.upkeep.fsck(remote="origin"))
    assert state(repo) == before


def test_damaged_bytes_there_are_found_with_data(repo, store):
    flip(largest_pack(store))
    assert repo.upkeep.fsck(remote="origin").ok
    report = repo.upkeep.fsck(remote="origin", data=True)
    assert {"bad-chunk", "bad-pack-hash", "damaged-chunk"} <= kinds(report)
    lost = next(one for one in report.problems if one.kind == "damaged-chunk")
    assert (lost.path, len(lost.commits)) == ("model.safetensors", 1)


def test_listings_not_requests_for_each_pack(repo, asked):
    for seed in range(2, 6):
        commit_model(repo, seed=seed)
        repo.push()
    asked.clear()
    assert repo.upkeep.fsck(remote="origin").ok
    names = [name for one in asked for name, *_ in one.calls]
    assert names.count("list") == 2
    assert "find_size" not in names
    assert "read_into" not in names


def test_what_no_root_names_is_told(repo, store):
    (store / "packs" / f"{'0' * 64}.pack").write_bytes(b"half")
    report = repo.upkeep.fsck(remote="origin")
    assert report.ok
    assert report.notices == ("1 objects (4 bytes) that the root does not name",)


def test_lost_and_damaged_chunks_come_back(repo, store, tmp_path):
    """A pack is gone, another has a flipped bit; the history lost a pack."""
    copy = clone(str(store), tmp_path / "b")
    first, second = sorted((copy.git_dir / "chunks/packs").glob("*.pack"))[:2]
    first.unlink()
    first.with_suffix(".idx").unlink()
    flip(second)
    assert not copy.upkeep.fsck(data=True).ok
    report = copy.upkeep.fsck(repair=True, sources=["origin"])
    assert report.problems == ()
    assert report.data
    assert any("lost chunks came from" in line for line in report.notices)
    assert copy.upkeep.fsck(data=True).ok


def test_two_damaged_remotes_together_are_enough(repo, store, tmp_path):
    other = tmp_path / "other"
    repo.remotes.add("other", str(other))
    repo.push("other", all_branches=True)
    packs = sorted((repo.git_dir / "chunks/packs").glob("*.pack"))
    assert len(packs) == 2
    flip(store / "packs" / packs[0].name)
    flip(other / "packs" / packs[1].name)
    for pack in packs:
        pack.unlink()
        pack.with_suffix(".idx").unlink()
    assert not repo.upkeep.fsck(repair=True, sources=["origin"]).ok
    assert repo.upkeep.fsck(repair=True, sources=["origin", "other"]).problems == ()


def test_what_does_not_go_together(repo, tmp_path):
    with pytest.raises(UsageError, match="for a repair"):
        repo.upkeep.fsck(sources=["origin"])
    with pytest.raises(UsageError, match="from here"):
        repo.upkeep.fsck(remote="origin", repair=True)
    with pytest.raises(NotFoundError, match="no remote 'orign'"):
        repo.upkeep.fsck(repair=True, sources=["orign"])
    with pytest.raises(NotFoundError, match="nothing was pushed"):
        repo.upkeep.fsck(remote=str(tmp_path / "empty"))


def objects_of(repo):
    return repo.git_dir / "objects"


def test_damaged_git_objects_come_back(repo, store, tmp_path):
    """Loose objects with a flipped bit, empty, and gone; a pack with a flipped bit, one without an index."""
    loose = sorted(path for path in objects_of(repo).glob("??/*") if path.is_file())
    assert len(loose) > 5
    flip(loose[0], -5)
    loose[1].chmod(0o644)
    loose[1].write_bytes(b"")
    loose[2].unlink()
    assert not repo.upkeep.fsck().ok
    report = repo.upkeep.fsck(repair=True, sources=["origin"])
    assert report.problems == ()
    assert any(f"lost Git objects came from {store}" in line for line in report.notices)
    assert sum("damaged, now damaged/objects-" in line for line in report.notices) == 2
    assert repo.upkeep.fsck(data=True).problems == ()


@pytest.mark.parametrize("spoil", [flip, lambda path: flip(path.with_suffix(".idx")),
                                   lambda path: path.with_suffix(".idx").unlink(),
                                   lambda path: path.unlink()])  # fmt: skip
def test_a_damaged_git_pack_comes_back(repo, store, tmp_path, spoil):
    copy = clone(str(store), tmp_path / "b")
    pack = largest(objects_of(copy).glob("pack/*.pack"))
    spoil(pack)
    assert not copy.upkeep.fsck().ok
    report = copy.upkeep.fsck(repair=True, sources=["origin"])
    assert report.problems == ()
    assert copy.upkeep.fsck(data=True).problems == ()
    assert list(copy.log()) == list(repo.log())
    names = {path.stem for path in objects_of(copy).glob("pack/*.idx")}
    assert names == {path.stem for path in objects_of(copy).glob("pack/*.pack")}


def test_each_remote_gives_what_is_sound_there(repo, store, tmp_path):
    """One has a damaged Git pack, the other damaged content: together they are enough."""
    other = tmp_path / "other"
    repo.remotes.add("other", str(other))
    repo.push("other", all_branches=True)
    flip(next(store.glob("history/*.pack")))
    for pack in other.glob("packs/*.pack"):
        flip(pack)
    for path in objects_of(repo).glob("??/*"):
        path.unlink()
    for pack in (repo.git_dir / "chunks/packs").glob("*.pack"):
        flip(pack)
    report = repo.upkeep.fsck(repair=True, sources=["origin"])
    assert not report.ok
    assert any(line.startswith(f"{store}: Git pack") for line in report.notices)
    report = repo.upkeep.fsck(repair=True, sources=["origin", "other"])
    assert report.problems == ()
    assert any(f"lost Git objects came from {other}" in line for line in report.notices)
    assert any(f"lost chunks came from {store}" in line for line in report.notices)


def test_what_is_sound_in_a_damaged_git_pack_is_kept(repo, tmp_path):
    """Nobody has it any more, so all but one object have to come from the damaged pack."""
    for seed in range(2, 9):
        commit_model(repo, seed=seed)
    repo.push()
    copy = clone(repo.remotes.list()["origin"].url.prefix, tmp_path / "b")
    pack = largest(objects_of(copy).glob("pack/*.pack"))
    flip(pack)
    empty = tmp_path / "empty"
    copy.remotes.add("empty", str(empty))
    report = copy.upkeep.fsck(repair=True, sources=["empty"])
    assert f"nothing was pushed to {empty} yet" in report.notices
    assert {problem.kind for problem in report.problems} <= {
        "object-missing", "unreadable-history", "bad-manifest"
    }  # fmt: skip
    assert len([one for one in report.problems if one.kind == "object-missing"]) == 1
