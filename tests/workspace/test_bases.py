"""Bases of new chunks: where none resembles them little is read, where one is at hand nothing is."""

import numpy as np
import pytest
from ml_dtypes import bfloat16

from mvc import Repo
from support.kept_repo import WHO, count_reads


def moved_weights(rng, share):
    """Return bf16 weights of a small model, and the same moved by a share of their size."""
    shapes = {f"layers.{n}.{role}": (160, 256) for n in range(3) for role in ("q", "up", "down")}
    olds = {name: rng.normal(0, 0.02, shape) for name, shape in shapes.items()}
    news = {name: old + rng.normal(0, 0.02 * share, old.shape) for name, old in olds.items()}
    return [{name: one.astype(bfloat16) for name, one in many.items()} for many in (olds, news)]


class TestAutoMode:
    @pytest.mark.parametrize(("share", "gains"), [(0.02, True), (2.0, False)])
    def test_a_version_that_moved_a_little_is_small(self, tmp_path, share, gains):
        """By default as small as with ``delta=True``; another model is stored whole."""
        olds, news = moved_weights(np.random.default_rng(3), share)
        added = {}
        for delta in (None, True, False):
            repo = Repo.init(tmp_path / str(delta))
            repo.commit_state(olds, message="old", author=WHO)
            before = repo._context.store.copies().sizes.sum()
            repo.commit_state(news, message="new", author=WHO, delta=delta)
            added[delta] = repo._context.store.copies().sizes.sum() - before
        assert added[None] <= 1.01 * added[True]
        assert (added[None] < 0.6 * added[False]) == gains

    def test_a_look_that_says_no_is_short(self, root, monkeypatch):
        """Of weights that have nothing to do with the last ones a few bases are read, and only those."""
        repo = Repo.init(root)
        repo.set_config("mvc.chunkbytes", "16384")
        rng = np.random.default_rng(8)
        olds, news = (
            {f"layer.{n}": rng.random((64, 64), np.float32) for n in range(60)} for _ in range(2)
        )
        repo.commit_state({"m": olds}, message="old", author=WHO)
        reads = count_reads(monkeypatch)
        repo.commit_state({"m": news}, message="new", author=WHO)
        assert not (repo._context.store.copies().bases >= 0).any()
        bodies = [size for key, size in reads if key.endswith(".pack")]
        assert 0 < len(bodies) <= 60 // 20 + 3

    def test_a_look_is_taken_once(self, root, monkeypatch, whole_run):
        """Where the base is at hand, none is read from the store at all."""
        repo, _ = whole_run
        from support.kept_repo import drifting_state

        reads = count_reads(monkeypatch)
        repo.commit_state(drifting_state(12), message="m", previous=drifting_state(11), delta=True)
        assert (repo._context.store.copies().bases >= 0).any()
        assert [key for key, _ in reads if key.endswith(".pack")] == []
