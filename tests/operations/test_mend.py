"""mend_commit: what is damaged of a commit leaves the way, and comes back from where it is."""

import numpy as np
import pytest

from mvc import CorruptionError
from support.damage import flip

_RANDOM = np.random.default_rng(5)
_FIRST, _SECOND = (
    {name: _RANDOM.standard_normal(50_000).astype(np.float32) for name in "ab"} for _ in range(2)
)


@pytest.fixture
def two(repo):
    """Two commits, each with a pack of its own."""
    for number, state in enumerate((_FIRST, _SECOND), 1):
        repo.commit_state(state, message=f"step {number}", step=number)
    return repo


def packs(repo):
    return sorted((repo.git_dir / "chunks/packs").glob("*.pack"))


def damage(repo, revision):
    """Flip a bit in the last pack that the load of a commit opens; return that pack."""
    for pack in packs(repo):
        flip(pack)
        try:
            repo.load_state(revision)
        except CorruptionError:
            return pack
        flip(pack)
    raise AssertionError("no pack that it needs")


def test_a_sound_commit_is_left_alone(two):
    before = packs(two)
    assert two.upkeep.mend("HEAD") == ()
    assert packs(two) == before


def test_what_is_lost_is_stored_again_when_it_comes_again(two):
    bad = damage(two, "HEAD")
    told = two.upkeep.mend("HEAD")
    assert [line.partition(":")[0] for line in told] == [bad.stem]
    assert not bad.exists()
    two.commit_state(_SECOND, message="again", step=2)
    assert np.array_equal(two.load_state("HEAD", framework="numpy")["b"], _SECOND["b"])
    assert np.array_equal(two.load_state("HEAD~1", framework="numpy")["b"], _SECOND["b"])


def test_a_remote_gives_what_is_lost(two, tmp_path):
    two.remotes.add("origin", (tmp_path / "store").as_uri())
    two.push("origin", ["main"])
    damage(two, "HEAD")
    told = two.upkeep.mend("HEAD")
    assert told[-1].startswith("what was lost came from ")
    assert np.array_equal(two.load_state("HEAD", framework="numpy")["a"], _SECOND["a"])
    assert two.config().get("remote.origin.promisor") is None


def test_a_remote_that_cannot_be_asked_is_told(two, tmp_path):
    two.remotes.add("origin", (tmp_path / "store").as_uri())
    damage(two, "HEAD")
    told = two.upkeep.mend("HEAD")
    assert told[-1].startswith("nothing was pushed to ")
