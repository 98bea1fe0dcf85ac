"""push: only what is missing travels, all refs move together or not at all."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mvc import ConflictError, CorruptionError, NotFoundError, ReleasedError, UsageError, clone
from mvc.formats.pack_index import encode_pack_index, index_records, parse_pack_index
from mvc.remotes import history
from mvc.remotes.root_store import RootStore
from mvc.storage import limited
from mvc.storage.local import LocalStorage
from support.damage import flip
from support.remote_repos import commit_model


@pytest.fixture
def repo(linked):
    return linked


def refs_of(store):
    return RootStore(LocalStorage(store)).read().refs


def test_the_current_branch_is_pushed_with_all_it_needs(repo, store, tmp_path):
    commit = commit_model(repo)
    done = repo.push()
    assert [(one.name, one.status) for one in done.refs] == [("refs/heads/main", "created")]
    assert refs_of(store) == {"refs/heads/main": commit}
    copy = clone(store, tmp_path / "b")
    assert copy.head.commit == commit
    for name in ("model.safetensors",):
        assert (copy.worktree / name).read_bytes() == (repo.worktree / name).read_bytes()
    assert copy.upkeep.fsck(data=True).problems == ()


def test_what_is_there_is_not_sent_again(repo, store, asked):
    commit_model(repo, layers=8, width=64)
    assert repo.push(dry_run=True).refs[0].status == "created"
    assert {call[0] for call in asked[-1].calls} == {"read_tagged"}
    assert not (store / "root").exists()
    first = repo.push().sent_bytes
    assert repo.push().sent_bytes == 0
    assert asked[-1].calls == [("read_tagged", "root")]
    repo.branches.create("side")
    repo.push("origin", ["side"])
    assert asked[-1].calls == [("read_tagged", "root"), ("replace", "root")]
    (repo.worktree / "notes.txt").write_text("x")
    repo.commit("notes", paths=["notes.txt"])
    assert repo.push().sent_bytes < 1000
    assert first > 100_000


def test_a_limit_counts_all_that_travels(repo, store, tmp_path, monkeypatch):
    commit_model(repo)
    passed = []
    monkeypatch.setattr(limited.RateLimit, "take", lambda _, size_bytes: passed.append(size_bytes))
    sent = repo.push(limit_bytes_s=1000).sent_bytes
    assert sent <= sum(passed) <= 1.1 * sent
    passed.clear()
    clone(store, tmp_path / "b", limit_bytes_s=1000)
    assert sum(passed) == sent
    with pytest.raises(UsageError, match="valid rate"):
        repo.push(limit_bytes_s=0)


def test_a_branch_that_would_lose_commits_is_refused_and_nothing_moves(repo, store, tmp_path):
    commit_model(repo)
    repo.push()
    other = clone(store, tmp_path / "b")
    other.identity = repo.identity
    commit_model(other, seed=1)
    other.push()
    before = refs_of(store)
    commit_model(repo, seed=2)
    repo.branches.create("side")
    with pytest.raises(ConflictError, match="not here"):
        repo.push("origin", ["main", "side"])
    assert refs_of(store) == before
    repo.fetch()
    with pytest.raises(ConflictError, match="diverged"):
        repo.push()
    assert repo.push(force=True).refs[0].status == "forced"
    with pytest.raises(ConflictError):
        other.push(lease=True, refspecs=["main"])
    other.fetch()
    other.push(lease=True)


def test_refs_are_deleted_and_tags_stay_where_they_are(repo, store):
    commit_model(repo)
    repo.branches.create("side")
    repo.tags.create("v1", message="one")
    repo.push(all_branches=True, tags=True)
    assert set(refs_of(store)) == {"refs/heads/main", "refs/heads/side", "refs/tags/v1"}
    assert repo.push("origin", [":side"]).refs[0].status == "deleted"
    assert "refs/heads/side" not in refs_of(store)
    with pytest.raises(NotFoundError):
        repo.push("origin", [":side"])
    commit_model(repo, seed=4)
    repo.tags.create("v1", message="two", force=True)
    with pytest.raises(ConflictError, match="exists"):
        repo.push("origin", ["v1"])
    assert repo.push("origin", ["+v1"]).refs[0].status == "forced"


def test_what_cannot_be_pushed_is_refused_before_anything_is_sent(repo, asked):
    with pytest.raises(NotFoundError):
        repo.push()
    commit_model(repo)
    for specs, error in [
        (["nope"], NotFoundError),
        (["a:b:c"], UsageError),
        (["HEAD"], UsageError),
    ]:
        with pytest.raises(error):
            repo.push("origin", specs)
    with pytest.raises(NotFoundError, match="no remote 'elsewhere'"):
        repo.push("elsewhere")
    assert all(call[0] == "read_tagged" for one in asked for call in one.calls)


def test_damage_is_never_pushed(repo, store):
    commit_model(repo)
    (pack,) = (repo.git_dir / "chunks" / "packs").glob("*.pack")
    flip(pack)
    with pytest.raises(CorruptionError, match="damaged"):
        repo.push()
    assert not (store / "root").exists()


def test_an_upstream_is_set_and_counted(repo, store, tmp_path):
    commit_model(repo)
    repo.push(set_upstream=True)
    up = repo.remotes.upstream()
    assert (up.remote, up.branch, up.ahead, up.behind) == ("origin", "main", 0, 0)
    commit_model(repo, seed=1)
    commit_model(repo, seed=2)
    other = clone(store, tmp_path / "b")
    other.identity = repo.identity
    commit_model(other, seed=3)
    other.push()
    repo.fetch()
    up = repo.remotes.upstream()
    assert (up.ahead, up.behind) == (2, 1)


def test_what_was_released_is_pushed_without_its_content_and_known_as_released(
    repo, store, tmp_path
):
    for seed in range(4):
        commit_model(repo, seed=seed)
    commit_model(repo, seed=9, name="other.safetensors")
    assert repo.upkeep.prune(repo.upkeep.plan_prune(keep_last=1)).plan.releases
    repo.push()
    copy = clone(store, tmp_path / "b")
    assert copy.upkeep.fsck(data=True).problems == ()
    released = [entry.id for entry in repo.log() if entry.released]
    assert len(released) == 3
    assert [entry.id for entry in copy.log() if entry.released] == released
    with pytest.raises(ReleasedError):
        copy.checkout("HEAD~3")
    copy.identity = repo.identity
    copy.remotes.add("third", str(tmp_path / "third"))
    copy.push("third")
    third = clone(tmp_path / "third", tmp_path / "c")
    assert [entry.id for entry in third.log() if entry.released] == released


def test_content_that_is_lost_is_refused_before_anything_is_sent(repo, store):
    commit_model(repo)
    commit_model(repo, seed=1)
    oldest = min((repo.git_dir / "chunks" / "packs").iterdir(), key=lambda one: one.stat().st_mtime)
    oldest.with_suffix(".pack").unlink()
    oldest.with_suffix(".idx").unlink()
    with pytest.raises(NotFoundError, match="neither here nor"):
        repo.push()
    assert not (store / "packs").exists()


def test_a_push_beside_one_that_joins_git_packs_is_planned_again(
    repo, store, tmp_path, monkeypatch
):
    """What it built upon is in another pack now; nothing of it may be missing."""
    monkeypatch.setattr(history, "CROWD_PACKS", 3)
    for seed in range(3):
        commit_model(repo, seed=seed)
        repo.push()
    other = clone(store, tmp_path / "b")
    other.identity = repo.identity
    commit_model(other, seed=8)
    real, rest = RootStore.update, [1]

    def push_between(self, change, **more):
        if rest and rest.pop():
            commit_model(repo, seed=9)
            repo.push("origin", ["main:side"])
        return real(self, change, **more)

    monkeypatch.setattr(RootStore, "update", push_between)
    other.push()
    assert clone(store, tmp_path / "c").upkeep.fsck(data=True).problems == ()


def test_a_damaged_git_pack_is_not_joined(repo, store, monkeypatch):
    monkeypatch.setattr(history, "CROWD_PACKS", 2)
    commit_model(repo)
    repo.push()
    (bad,) = (store / "history").iterdir()
    bad.chmod(0o644)
    data = bad.read_bytes()
    bad.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    for seed in (1, 2):
        commit_model(repo, seed=seed)
        repo.push()
    assert bad.stem in RootStore(LocalStorage(store)).read().listed.history


@given(st.lists(st.integers(1, 2**20), max_size=400))
def test_joined_packs_double(sizes):
    """However many pushes: few packs, and what stays is twice as long as all that is shorter."""
    packs = {str(number): size for number, size in enumerate(sizes)}
    gone = history.choose_crowd(packs)
    assert bool(gone) <= (len(packs) >= history.CROWD_PACKS)
    if gone:
        left = sorted(size for name, size in packs.items() if name not in gone)
        total = sum(packs[name] for name in gone)
        for size in left:
            assert size >= 2 * total
            total += size


def names_of_packs(store):
    return set(RootStore(LocalStorage(store)).read().listed.packs)


def test_many_pushes_leave_few_packs_and_clones_ask_little(
    repo, store, tmp_path, monkeypatch, asked
):
    monkeypatch.setattr(history, "CROWD_PACKS", 6)
    counts, sent = [], []
    for seed in range(16):
        commit_model(repo, seed=seed)
        sent.append(repo.push().sent_bytes)
        listed = RootStore(LocalStorage(store)).read().listed
        counts.append(len(listed.packs))
        assert max(counts[-1], len(listed.history)) <= 6
    assert sum(sent) < 4 * len(sent) * sent[0]  # each byte once more per doubling
    copy = clone(store, tmp_path / "b")
    assert len(asked[-1].calls) < 4 * counts[-1] + 10
    for number in range(16):
        path = "model.safetensors"
        assert copy.read_file(f"HEAD~{number}", path) == repo.read_file(f"HEAD~{number}", path)
    assert copy.upkeep.fsck(data=True).problems == ()
    assert repo.upkeep.fsck(remote="origin", data=True).problems == ()


def test_a_push_of_what_is_there_joins_nothing(repo, store, monkeypatch):
    for seed in range(4):
        commit_model(repo, seed=seed)
        repo.push()
    before = names_of_packs(store)
    monkeypatch.setattr(history, "CROWD_PACKS", 2)
    repo.tags.create("v1")
    repo.push(tags=True)
    assert names_of_packs(store) == before


@pytest.mark.parametrize("what", ["pack", "index"])
def test_a_damaged_pack_is_not_joined(repo, store, monkeypatch, what):
    monkeypatch.setattr(history, "CROWD_PACKS", 3)
    commit_model(repo)
    repo.push()
    (bad,) = names_of_packs(store)
    packs = repo._context.store
    for seed in (1, 2):
        commit_model(repo, seed=seed)
        repo.push()
    packs.gather(packs.packs())  # it is not here under that name, so it is read there
    path = store / "packs" / f"{bad}.{'pack' if what == 'pack' else 'idx'}"
    data = path.read_bytes()
    path.chmod(0o644)
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]) if what == "pack" else swap_ids(data))
    others = names_of_packs(store) - {bad}
    commit_model(repo, seed=3)
    repo.push()
    left = names_of_packs(store)
    assert bad in left
    assert not others & left


def swap_ids(data):
    """Return a pack index that says of two chunks that each is where the other is."""
    index = parse_pack_index(data)
    one, two, *rest = (index.record(row) for row in range(len(index)))
    swapped = [replace(one, chunk_id=two.chunk_id), replace(two, chunk_id=one.chunk_id), *rest]
    return encode_pack_index(index_records(index.pack, index.pack_size_bytes, swapped))


def test_packs_that_were_joined_here_send_only_what_is_missing(repo, store, asked):
    for seed in range(6):
        commit_model(repo, seed=seed, layers=8)
        repo.push()
    new = commit_model(repo, seed=7, layers=8, width=16)
    packs = repo._context.store
    packs.gather(packs.packs())
    assert len(packs.packs()) == 1
    before = sum(path.stat().st_size for path in (store / "packs").glob("*.pack"))
    sent = repo.push().sent_bytes
    assert sent < 0.1 * before
    assert refs_of(store)["refs/heads/main"] == new
