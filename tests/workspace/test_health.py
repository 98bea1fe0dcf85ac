"""What commits record of the health of their checkpoints."""

import re

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save_file

from mvc import Repo
from mvc.chunkstore import measuring
from mvc.chunkstore.store import ChunkStore
from mvc.workspace import commit_health
from mvc.workspace.health import (
    HEALTH_TRAILER,
    CheckpointHealth,
    overall,
    read_health,
)

MODEL = "model.safetensors"


@pytest.fixture
def repo(tmp_path):
    made = Repo.init(tmp_path / "repo")
    made.set_config("mvc.chunkbytes", str(2**20))
    return made


def save(repo, path=MODEL, **tensors):
    save_file(tensors, repo.worktree / path)


def weights(seed, *shape, dtype=np.float32):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def lines(repo, revision="HEAD"):
    return {one.path: one for one in next(iter(repo.log(revision, limit=1))).health}


def test_a_line_is_what_float64_says_of_the_file(repo):
    short = weights(1, 600_000, dtype=ml_dtypes.bfloat16)
    wide = weights(2, 700, 1000)
    wide[3, 4:6], wide[9, 9] = np.nan, -np.inf
    save(repo, a=short, b=wide, tiny=weights(3, 5), ids=np.arange(10**6), on=np.ones(9, bool))
    repo.commit("one", paths=".")
    found = lines(repo)[MODEL]
    every = np.concatenate(
        [np.ravel(one).astype(np.float64) for one in (short, wide, weights(3, 5))]
    )
    finite = every[np.isfinite(every)]
    assert (found.nan, found.inf) == (2, 1)
    assert found.largest == pytest.approx(np.abs(finite).max(), rel=1e-5)
    assert found.norm == pytest.approx(np.linalg.norm(finite), rel=1e-5)


def test_a_commit_of_what_was_added_reads_no_weight(repo, monkeypatch):
    save(repo, a=weights(1, 10**6))
    repo.add(".")
    other = Repo.open(repo.worktree)
    monkeypatch.setattr(ChunkStore, "read_into", lambda *_, **__: pytest.fail("read a chunk"))
    other.commit("one")
    assert lines(other)[MODEL].norm == pytest.approx(np.linalg.norm(weights(1, 10**6)), rel=1e-5)


def test_only_new_large_chunks_are_measured(repo, monkeypatch):
    sizes = []

    def count(plain, dtype, measure=measuring.measure_plain):
        sizes.append(len(plain))
        return measure(plain, dtype)

    monkeypatch.setattr(measuring, "measure_plain", count)
    values = weights(1, 1024, 1024)
    repo.commit_state({"model": {"w": values, "b": weights(2, 40)}}, message="one")
    assert sorted(sizes) == [160, *[2**20] * 4]
    first, sizes[:] = lines(repo)[MODEL], []
    values[-1, -1] = 1000.0
    repo.commit_state({"model": {"w": values, "b": weights(2, 40)}}, message="two")
    assert sorted(sizes) == [160, 2**20]
    second = lines(repo)[MODEL]
    assert second.largest == 1000.0
    assert second.norm == pytest.approx(np.hypot(first.norm, 1000.0), rel=1e-4)


def test_without_the_cache_little_is_measured_and_much_left_out(repo, monkeypatch):
    def again(message):
        (repo.git_dir / "statistics.db").unlink()
        repo.commit(message)
        return lines(repo)

    save(repo, a=weights(1, 500_000))
    repo.add(".")
    assert again("one")[MODEL].nan == 0
    save(repo, a=weights(2, 500_000))
    repo.add(".")
    monkeypatch.setattr(commit_health, "CHEAP_BYTES", 10**6)
    assert again("two") == {}


def test_a_chunk_that_was_stored_before_is_measured_where_it_is_read(repo):
    values = weights(1, 500_000)
    save(repo, a=values)
    repo.commit("one", paths=".")
    (repo.git_dir / "statistics.db").unlink()
    save(repo, a=values, b=weights(2, 9))
    repo.commit("two", paths=".")
    every = np.concatenate([values, weights(2, 9)])
    assert lines(repo)[MODEL].norm == pytest.approx(np.linalg.norm(every), rel=1e-5)


def test_what_did_not_change_keeps_its_line(repo):
    save(repo, a=weights(1, 500_000))
    repo.commit("one", paths=".")
    first = lines(repo)
    (repo.git_dir / "statistics.db").unlink()
    (repo.worktree / "notes").write_text("x")
    repo.commit("two", paths="notes")
    assert lines(repo) == first
    repo.commit("reworded", amend=True)
    assert lines(repo) == first
    save(repo, a=weights(3, 10))
    repo.commit(paths=".", amend=True)
    assert lines(repo)[MODEL].norm == pytest.approx(np.linalg.norm(weights(3, 10)), rel=1e-5)
    repo.remove(MODEL)
    repo.commit("without", amend=True)
    assert lines(repo) == {}


def test_the_same_content_has_the_same_line_wherever_it_comes_from(repo, tmp_path):
    values = weights(1, 3_000_000)
    save(repo, a=values)
    repo.commit("one", paths=".")
    other = Repo.init(tmp_path / "other")
    other.commit_state({"a": values}, message="one")
    alone = Repo.open(other.worktree, threads=1)
    alone.commit_state({"a": values, "b": values[:9]}, message="two")
    alone.commit_state({"a": values}, message="three")
    assert lines(repo) == lines(other, "HEAD~2") == lines(alone)


def test_shards_are_one_checkpoint(repo):
    for number in (1, 2):
        save(repo, f"m-0000{number}-of-00002.safetensors", **{f"w{number}": weights(number, 100)})
    save(repo, "m.safetensors", w=weights(3, 100))
    repo.commit("one", paths=".")
    found = lines(repo)
    assert sorted(found) == ["m-*-of-00002.safetensors", "m.safetensors"]
    both = np.concatenate([weights(1, 100), weights(2, 100)])
    assert found["m-*-of-00002.safetensors"].norm == pytest.approx(np.linalg.norm(both), rel=1e-5)


def test_of_many_checkpoints_the_new_ones_are_named(repo):
    for number in range(20):
        save(repo, f"step-{number:02}.safetensors", w=weights(number, 10))
    repo.commit("many", paths=".")
    assert len(lines(repo)) == commit_health.MAX_CHECKPOINTS
    save(repo, "step-99.safetensors", w=weights(99, 10))
    repo.commit("one more", paths=".")
    assert "step-99.safetensors" in lines(repo)


def test_files_without_floats_have_no_line(repo):
    save(repo, "ids.safetensors", a=np.arange(100))
    (repo.worktree / "broken.safetensors").write_bytes(b"no model at all")
    np.save(repo.worktree / "i.npy", np.arange(3))
    repo.commit("one", paths=".")
    assert lines(repo) == {}


@given(
    st.text(min_size=1).filter(lambda path: "\0" not in path),
    st.integers(0, 10**17),
    st.floats(0, allow_nan=False),
)
def test_lines_are_read_back(path, count, figure):
    said = CheckpointHealth(path, count, count // 3, float(f"{figure:.6g}"), 2.5, count % 2)
    trailer = (HEALTH_TRAILER, said.text())
    assert re.fullmatch(r"\S+( [a-z]+=\S+)+", trailer[1])
    assert read_health([("Step", "1"), trailer]) == (said,)


def test_lines_of_strangers_are_left_out():
    for text in [
        "", "m", "m nan=0", "m nan=x inf=0 max=1 norm=1", "m nan=0 inf=0 max=1", "m nan=0 inf=0 max= norm=1",
        "m nan=0 inf=0 max=1 norm=one", "nan=0 inf=0 max=1", "m nan=-1 inf=0 max=1 norm=1",
        "%FF%ZZ nan=0", "m nan=0 nan=0 inf",
    ]:  # fmt: skip
        assert read_health([(HEALTH_TRAILER, text)]) == ()


def test_the_health_of_a_commit_is_that_of_its_weights():
    model = CheckpointHealth("model.safetensors", 1, 0, 3.0, 3.0)
    ema = CheckpointHealth("ema.safetensors", 0, 0, 2.0, 4.0)
    state = CheckpointHealth("optimizer.safetensors", 0, 2, 9.0, 1e9)
    assert overall(()) is None
    assert overall((model, ema, state)) == CheckpointHealth("", 1, 2, 3.0, 5.0)
    assert overall((state,)).norm == 1e9
