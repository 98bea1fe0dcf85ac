"""Many clients that push to one store at once, and what must be there then."""

from __future__ import annotations

from mvc import clone
from support.remote_repos import commit_model, make_repo
from support.zygote import Zygote

CLIENTS = 8


def race_pushes(folder, url, *, branches, rounds):
    """Let clients commit and push to some branches again and again; return how many were refused.

    All that was accepted is there, each on top of another, and the remote is sound.
    """
    first = make_repo(folder / "first", url)
    base = commit_model(first)
    first.push("origin", [f"main:refs/heads/b{number}" for number in range(branches)])
    for number in range(CLIENTS):
        clone(url, folder / str(number), branch=f"b{number % branches}")
    with Zygote("support.remote_verbs") as zygote:
        outcomes = zygote.run_all([
            (
                "push_rounds",
                folder / str(number),
                {"rounds": rounds, "branch": f"b{number % branches}", "number": number},
            )
            for number in range(CLIENTS)
        ])  # fmt: skip
    assert [one.error for one in outcomes] == [None] * CLIENTS
    accepted = [commit for one in outcomes for commit in one.result[0]]
    assert len(set(accepted)) == CLIENTS * rounds
    whole = clone(url, folder / "whole", branch="b0")
    names = [f"b{number}" for number in range(branches)]
    there = {entry.id for name in names for entry in whole.log(f"origin/{name}")}
    assert there == {base, *accepted}
    assert whole.remotes.refs().refs.keys() == {f"refs/heads/{name}" for name in names}
    assert whole.upkeep.fsck(data=True).problems == ()
    assert whole.upkeep.fsck(remote="origin", data=True).problems == ()
    return sum(one.result[1] for one in outcomes)
