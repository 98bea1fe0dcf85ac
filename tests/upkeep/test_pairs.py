"""Pairs of chunks across history: younger to older, never in a circle."""

from mvc import Repo
from mvc.upkeep.pairs import find_pairs, plan_chains
from mvc.upkeep.versions import walk_all
from support.kept_repo import WHO, commit_step, load_exactly


class TestPairs:
    def test_younger_to_older_and_never_in_a_circle(self, whole_run):
        repo, _ = whole_run
        commits = walk_all(repo._context)
        pairs = find_pairs(repo._context, reversed(commits), frozenset())
        order = {chunk: place for place, chunk in enumerate(pairs)}
        assert len(pairs) > 11
        for chunk, pair in pairs.items():
            assert order.get(pair.base, -1) < order[chunk]

    def test_the_same_weights_again(self, whole_run):
        """A run that goes back and forth between two versions: A, B, A, B."""
        repo, _ = whole_run
        for step in (20, 21, 20, 21, 20):
            commit_step(repo, step, delta=False)
        repo.upkeep.repack()
        repo.upkeep.repack(repo.upkeep.plan_repack(everything=True))
        assert repo.upkeep.fsck(data=True).ok
        assert load_exactly(repo, "HEAD~1") == 21

    def test_opposite_directions_on_two_branches(self, root):
        """One branch goes from A to B, the other from B to A; either may lose its history."""
        repo = Repo.init(root)
        repo.identity = WHO
        repo.set_config("mvc.chunkbytes", "16384")
        commit_step(repo, 1)
        repo.branches.create("back")
        for branch, steps in (("main", (2, 3)), ("back", (3, 2))):
            for step in steps:
                commit_step(repo, step, branch=branch, delta=branch == "main")
        repo.upkeep.repack()
        repo.switch("back", force=True)
        repo.branches.delete("main", force=True)
        repo.upkeep.gc(grace_s=0)
        repo.upkeep.repack(repo.upkeep.plan_repack(everything=True, grace_s=0))
        assert [load_exactly(repo, name) for name in ("back", "back~1")] == [2, 3]
        assert repo.upkeep.fsck(data=True).ok
        assert repo.upkeep.plan_gc(grace_s=0).is_empty

    def test_nothing_to_pair(self, whole_run):
        repo, _ = whole_run
        assert plan_chains(repo._context.store.copies(), {}) == {}
