"""Bases of new chunks: where none resembles them little is read, where one is at hand nothing is."""

from __future__ import annotations

import numpy as np

from mvc import Repo
from support.kept_repo import WHO, count_reads


class TestAutoMode:
    def test_a_look_that_says_no_is_short(self, root, monkeypatch):
        """Of weights that have nothing to do with the last ones only a few bases are read."""
        repo = Repo.init(root, branch="main")
        repo.identity = WHO
        repo.set_config("mvc.chunkbytes", "16384")
        rng = np.random.default_rng(8)
        states = [
            {f"layer.{n}": rng.standard_normal((64, 64)).astype(np.float32) for n in range(60)}
            for _ in range(2)
        ]
        repo.commit_state({"m": states[0]}, message="one")
        reads = count_reads(monkeypatch)
        repo.commit_state({"m": states[1]}, message="two")
        assert not (repo._context.store.copies().bases >= 0).any()
        bodies = [size for key, size in reads if key.endswith(".pack")]
        assert 0 < len(bodies) <= 60 // 12 + 3

    def test_a_look_is_taken_once(self, root, monkeypatch, whole_run):
        """Where the base is at hand, none is read from the store at all."""
        repo, _ = whole_run
        from support.kept_repo import drifting_state

        reads = count_reads(monkeypatch)
        repo.commit_state(drifting_state(12), message="m", previous=drifting_state(11), delta=True)
        assert (repo._context.store.copies().bases >= 0).any()
        assert [key for key, _ in reads if key.endswith(".pack")] == []
