"""Kept statistics go once nothing reaches what they are about, and not before."""

import numpy as np
import pytest
from safetensors.numpy import save_file

from mvc.comparison.gather import pair_key
from mvc.workspace.context import open_at


@pytest.fixture
def three(repo, root):
    """w is 1, 2, 3 in commits, the last on a branch of its own; all pairs were compared."""
    for scale in (1, 2):
        save_file({"w": np.ones(9, "f4") * scale}, root / "m.safetensors")
        repo.add("m.safetensors")
        repo.commit(f"{scale}")
    repo.commit_state({"w": np.ones(9, "f4") * 3}, message="3", branch="side")
    for old, new in (("main~1", "main"), ("main", "side"), ("main~1", "side")):
        repo.compare(old, new)
    return repo


def _entries(root, kind=b"pair"):
    return [entry for entry in open_at(root).kept.list_entries() if entry[0] == kind]


def test_what_is_reached_stays(three, root):
    three.upkeep.gc(grace_s=0)
    assert len(_entries(root)) == 3
    assert three.upkeep.plan_gc(grace_s=0).statistics == 0


def test_what_nothing_reaches_goes_with_it(three, root):
    three.branches.delete("side", force=True)
    assert three.upkeep.plan_gc().statistics == 0, "a branch deleted by mistake can be brought back"
    plan = three.upkeep.plan_gc(grace_s=0, expire_reflogs_s=0)
    assert plan.statistics >= 2
    assert not plan.is_empty
    assert len(_entries(root)) == 3, "a plan changed something"
    assert three.upkeep.gc(plan).removed_statistics == plan.statistics
    assert three.upkeep.plan_gc(grace_s=0, expire_reflogs_s=0).is_empty
    (left,) = _entries(root)
    ids = [three.ls(one)[0].tensors[0].id for one in ("main~1", "main")]
    assert left == (b"pair", pair_key(*ids))


def test_of_two_kinds_and_more_than_ids(three, root):
    """Chunks count as well, and what follows the ids in a key does not."""
    context = open_at(root)
    blob = context.history.read_tree(three.resolve("main"))["m.safetensors"].blob
    chunk = context.manifests.read(blob).segments[0].chunks[0]
    stays = [chunk, chunk + b"more", bytes.fromhex(blob)]
    goes = [b"?" * 32 + b"more", chunk + b"?" * 32, b"?" * 20]
    context.kept.put_many(b"x", dict.fromkeys([*stays, *goes], b""))
    three.upkeep.gc(grace_s=0)
    assert {key for _, key in _entries(root, b"x")} == set(stays)


def test_a_damaged_cache_stops_nothing(three, root):
    (root / ".mvc/statistics.db").write_bytes(b"nonsense")
    assert three.upkeep.gc(grace_s=0).removed_statistics == 0


def test_du_says_what_they_take(three, root):
    size = (root / ".mvc/statistics.db").stat().st_size
    assert three.upkeep.du().totals.statistics_bytes == size
