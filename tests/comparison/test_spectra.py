"""Spectra of differences: equal to a full decomposition, read piece by piece, and kept."""

from collections import Counter

import ml_dtypes
import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

import mvc
from mvc import Repo
from mvc.chunkstore.store import ChunkStore

RNG = np.random.default_rng(11)
OLD = RNG.standard_normal((300, 80)).astype("f4")
UPDATE = RNG.standard_normal((300, 3)) @ RNG.standard_normal((3, 80)) * 0.1
NEW = (OLD + UPDATE).astype("f4")
LONG = RNG.standard_normal((1400, 600)).astype("f4")
LONG_UPDATE = (RNG.standard_normal((1400, 3)) @ RNG.standard_normal((3, 600))).astype("f4")


def _spectra(diff):
    return {change.name: change.spectrum for change in diff.changes}


def _fits(spectrum, difference):
    values = np.linalg.svd(np.asarray(difference, "f8"), compute_uv=False)
    assert spectrum.largest == pytest.approx(values[0], rel=1e-3)
    assert spectrum.energy == pytest.approx((values**2).sum(), rel=1e-9)
    assert (
        spectrum.find_rank(0.99)
        == np.searchsorted(np.cumsum(values**2), 0.99 * (values**2).sum()) + 1
    )


def test_as_a_full_decomposition_whatever_the_layout():
    old = {
        "w": OLD,
        "turned": torch.from_numpy(OLD.copy()).T,
        "half": OLD.astype(ml_dtypes.bfloat16),
    }
    new = {"w": NEW, "turned": torch.from_numpy(NEW.copy()).T, "half": NEW}
    found = _spectra(mvc.compare(old, new, spectral=True))
    _fits(found["w"], NEW.astype("f8") - OLD)
    _fits(found["turned"], (NEW.astype("f8") - OLD).T)
    assert found["half"].energy > 0


@pytest.mark.parametrize("shape", [(30, 16, 5, 10), (80, 300, 1, 1), (100, 240), (12, 8, 5, 10, 5)])
def test_of_a_kernel_the_outputs_are_the_rows(shape):
    update = np.array([*range(1, shape[0] + 1)])[:, None] * RNG.standard_normal(np.prod(shape[1:]))
    old = OLD.reshape(shape)
    new = (old + 0.1 * update.reshape(shape)).astype("f4")
    found = _spectra(mvc.compare({"w": old}, {"w": new}, spectral=True))["w"]
    _fits(found, (new.astype("f8") - old).reshape(shape[0], -1))
    assert found.full_rank == min(shape[0], np.prod(shape[1:]))


def test_only_matrices_that_differ_have_one():
    old = {"same": OLD, "vector": OLD[0], "cube": np.ones((2, 300, 300), "f4"), "row": OLD[:1],
           "grown": OLD[:200], "complex": OLD[:, :2].astype("c8"), "shape": OLD}  # fmt: skip
    new = {"same": OLD, "vector": NEW[0], "cube": RNG.random((2, 300, 300), "f4"), "row": NEW[:1],
           "grown": NEW, "complex": NEW[:, :2].astype("c8"), "shape": NEW.T}  # fmt: skip
    found = _spectra(mvc.compare(old, new, spectral=True))
    assert {name for name, one in found.items() if one is not None} == {"grown"}
    _fits(found["grown"], NEW[:200].astype("f8") - OLD[:200])
    assert set(_spectra(mvc.compare(old, new)).values()) == {None}


@pytest.fixture
def stored(tmp_path, monkeypatch):
    """Two versions whose rows cross the ends of chunks, and a count of chunks that are read."""
    repo = Repo.init(tmp_path / "work")
    repo.set_config("mvc.chunkbytes", "4096")
    for values in (LONG, LONG + LONG_UPDATE):
        save_file({"w": values}, repo.worktree / "m.safetensors")
        repo.add("m.safetensors")
        repo.commit("x")
    counts, read_chunk = Counter(), ChunkStore.read_into

    def count(self, chunk_id, *args, **kwargs):
        counts[chunk_id] += 1
        return read_chunk(self, chunk_id, *args, **kwargs)

    monkeypatch.setattr(ChunkStore, "read_into", count)
    return repo, counts


def test_each_chunk_is_read_once_in_a_pass_and_then_never_again(stored):
    repo, counts = stored
    repo.compare("HEAD~1", "HEAD")
    assert set(counts.values()) == {1}
    counts.clear()
    first = _spectra(repo.compare("HEAD~1", "HEAD", spectral=True))
    assert set(counts.values()) == {2}
    _fits(first["w"], (LONG + LONG_UPDATE).astype("f8") - LONG)
    counts.clear()
    assert _spectra(repo.compare("HEAD~1", "HEAD", spectral=True)) == first
    assert not counts


def test_a_spectrum_of_another_version_is_computed_again(stored):
    repo, _ = stored
    first = _spectra(repo.compare("HEAD~1", "HEAD", spectral=True))
    kept = repo._context.kept
    (key,) = (key for kind, key in kept.list_entries() if kind == b"spectrum")
    kept.put_many(b"spectrum", {key: b"\x93\x01"})
    assert _spectra(repo.compare("HEAD~1", "HEAD", spectral=True)) == first


def test_a_verdict_says_what_it_means(stored):
    repo, _ = stored
    texts = [verdict.text for verdict in repo.compare("HEAD~1", "HEAD", spectral=True).verdicts]
    assert any("LoRA-extractable at r = 4" in text for text in texts)
