"""du: every number against a count with Python sets, over random repositories; and the rules."""

import os
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save_file

from mvc import Identity, Repo, UsageError
from mvc.operations.du import KINDS
from support.bounds import on_disk
from support.models import write_model

WHO = Identity("Ann Example", "ann@example.org")
_MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


class Count:
    """All of it again, one chunk at a time."""

    def __init__(self, repo):
        self.repo = repo
        self.context = repo._context
        copies = self.context.store.copies()
        self.size, self.bases = {}, {}
        for number in range(len(copies)):
            copy = int(copies.chosen[number])
            self.size[copies.chunk_id(number)] = int(copies.sizes[copy])
            self.bases[copies.chunk_id(number)] = [
                copies.chunk_id(base) for base in copies.bases[copy].tolist() if base >= 0
            ]
        self.all_bytes = int(copies.sizes.sum())

    def refs(self):
        return {
            **{("branch", ref.name): ref.commit for ref in self.repo.branches.list()},
            **{("tag", ref.name): ref.commit for ref in self.repo.tags.list()},
        }

    def named(self):
        return {entry.info.id for entry in self.repo.log(everything=True)}

    def reach(self, tips):
        return {entry.info.id for tip in tips for entry in self.repo.log(tip)}

    def versions(self, commits):
        """Return (path, blob) of all files in chunks whose content was not released."""
        found = set()
        for commit in commits:
            released = self.repo.show(commit).released
            gone = () if released is None else released.paths
            tree = self.context.history.read_tree(commit)
            found |= {(path, entry.blob) for path, entry in tree.items() if path not in gone}
        return found

    def staged(self):
        head = self.context.history.read_tree(self.repo.head.commit)
        entries = self.context.history.read_index().entries
        return {
            (path, entry.blob)
            for path, entry in entries.items()
            if path not in head or head[path].blob != entry.blob
        }

    def chunks(self, versions):
        return {
            chunk for _, blob in versions for chunk in self.context.manifests.read(blob).chunk_ids()
        }

    def close(self, chunks):
        found, pending = set(), list(chunks)
        while pending:
            chunk = pending.pop()
            if chunk not in found:
                found.add(chunk)
                pending.extend(self.bases[chunk])
        return found

    def weigh(self, chunks):
        return sum(self.size[chunk] for chunk in self.close(chunks))

    def raw(self, versions):
        return sum(self.context.manifests.read(blob).size_bytes for _, blob in versions)

    def compare(self, entry, mine, others):
        """Compare an entry with what goes if only some chunks are named by others."""
        both = self.weigh(mine | others)
        assert entry.alone_bytes == both - self.weigh(others), entry
        assert entry.stored_bytes == self.weigh(mine), entry


def compare_all(repo):
    """Compare every entry of every kind."""
    report = repo.upkeep.du(by=KINDS)
    count = Count(repo)
    staged = count.chunks(count.staged())
    refs = count.refs()
    for entry in (*report.branches, *report.tags):
        tip = refs[entry.kind, entry.name]
        others = [commit for key, commit in refs.items() if key != (entry.kind, entry.name)]
        mine = count.versions(count.reach([tip]))
        rest = count.chunks(count.versions(count.reach(others))) | staged
        count.compare(entry, count.chunks(mine), rest)
        assert (entry.commit, entry.raw_bytes) == (tip, count.raw(mine))
    assert len(report.branches) + len(report.tags) == len(refs)
    named = count.named()
    assert {entry.name for entry in report.commits} == named
    for entry in report.commits:
        mine = count.versions([entry.name])
        rest = count.chunks(count.versions(named - {entry.name})) | staged
        count.compare(entry, count.chunks(mine), rest)
        assert entry.raw_bytes == count.raw(mine)
    versions = count.versions(named) | count.staged()
    assert {entry.path for entry in report.files} == {path for path, _ in versions}
    for entry in report.files:
        mine = {item for item in versions if item[0] == entry.path}
        count.compare(entry, count.chunks(mine), count.chunks(versions - mine))
        assert entry.raw_bytes == count.raw(mine)
        assert entry.versions == len(mine)
    compare_tensors(report, count, versions)
    needed = count.close(count.chunks(versions))
    totals = report.totals
    assert totals.needed_bytes - totals.reflog_bytes == sum(map(count.size.get, needed))
    assert totals.needed_bytes + totals.unneeded_bytes == count.all_bytes
    return report


def compare_tensors(report, count, versions):
    users = {}
    for path, blob in versions:
        manifest = count.context.manifests.read(blob)
        users.setdefault((path, ""), set()).update(manifest.gaps)
        for view, stored in manifest.tensors():
            users.setdefault((path, view.name), set()).update(stored.chunks)
    entries = {(entry.path, entry.name): entry for entry in report.tensors}
    assert len(entries) == len(report.tensors)
    assert entries.keys() == users.keys()
    for key, entry in entries.items():
        others = set().union(*(chunks for other, chunks in users.items() if other != key))
        count.compare(entry, users[key], others)
    assert sum(entry.raw_bytes for entry in report.tensors) == count.raw(versions)


def write(root, path, seeds, step=0):
    """Write a file whose tensors follow from seeds, drifting a little with the step."""
    tensors = {}
    for place, seed in enumerate(seeds):
        values = np.random.default_rng(seed).standard_normal(3000).astype(np.float32)
        if seed % 2:
            values += np.float32(1e-4) * np.random.default_rng(step).standard_normal(3000).astype(
                np.float32
            )
        tensors[f"t{place}"] = values
    save_file(tensors, root / path)


_SEEDS = st.lists(st.integers(0, 5), min_size=1, max_size=3)
_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("commit"), st.sampled_from(["a.safetensors", "b.safetensors"]), _SEEDS),
        st.tuples(st.just("branch"), st.integers(0, 3), st.integers(0, 9)),
        st.tuples(st.just("tag"), st.integers(0, 2), st.integers(0, 9)),
        st.tuples(st.just("reset"), st.integers(0, 9), st.just(0)),
        st.tuples(st.just("stage"), st.sampled_from(["a.safetensors", "c.safetensors"]), _SEEDS),
    ),
    min_size=2,
    max_size=9,
)


@on_disk
@given(_STEPS)
def test_every_number_is_what_counting_gives(steps):
    with tempfile.TemporaryDirectory(dir=_MEMORY) as folder:
        root = Path(folder)
        repo = Repo.init(root)
        repo.identity = WHO
        repo.set_config("mvc.chunkbytes", "4096")
        write(root, "a.safetensors", [1, 3])
        commits = [repo.commit("first", paths=".", delta=True).commit]
        for number, (verb, first, second) in enumerate(steps):
            at = commits[second % len(commits)] if verb in ("branch", "tag") else None
            if verb == "branch":
                repo.checkout(at, force=True)
                repo.branches.create(f"b{first}", force=True)
                repo.switch(f"b{first}", force=True)
            elif verb == "tag":
                repo.tags.create(f"v{first}", at, force=True)
            elif verb == "reset":
                repo.reset(commits[first % len(commits)], mode="hard")
            else:
                write(root, first, second, number)
                if verb == "commit":
                    made = repo.commit("x", paths=".", delta=True, allow_empty=True)
                    commits.append(made.commit)
                else:
                    repo.add(first)
        compare_all(Repo.open(root))


@pytest.fixture
def chain(repo, root):
    """Four commits on main, each a small drift from the one before and stored as such."""
    rng = np.random.default_rng(0)
    weights = rng.standard_normal(40_000).astype(np.float32)
    for number in range(4):
        weights = weights + np.float32(1e-5) * rng.standard_normal(40_000).astype(np.float32)
        save_file({"w": weights}, root / "m.safetensors")
        repo.commit(f"step {number}", paths=".", delta=True)
    return repo


def test_what_a_released_commit_leaves_as_a_base(chain):
    before = chain.upkeep.du().totals
    chain.upkeep.prune(chain.upkeep.plan_prune(keep_last=1))
    report = compare_all(Repo.open(chain.worktree))
    assert report.totals.versions == 1
    assert report.totals.raw_bytes == before.raw_bytes // 4
    released = [entry for entry in report.commits if entry.raw_bytes == 0]
    assert len(released) == 3
    assert {(entry.stored_bytes, entry.ratio) for entry in released} == {(0, None)}


def test_bytes_held_only_as_bases(chain):
    from mvc.workspace.releases import Release, add_releases

    info = [entry.info.id for entry in chain.log()]
    records = [Release(commit, ("m.safetensors",), "--keep-last 1", 0) for commit in info[1:]]
    add_releases(chain._context, records)  # recorded, nothing freed yet
    totals = Repo.open(chain.worktree).upkeep.du().totals
    count = Count(chain)
    direct = count.chunks(count.versions([info[0]]))
    held = count.close(direct) - direct
    assert held
    assert totals.base_bytes == sum(map(count.size.get, held))
    assert totals.unneeded_bytes == count.all_bytes - count.weigh(direct)


def test_what_only_reflogs_hold_is_nobodys(repo, root):
    write_model(root / "m.safetensors", seed=1)
    repo.commit("one", paths=".")
    write_model(root / "m.safetensors", seed=2)
    repo.commit("two", paths=".")
    before = repo.upkeep.du()
    assert before.totals.reflog_bytes == 0
    repo.reset("HEAD~1", mode="hard")
    after = Repo.open(root).upkeep.du()
    assert len(after.commits) == 1
    assert after.totals.commits == 2
    assert after.totals.versions == before.totals.versions == 2
    assert after.totals.needed_bytes == before.totals.needed_bytes
    (newest,) = (entry for entry in before.commits if entry.subject == "two")
    assert after.totals.reflog_bytes == newest.alone_bytes > 0
    assert after.branches[0].alone_bytes == before.totals.needed_bytes - newest.alone_bytes


def test_a_detached_head_keeps_what_it_is_on(repo, root):
    write_model(root / "m.safetensors", seed=1)
    repo.commit("one", paths=".")
    repo.checkout("HEAD", detach=True)
    (main,) = repo.upkeep.du().branches
    assert main.alone_bytes == 0
    assert main.shared_bytes > 0


def test_a_selection_of_commits(chain):
    everything = chain.upkeep.du(by=KINDS)
    newest = chain.upkeep.du("HEAD", by=KINDS)
    (commit,) = newest.commits
    assert commit == next(one for one in everything.commits if one.name == chain.head.commit)
    chosen = newest.selection
    assert (chosen.kind, chosen.name) == ("selection", "HEAD")
    assert chosen.alone_bytes == commit.alone_bytes
    assert newest.files[0].alone_bytes == commit.alone_bytes
    assert sum(one.raw_bytes for one in newest.tensors) == commit.raw_bytes
    assert newest.totals == everything.totals
    pair = chain.upkeep.du("HEAD~2..HEAD")
    assert len(pair.commits) == 2
    assert pair.selection.alone_bytes >= sum(one.alone_bytes for one in pair.commits)
    assert [one.name for one in pair.branches] == ["main"]
    assert chain.upkeep.du("HEAD~1").branches == ()
    assert everything.selection is None


def test_views_share_their_storage(repo, root):
    torch = pytest.importorskip("torch")
    weights = torch.arange(5000.0)
    torch.save({"w": weights, "tied": weights, "own": torch.ones(100)}, root / "m.pt")
    repo.commit("tied", paths=".")
    tied = [entry for entry in repo.upkeep.du(by=["tensor"]).tensors if entry.name in ("w", "tied")]
    assert {entry.alone_bytes for entry in tied} == {0}
    assert all(entry.shared_bytes > 0 for entry in tied)


def test_a_lost_pack_does_not_stop_it(repo, root):
    report = repo.upkeep.du(by=KINDS)
    assert (report.branches, report.commits, report.files, report.tensors) == ((), (), (), ())
    assert report.totals.ratio is None
    write_model(root / "m.safetensors", seed=1)
    repo.commit("one", paths=".")
    for pack in (root / ".mvc/chunks/packs").iterdir():
        pack.unlink()
    report = Repo.open(root).upkeep.du(by=KINDS)
    assert report.totals.needed_bytes == 0
    assert report.totals.raw_bytes > 0
    with pytest.raises(UsageError, match="cannot list by 'colour'"):
        repo.upkeep.du(by=["colour"])
