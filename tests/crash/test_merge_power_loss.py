"""The power goes at every step of a merge: all is as before, as after, or waits to be continued."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from mvc import Repo
from support.bounds import bounded, rest_slow
from support.forgetful import count_steps, lose_power
from support.models import digests, write_model

pytestmark = pytest.mark.crash


def _save(root: Path, text: str, **changes) -> None:
    write_model(root / "model.safetensors", seed=1, layers=1, width=8, **changes)
    (root / "notes.txt").write_text(text)
    Repo.open(root).commit(text, paths=".")


def _prepare(root: Path) -> None:
    repo = Repo.init(root)
    _save(root, "a\n")
    repo.switch("side", create=True)
    _save(root, "b\n", embed=np.ones(4, np.float32))
    repo.switch("apart", create=True, start="main")
    (root / "new.bin").write_bytes(b"\0new")
    _save(root, "a\n", norm=np.full(8, 2, np.float32))
    repo.switch("main")
    _save(root, "c\n", embed=np.zeros(4, np.float32))


def _prepare_shards(root: Path) -> None:
    """One side trains, the other trains and saves in other shards; each changes an array of its own."""

    def save(text: str, parts: list[str], a: float, **arrays) -> None:
        for old in root.glob("m-*"):
            old.unlink()
        for number, names in enumerate(parts, 1):
            tensors = {name: np.full(4, a if name == "a" else 0, np.float32) for name in names}
            save_file(tensors, root / f"m-{number:05}-of-{len(parts):05}.safetensors")
        np.savez(root / "w.npz", **({"x": np.zeros(3), "y": np.zeros(2)} | arrays))
        (root / "notes.txt").write_text("same\n")
        Repo.open(root).commit(text, paths=".")

    repo = Repo.init(root)
    save("base", ["ab", "c"], 0)
    repo.switch("side", create=True)
    save("theirs", ["a", "b", "c"], 1, x=np.ones(3))
    repo.switch("main")
    save("ours", ["ab", "c"], 2, y=np.ones(2))


def _recipe(repo: Repo) -> None:
    models = "[{model: main~1}, {model: apart}]"
    repo.commit_recipe(f"merge_method: linear\nmodels: {models}\nparameters: {{weight: 1}}\n")


VERBS = {
    "stash": lambda repo: repo.stash(untracked=True),
    "pop": lambda repo: repo.stash_apply(pop=True),
    "merge": lambda repo: repo.merge("apart"),
    "merge_with_method": lambda repo: repo.merge(
        "side", strategy="linear", rules=[("*.txt", "ours")]
    ),
    "recipe": _recipe,
    "conflict": lambda repo: repo.merge("side"),
    "conflict_in_shards": lambda repo: repo.merge("side"),
    "decide": lambda repo: repo.conclude(strategy="theirs"),
    "decide_shards": lambda repo: repo.conclude(strategy="linear"),
    "abort": lambda repo: repo.abort(),
    "pick": lambda repo: repo.cherry_pick("apart", "side"),
    "revert": lambda repo: repo.revert("HEAD"),
}
# The steps of one and the next differ little: some of them will do, and of each verb others.
LONG = ("conflict_in_shards", "decide", "decide_shards", "pick", "revert")


def _state(root: Path) -> tuple:
    repo = Repo.open(root)
    status = repo.status()
    pending = status.pending
    under_way = pending and (pending.kind, pending.heads, pending.rest)
    stashes = tuple(entry.commit for entry in repo.stashes())
    files = tuple(digests(root).items())
    return (repo.head, status.files, under_way, status.conflicts, files, stashes)


@pytest.mark.parametrize("name", rest_slow(VERBS))
def test_every_step(name, tmp_path, monkeypatch):
    def verb(root: Path) -> None:
        VERBS[name](Repo.open(root))

    monkeypatch.setattr("mvc.history.values.time.time", lambda: 1_700_000_000)
    origin = tmp_path / "origin"
    origin.mkdir()
    (_prepare_shards if name.endswith("_shards") else _prepare)(origin)
    if name in ("decide", "decide_shards", "abort"):
        Repo.open(origin).merge("side")
    if name in ("stash", "pop"):
        (origin / "notes.txt").write_text("edited\n")
        (origin / "own").write_text("mine\n")
    if name == "pop":
        Repo.open(origin).stash(untracked=True)
    before = _state(origin)
    done = tmp_path / "done"
    shutil.copytree(origin, done)
    total_steps = count_steps(verb, done)
    allowed = [before, _state(done)]
    assert allowed[0] != allowed[1]
    if name in ("decide", "decide_shards"):  # two transitions: decided, then committed
        half = tmp_path / "half"
        shutil.copytree(origin, half)
        from mvc.merging.strategies import make_choices
        from mvc.operations.conclude import decide

        strategy = "theirs" if name == "decide" else "linear"
        decide(Repo.open(half)._context, "merge", make_choices(strategy, (), {}, 0))
        allowed.append(_state(half))
    if name == "pop":  # two steps: the files, then the stack
        allowed.append((*allowed[1][:5], before[5]))
    if name == "stash":  # the stack first, so that nothing is ever nowhere
        allowed.append((*before[:5], allowed[1][5]))
    if name == "pick":  # after the first of two commits the second waits
        half = tmp_path / "half"
        shutil.copytree(origin, half)
        Repo.open(half).cherry_pick("apart")
        first = _state(half)
        rest = (Repo.open(half).resolve("side"),)
        allowed += [(*first[:2], ("cherry-pick", (), rest), *first[3:])]
    stride = bounded(8 if name in LONG else 3, 1)
    steps = range(list(VERBS).index(name) % stride, total_steps, stride)
    for where, survivor in lose_power(verb, origin, tmp_path, steps):
        state = _state(survivor)  # finishes an interrupted transition first
        assert state in allowed, where
        assert Repo.open(survivor).upkeep.fsck(data=True).ok, where
        if state[2] is not None:  # under way: it can be given up, whatever step it was stopped at
            Repo.open(survivor).abort(state[2][0])
            assert Repo.open(survivor).status().is_clean, where
            assert "<<<<<<<" not in (survivor / "notes.txt").read_text(), where
