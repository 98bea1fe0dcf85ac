"""Statistics of pairs: what is read and what is not, how pieces add up, and what is kept."""

import os
import subprocess
import sys
from collections import Counter

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save_file

from mvc import CorruptionError, Repo
from mvc.chunkstore.store import ChunkStore
from mvc.comparison.gather import PAIR, gather
from mvc.comparison.pairs import pair_models
from mvc.sources import FileSource
from mvc.workspace import models
from mvc.workspace.context import open_at
from mvc.workspace.models import open_model
from support.machine import peak_below

RNG = np.random.default_rng(5)
VALUES = RNG.standard_normal((40, 100)).astype("f4")
CHUNK_BYTES = 4096


@pytest.fixture
def repo(tmp_path):
    made = Repo.init(tmp_path / "work")
    made.set_config("mvc.chunkbytes", str(CHUNK_BYTES))
    return made


@pytest.fixture
def reads(monkeypatch):
    """Counts chunks read from the store, and bytes read from checkpoint files."""
    counts = Counter()
    read_chunk, read_file = ChunkStore.read_into, FileSource.read_into

    def count_chunk(self, chunk_id, *args, **kwargs):
        counts["chunks"] += 1
        return read_chunk(self, chunk_id, *args, **kwargs)

    def count_file(self, offset, buffer):
        counts["bytes"] += len(buffer)
        return read_file(self, offset, buffer)

    monkeypatch.setattr(ChunkStore, "read_into", count_chunk)
    monkeypatch.setattr(FileSource, "read_into", count_file)
    return counts


def commit(repo, tensors, name="m.safetensors"):
    save_file(tensors, repo.worktree / name)
    repo.add(name)
    return repo.commit("x")


def compare(old, new, context=None, threads=2):
    with open_model(context, old) as before, open_model(context, new) as after:
        changes = gather(context, pair_models(before, after), threads=threads)
        return {change.name: change for change in changes}


def _pairs_kept(context):
    return [entry for entry in context.kept.list_entries() if entry[0] == PAIR]


def sums_of(old, new):
    old, new = (np.asarray(side).astype("f8").reshape(-1) for side in (old, new))
    return [abs(new - old).sum(), abs(old).sum(), abs(new).sum(), ((new - old) ** 2).sum()]


def assert_fits(statistics, old, new):
    """Compare with an independent float64 computation."""
    found = [
        statistics.sum_abs_difference,
        statistics.sum_abs_old,
        statistics.sum_abs_new,
        statistics.sum_sq_difference,
    ]
    assert found == pytest.approx(sums_of(old, new), rel=1e-9)
    assert statistics.elements == np.asarray(new).size
    assert statistics.changed == np.count_nonzero(np.asarray(old) != np.asarray(new))


def test_equal_ids_are_never_read(repo, reads):
    moved = VALUES.copy()
    moved[39, 99] += 1
    commit(repo, {"same": VALUES, "moved": VALUES * 2, "also": VALUES[:3]})
    commit(repo, {"same": VALUES, "moved": moved * 2, "renamed": VALUES[:3]})
    reads.clear()
    found = compare("HEAD~1", "HEAD", open_at(repo.worktree))
    assert {name: change.status for name, change in found.items()} == {
        "same": "unchanged", "moved": "modified", "renamed": "renamed",
    }  # fmt: skip
    assert found["same"].statistics is None
    # Of four chunks three are the same: they are read once, the last one on both sides.
    assert reads == {"chunks": 5}
    assert_fits(found["moved"].statistics, VALUES * 2, moved * 2)
    assert found["moved"].statistics.largest_index == 3999


def test_the_second_look_reads_nothing(repo, reads):
    commit(repo, {"a": VALUES, "b": VALUES[:9], "grown": VALUES[:20]})
    commit(repo, {"a": VALUES + 1, "b": VALUES[:9] * 2, "grown": VALUES[:25]})
    first = compare("HEAD~1", "HEAD", open_at(repo.worktree))
    assert reads["chunks"]
    reads.clear()
    again = compare("HEAD~1", "HEAD", open_at(repo.worktree))
    assert not reads
    assert {name: change.statistics for name, change in again.items()} == {
        name: change.statistics for name, change in first.items()
    }


def test_what_is_kept_in_another_version_is_computed_again(repo):
    commit(repo, {"a": VALUES})
    commit(repo, {"a": VALUES + 1})
    context = open_at(repo.worktree)
    first = compare("HEAD~1", "HEAD", context)["a"].statistics
    ((kind, key),) = _pairs_kept(context)
    context.kept.put_many(kind, {key: b"nonsense"})
    assert compare("HEAD~1", "HEAD", context)["a"].statistics == first


def test_a_changed_file_of_the_worktree_is_hashed_and_kept(repo, reads):
    commit(repo, {"same": VALUES, "moved": VALUES * 2})
    save_file({"same": VALUES, "moved": VALUES * 3}, repo.worktree / "m.safetensors")
    context = open_at(repo.worktree)
    reads.clear()
    found = compare("HEAD", None, context)
    assert {name: change.status for name, change in found.items()} == {
        "same": "unchanged", "moved": "modified",
    }  # fmt: skip
    assert reads["chunks"] == 4, "the store was asked for the tensor that is the same"
    reads.clear()
    again = compare("HEAD", None, context)
    assert again["moved"].statistics == found["moved"].statistics
    assert reads["chunks"] == 0


def test_plain_files_are_compared_byte_for_byte(tmp_path):
    save_file({"same": VALUES, "moved": VALUES}, tmp_path / "a.safetensors")
    torch.save(
        {"same": torch.from_numpy(VALUES), "moved": torch.from_numpy(VALUES + 1)}, tmp_path / "b.pt"
    )
    found = compare(tmp_path / "a.safetensors", tmp_path / "b.pt")
    assert found["same"].status == "unchanged"
    assert found["same"].statistics is None
    assert_fits(found["moved"].statistics, VALUES, VALUES + 1)


def test_one_that_cannot_be_compared_is_told(tmp_path):
    save_file({"shape": VALUES, "gone": VALUES[:1], "dims": VALUES[0]}, tmp_path / "a.safetensors")
    save_file(
        {"shape": VALUES.T.copy(), "came": VALUES[:2], "dims": VALUES[:1]},
        tmp_path / "b.safetensors",
    )
    found = compare(tmp_path / "a.safetensors", tmp_path / "b.safetensors")
    assert {name: (change.status, change.statistics) for name, change in found.items()} == {
        "shape": ("modified", None),
        "gone": ("removed", None),
        "came": ("added", None),
        "dims": ("modified", None),
    }


def test_common_rows_of_a_grown_tensor(repo):
    commit(repo, {"embed": VALUES[:23], "none": VALUES[:0], "bias": VALUES[0, :7]})
    commit(repo, {"embed": VALUES[:40] * 2, "none": VALUES[:2], "bias": VALUES[0, :5]})
    found = compare("HEAD~1", "HEAD", open_at(repo.worktree))
    assert found["embed"].compared_shape == (23, 100)
    assert_fits(found["embed"].statistics, VALUES[:23], VALUES[:23] * 2)
    assert found["none"].compared_shape == (0, 100)
    assert found["none"].statistics.elements == 0
    assert found["bias"].statistics.changed == 0
    assert found["bias"].status == "modified"


@pytest.mark.parametrize("threads", [1, 3])
def test_dtypes_differ_and_pieces_do_not_begin_together(tmp_path, repo, threads):
    """A view in the middle of a torch storage, against a file of other words in another cut."""
    base = torch.from_numpy(RNG.standard_normal(9000).astype("f4"))
    torch.save({"base": base, "view": base[77:8077].view(80, 100)}, repo.worktree / "m.pt")
    repo.add("m.pt")
    repo.commit("x")
    other = base[77:8077].view(80, 100).numpy().astype(ml_dtypes.bfloat16)
    save_file({"view": other}, tmp_path / "other.safetensors")
    context = open_at(repo.worktree)
    with open_model(context, "HEAD") as old, open_model(context, tmp_path) as new:
        changes = gather(context, pair_models(old, new), threads=threads)
    (change,) = (one for one in changes if one.name == "view")
    assert_fits(change.statistics, base[77:8077].numpy(), other.astype("f4").reshape(-1))
    assert change.statistics.is_cast


def test_views_of_one_storage_and_strides(tmp_path, repo):
    base = torch.from_numpy(VALUES.copy())
    for scale in (1, 2):
        tensors = {"base": base * scale}
        tensors["part"], tensors["turned"] = tensors["base"][7:31], tensors["base"].T
        torch.save(tensors, repo.worktree / "m.pt")
        repo.add("m.pt")
        repo.commit(f"{scale}")
    found = compare("HEAD~1", "HEAD", open_at(repo.worktree))
    assert_fits(found["part"].statistics, VALUES[7:31], VALUES[7:31] * 2)
    assert_fits(found["turned"].statistics, VALUES.T, VALUES.T * 2)
    # Equal elements in other places of their storages: another id, but no difference.
    torch.save({"part": base[7:31].clone() * 2, "turned": base.T.clone() * 2}, tmp_path / "b.pt")
    found = compare("HEAD", tmp_path / "b.pt", open_at(repo.worktree))
    assert found["part"].status == found["turned"].status == "unchanged"


@given(
    rows=st.integers(1, 40),
    width=st.sampled_from([1, 3, 100, 1023, 1024, 1025, 3000]),
    dead=st.sets(st.integers(0, 39)),
    broken=st.sets(st.integers(0, 39)),
)
def test_rows_are_counted_wherever_chunks_end(rows, width, dead, broken):
    """A row may lie in several pieces: each counts once."""
    dead, broken = ({one for one in rowset if one < rows} for rowset in (dead, broken))
    old = np.ones((rows, width), "f4")
    new = old * 2
    new[list(dead)] = 0
    new[list(broken - dead), -1] = np.nan
    sides = [models.read_live({"m": {"w": values}}) for values in (old, new)]
    tensors = [_with_chunk_bytes(side.tensors[0], CHUNK_BYTES) for side in sides]
    pairs = pair_models(*(models.Model("", (one,)) for one in tensors))
    (change,) = gather(None, pairs, threads=1)
    found = change.statistics
    assert (found.zero_rows_old, found.nan_rows_old) == (0, 0)
    assert (found.zero_rows_new, found.nan_rows_new) == (len(dead), len(broken - dead))
    assert found.elements == rows * width


def _with_chunk_bytes(tensor, chunk_bytes):
    return models.ModelTensor(
        tensor.path, tensor.view, tensor.segment, tensor.source, tensor.start, None, chunk_bytes
    )


def test_any_number_of_threads_gives_the_same_bits():
    old = RNG.standard_normal((300, 1000)).astype("f4")
    new = old + RNG.standard_normal((300, 1000)).astype("f4")
    found = []
    for threads in (1, 2, 5):
        sides = [models.read_live({"m": {"w": values}}) for values in (old, new)]
        tensors = [_with_chunk_bytes(side.tensors[0], 64 * 1024) for side in sides]
        pairs = pair_models(*(models.Model("", (one,)) for one in tensors))
        found.append(gather(None, pairs, threads=threads)[0].statistics)
    assert found[0] == found[1] == found[2]


def test_work_that_was_done_before_a_failure_is_kept(repo, monkeypatch):
    """As before Ctrl-C: the next look goes on from there."""
    commit(repo, {"a": VALUES, "b": VALUES * 2})
    commit(repo, {"a": VALUES + 1, "b": VALUES * 3})
    context = open_at(repo.worktree)
    read_chunk = ChunkStore.read_into
    seen = []

    def fail_later(self, *args, **kwargs):
        seen.append(1)
        if len(seen) > 12:
            raise CorruptionError("gone")
        return read_chunk(self, *args, **kwargs)

    monkeypatch.setattr(ChunkStore, "read_into", fail_later)
    with pytest.raises(CorruptionError):
        compare("HEAD~1", "HEAD", context, threads=1)
    assert len(_pairs_kept(context)) == 1


def test_memory_is_a_few_pieces(tmp_path):
    """Two sides of 64 MiB each; what is allocated at once stays far below one of them."""

    values = np.zeros(2**24, "f4")
    for name, value in (("a", 1), ("b", 2)):
        values[:] = value
        save_file({"w": values}, tmp_path / f"{name}.safetensors")
    del values
    with peak_below(40 * 2**20):
        compare(tmp_path / "a.safetensors", tmp_path / "b.safetensors")


def test_a_permutation_is_looked_for_once(repo, reads):
    commit(repo, {"w": VALUES})
    commit(repo, {"w": VALUES[::-1].copy()})
    texts = [one.text for one in repo.compare("HEAD~1", "HEAD").verdicts]
    assert "rows permuted, no value changed: w" in texts
    reads.clear()
    assert [one.text for one in repo.compare("HEAD~1", "HEAD").verdicts] == texts
    assert not reads


def test_without_one_finite_pair_there_are_no_figures():
    nan = np.full((3, 3), np.nan, "f4")
    found = compare_live(np.ones((3, 3), "f4"), nan)
    assert (found.sigma, found.relative_l2, found.cosine) == (None, None, None)
    assert found.share_changed == 1


def compare_live(old, new):
    sides = [models.read_live({"w": values}) for values in (old, new)]
    (change,) = gather(None, pair_models(*sides), threads=1)
    return change.statistics


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="forks only on Linux")
def test_processes_find_to_the_bit_what_threads_find(repo):
    """Stored and plain, of several types, with rows that pieces cut."""
    wide = RNG.standard_normal((300, 1700)).astype("f4")
    sides = []
    for factor in (1, 1.01):
        tensors = {
            "bf16": (wide * factor).astype(ml_dtypes.bfloat16),
            "f32": wide * np.float32(factor),
            "fp8": (wide * factor).astype(ml_dtypes.float8_e4m3fn),
        }
        commit(repo, tensors)
        sides.append(repo.worktree / f"{factor}.safetensors")
        save_file(tensors, sides[-1])
    script = f"""
import os
from pathlib import Path
from mvc.chunkstore import forks
from mvc.comparison.gather import gather
from mvc.comparison.pairs import pair_models
from mvc.workspace.context import open_at
from mvc.workspace.models import open_model

forks.FORK_BYTES, fork, forked = 0, os.fork, []
os.fork = lambda: forked.append(1) or fork()
for context, old, new in (
    (None, Path({str(sides[0])!r}), Path({str(sides[1])!r})),
    (open_at(Path({str(repo.worktree)!r})), "HEAD~1", "HEAD"),
):
    with open_model(context, old) as before, open_model(context, new) as after:
        for change in gather(context, pair_models(before, after), threads=2):
            print(change.name, change.statistics.encode().hex())
assert len(forked) == 4, forked
"""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"OPENBLAS_NUM_THREADS": "1"},
    )
    assert (done.returncode, done.stderr) == (0, "")
    found = [line.split() for line in done.stdout.splitlines()]
    plain = compare(*sides)
    assert len(found) == 2 * len(plain) == 6
    for name, encoded in found[:3]:
        assert plain[name].statistics.encode().hex() == encoded
    (repo.worktree / ".mvc" / "statistics.db").unlink()
    stored = compare("HEAD~1", "HEAD", open_at(repo.worktree))
    assert {name: change.statistics.encode().hex() for name, change in stored.items()} == dict(
        found[3:]
    )
