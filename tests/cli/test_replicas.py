"""What log and show say of commits whose ranks checked each other."""

import numpy as np
import pytest

from mvc import Repo
from mvc.states.cross_check import CHECK_ROUNDS
from mvc.states.share import open_share

pytest.importorskip("torch")

from support.sharded import commit_frozen, freeze


@pytest.fixture
def checked(shell):
    """A history of a commit that two ranks agree on, and one that they do not."""
    repo = Repo.open(shell.folder)
    same, other = ({"model": {"w": np.arange(50_000) + bit}} for bit in (0, 1))
    for states in ((same, same), (same, other)):
        number = next(one for one in range(CHECK_ROUNDS) if _is_due(states[0], one, repo))
        check = number, repo.chunk_bytes
        frozen = [freeze(state, rank, 2, check=check)[:2] for rank, state in enumerate(states)]
        commit_frozen([repo, Repo.open(shell.folder)], frozen, message="a step", step=number)
    return shell


def _is_due(state, number, repo):
    _, form, _ = freeze(state, 0, 2, check=(number, repo.chunk_bytes))
    share = open_share(memoryview(b""), form, repo.chunk_bytes)
    return any(share.check.parts_of(rank) for rank in range(2))


def test_the_log_says_whether_they_agree(checked):
    words = "w in model.safetensors differs in chunk 0 between ranks 0, 1 and ranks 0, 1"
    assert f"Replicas: {words}" in checked.ok("log", "-1").lines
    assert "Replicas: two ranks agree on 1 of 1 chunks" in checked.ok("show", "HEAD~1").lines
    assert not any("Replica-" in line for line in checked.ok("log").lines), "it is said above"
    first, second = checked.ok("log", "--oneline", "-2").lines
    assert "[replicas differ]" in first
    assert "replicas" not in second
    differs, agrees, none = (one["replicas"] for one in checked.json("log", "-3"))
    assert (differs["agreed"], differs["chunks"], differs["differed"]) == (0, 1, 1)
    assert differs["disputes"][0].items() >= {"tensor": "w", "stored": [0, 1]}.items()
    assert agrees == {"agreed": 1, "chunks": 1, "differed": 0, "disputes": []}
    assert (none, checked.json("show", "HEAD~1")["replicas"]) == (None, agrees)
