"""Content that is on a remote: reads fetch what they need and no more, upkeep knows that it is promised."""

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from mvc import (
    ConflictError,
    CorruptionError,
    NotFoundError,
    Repo,
    StorageError,
    UsageError,
    clone,
)
from mvc.chunkstore.store import ChunkStore
from mvc.remotes import remote as remote_module
from mvc.remotes.root import with_packs
from mvc.storage.local import LocalStorage
from support.lying_remote import put_index
from support.verbs import WHO

LAYERS = 40
BYTES = 64 * 1024


def save(repo, seed, changed=range(LAYERS)):
    path = repo.worktree / "model.safetensors"
    tensors = load_file(path) if path.exists() else {}
    source = np.random.default_rng(seed)
    for number in changed:
        tensors[f"layer.{number:02}"] = source.standard_normal(BYTES // 4).astype(np.float32)
    save_file(tensors, path)
    return repo.commit(f"step {seed}", paths=["."]).id


@pytest.fixture
def repo(linked):
    repo = linked
    repo.set_config("mvc.chunkbytes", str(BYTES))
    (repo.worktree / "config.json").write_text("{}\n")
    save(repo, 0)
    save(repo, 1, [7])
    repo.push()
    return repo


def reads(asked):
    """The runs of packs that were read."""
    return [call for one in asked for call in one.calls if call[0] in ("read_into", "read_ranges")]


@pytest.fixture
def partial(repo, store, tmp_path):
    partial = clone(store, tmp_path / "b", content=False)
    partial.identity = WHO
    return partial


def here(repo):
    return list((repo.git_dir / "chunks" / "packs").glob("*.pack"))


def test_a_clone_without_content_has_history_and_small_files(repo, partial):
    assert here(partial) == []
    assert [one.id for one in partial.log()] == [one.id for one in repo.log()]
    assert (partial.worktree / "config.json").read_text() == "{}\n"
    assert not (partial.worktree / "model.safetensors").exists()
    assert partial.status().is_clean
    assert [one.path for one in partial.diff("HEAD~", "HEAD")] == ["model.safetensors"]


def test_a_tensor_is_read_with_few_requests_and_once(repo, partial, asked, tmp_path):
    wanted = load_file(repo.worktree / "model.safetensors")
    tensor = partial.tensor("HEAD", "model.safetensors", "layer.03")
    assert (np.asarray(tensor) == wanted["layer.03"]).all()
    assert 1 <= len(reads(asked)) <= 2
    asked.clear()
    assert (
        np.asarray(partial.tensor("HEAD", "model.safetensors", "layer.03")) == wanted["layer.03"]
    ).all()
    assert reads(asked) == []
    assert here(partial) == []


def test_a_checkout_fetches_the_content(repo, partial, asked):
    partial.checkout("HEAD", detach=True)
    path = "model.safetensors"
    assert (partial.worktree / path).read_bytes() == (repo.worktree / path).read_bytes()
    assert len(reads(asked)) <= 4
    assert partial.status().is_clean


def test_only_what_differs_is_fetched_to_be_compared(partial, asked):
    done = partial.compare("HEAD~", "HEAD")
    assert [one.name for one in done.differing] == ["layer.07"]
    assert sum(one.read_bytes for one in asked) <= 2 * 2**18 + BYTES


def test_an_export_of_some_tensors_fetches_those(repo, partial, asked, tmp_path):
    partial.export("HEAD", tmp_path / "some.safetensors", tensors="layer.1*")
    wanted = load_file(repo.worktree / "model.safetensors")
    found = load_file(tmp_path / "some.safetensors")
    assert sorted(found) == [f"layer.{number}" for number in range(10, 20)]
    assert all((value == wanted[name]).all() for name, value in found.items())
    assert sum(one.read_bytes for one in asked) <= 10 * BYTES + 2 * 2**18
    assert len(reads(asked)) <= 5


def test_upkeep_knows_what_is_promised(repo, partial, asked):
    before = len(repo.upkeep.fsck().problems)
    report = partial.upkeep.fsck(data=True)
    assert (report.ok, before) == (True, 0)
    assert report.promised == report.chunks == repo.upkeep.fsck().chunks
    assert report.promised_bytes >= (LAYERS + 1) * BYTES
    assert partial.upkeep.gc(partial.upkeep.plan_gc(grace_s=0)).removed_packs == 0
    partial.upkeep.repack(partial.upkeep.plan_repack())
    assert reads(asked) == []
    partial.set_config("remote.origin.promisor", None)
    assert "missing-chunk" in {one.kind for one in partial.upkeep.fsck().problems}
    with pytest.raises(CorruptionError):
        partial.upkeep.plan_gc()


def test_work_goes_on_in_a_clone_without_content(repo, partial, asked, store, tmp_path):
    partial.checkout("HEAD", detach=False)
    asked.clear()
    new = save(partial, 2, [9])
    assert reads(asked) == []
    assert len(here(partial)) == 1  # whole: a remote may lose what others put there
    assert partial.push().sent_bytes < 3 * BYTES
    assert repo.pull("origin", "main").merged.commit == new
    assert repo.upkeep.fsck(data=True).ok
    whole = clone(store, tmp_path / "whole")
    assert whole.upkeep.fsck(data=True).problems == ()


def test_a_fetch_brings_history_and_content_of_one_revision(repo, partial, store):
    new = save(repo, 2, [9])
    repo.push()
    assert partial.fetch().received_bytes == 0
    assert partial.resolve("origin/main") == new
    partial.fetch(content_of=["origin/main"])
    store.rename(store.with_name("away"))
    partial.checkout("origin/main", detach=True)
    path = "model.safetensors"
    assert (partial.worktree / path).read_bytes() == (repo.worktree / path).read_bytes()
    assert partial.upkeep.fsck(data=True).ok
    assert 1 <= partial.upkeep.fsck().promised <= 2  # what only older commits have
    with pytest.raises(StorageError, match="origin"):
        partial.tensor("HEAD~2", "model.safetensors", "layer.07")


def test_a_pack_that_is_gone_is_looked_for_again(repo, partial, store):
    """Packs may be joined on a remote; what reads know of it is then out of date."""
    there = remote_module.open_remote(repo._context, "origin")
    old = dict(there.roots.read().listed.packs)
    joined = ChunkStore(LocalStorage(store))
    joined.gather(old)
    new = dict(joined.list_packs().packs)
    assert old.keys().isdisjoint(new)
    there.roots.update(lambda root: with_packs(there.roots.drop_packs(root, old), new, {}))
    partial.checkout("HEAD", detach=True)
    path = "model.safetensors"
    assert (partial.worktree / path).read_bytes() == (repo.worktree / path).read_bytes()


def test_a_lie_is_found_out_and_not_kept(repo, partial, store):
    sound = {path: path.read_bytes() for path in (store / "packs").glob("*.pack")}
    for path, data in sound.items():
        path.chmod(0o644)
        path.write_bytes(data[:100] + bytes(len(data) - 200) + data[-100:])
    with pytest.raises(CorruptionError, match="layer"):
        partial.tensor("HEAD", "model.safetensors", "layer.03")
    assert not (partial.worktree / "model.safetensors").exists()
    for path, data in sound.items():
        path.write_bytes(data)
    wanted = load_file(repo.worktree / "model.safetensors")["layer.03"]
    assert (np.asarray(partial.tensor("HEAD", "model.safetensors", "layer.03")) == wanted).all()


def test_what_only_the_remote_has_is_not_given_up(repo, partial, store, tmp_path):
    with pytest.raises(ConflictError, match=r"\d+ chunks"):
        partial.remotes.remove("origin")
    partial.remotes.rename("origin", "there")
    assert list(partial.tensors("HEAD"))
    partial.remotes.add("other", str(tmp_path / "other"))
    with pytest.raises(NotFoundError) as raised:
        partial.push("other", ["main"])
    assert "--content" in raised.value.hint
    partial.fetch("there", content_of=["HEAD", "HEAD~"])
    partial.push("other", ["main"])
    partial.remotes.remove("there")
    assert partial.upkeep.fsck(data=True).problems == ()


def test_a_remote_that_was_never_heard_of_is_named(partial, monkeypatch):
    partial.remotes.set_url("origin", "s3://bucket/nowhere")
    partial.set_config("remote.origin.endpoint", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "mvctestkey")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "mvctestsecret")
    with pytest.raises(StorageError, match="'origin' promises content"):
        list(partial.tensors("HEAD"))
    assert partial.status().is_clean


def test_an_index_that_lies_is_found_out_and_not_kept(repo, store, tmp_path):
    sound = {path: path.read_bytes() for path in (store / "packs").glob("*.idx")}
    for path, data in sound.items():
        count = int.from_bytes(data[56:64], "little")
        at = 64 + count * (32 + 8 + 4 + 4)  # the encodings
        tags = bytes(tag ^ 1 for tag in data[at : at + count])
        put_index(store, path.stem, data[:at] + tags + data[at + count :])
    partial = clone(store, tmp_path / "p", content=False)
    with pytest.raises(CorruptionError):
        partial.tensor("HEAD", "model.safetensors", "layer.03")
    for path, data in sound.items():
        path.write_bytes(data)
    partial = Repo.open(partial.worktree)
    wanted = load_file(repo.worktree / "model.safetensors")["layer.03"]
    assert (np.asarray(partial.tensor("HEAD", "model.safetensors", "layer.03")) == wanted).all()


def test_the_cache_obeys_the_config(partial, asked):
    partial.set_config("cache.size", "1M")
    partial.checkout("HEAD", detach=True)
    kept = [
        path.stat().st_size for path in (partial.git_dir / "cache").rglob("*") if path.is_file()
    ]
    assert 0 < sum(kept) <= 2**20
    for wrong in ("much", "-1", "0", "10X", "1.5G"):
        with pytest.raises(UsageError, match="size such as"):
            partial.set_config("cache.size", wrong)
