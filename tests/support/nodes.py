"""Machines of a run that share no folder: a repository each, and one store."""

from __future__ import annotations

import contextlib

import numpy as np

from mvc import Identity, Repo
from mvc.training import CommitRequest, RunStore, parse_stored_share
from support.sharded import SeenPeers, freeze

ME = Identity("Ada", "ada@example.org")


def make_nodes(folder, store, ranks, chunk_bytes=4096):
    """Make a repository for every rank, all with the same store."""
    nodes = []
    for rank in range(ranks):
        repo = Repo.init(folder / f"node{rank}", store=store)
        repo.set_config("mvc.chunkbytes", str(chunk_bytes))
        nodes.append(Repo.open(folder / f"node{rank}", identity=ME))
    return nodes


def state_of(seed):
    """Return a state of plain arrays, of which every rank keeps a part."""
    draw = np.random.default_rng(seed)
    model = {f"w{n}": draw.normal(size=(129, 65)).astype(np.float32) for n in range(3)}
    return {"model": model, "optimizer": {"m": draw.normal(size=(64, 160))}, "step": seed}


def freeze_ranks(state, ranks):
    """Return image and form of every rank; each but the first has a state of its own besides."""
    own = [None, *({"pieces": [np.arange(3000.0) + rank]} for rank in range(1, ranks))]
    return [freeze(state, rank, ranks, own=own[rank])[:2] for rank in range(ranks)]


@contextlib.contextmanager
def stored_by(nodes, frozen, **options):
    """Have every rank store its share, all but the first send it; yields rank 0's share, and all stored."""
    shares = [RunStore(repo).open_share(*one) for repo, one in zip(nodes, frozen, strict=True)]
    peers = SeenPeers(shares, is_seen=False)
    with contextlib.ExitStack() as until:
        blocks = [
            RunStore(repo).store_share(share, peers, send=rank > 0, **options)
            for rank, (repo, share) in enumerate(zip(nodes, shares, strict=True))
        ]
        stored = [parse_stored_share(until.enter_context(one).encode()) for one in blocks]
        yield shares[0], stored


def commit_nodes(nodes, seed, *, delta=None, **options):
    """Commit a state of some nodes; return the result, and what each has stored."""
    with stored_by(nodes, freeze_ranks(state_of(seed), len(nodes)), delta=delta) as (share, stored):
        return RunStore(nodes[0]).commit_shares(
            share, stored, CommitRequest(message=f"step {seed}", **options)
        ), stored
