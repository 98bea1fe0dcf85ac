"""The power goes at every step of a merge: all is as before, as after, or waits to be continued."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from mvc import Repo
from support.bounds import bounded, rest_slow
from support.forgetful import ForgetfulDisk, PowerLoss
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


def _merge(root: Path) -> None:
    Repo.open(root).merge("apart")


def _merge_with_method(root: Path) -> None:
    Repo.open(root).merge("side", strategy="linear", rules=[("*.txt", "ours")])


def _recipe(root: Path) -> None:
    models = "[{model: main~1}, {model: apart}]"
    recipe = f"merge_method: linear\nmodels: {models}\nparameters: {{weight: 1}}\n"
    Repo.open(root).commit_recipe(recipe)


def _conflict(root: Path) -> None:
    Repo.open(root).merge("side")


def _conflict_in_shards(root: Path) -> None:
    Repo.open(root).merge("side")


def _decide_shards(root: Path) -> None:
    Repo.open(root).conclude(strategy="linear")


def _decide(root: Path) -> None:
    Repo.open(root).conclude(strategy="theirs")


def _abort(root: Path) -> None:
    Repo.open(root).abort()


def _pick(root: Path) -> None:
    Repo.open(root).cherry_pick("apart", "side")


def _revert(root: Path) -> None:
    Repo.open(root).revert("HEAD")


def _stash(root: Path) -> None:
    Repo.open(root).stash(untracked=True)


def _pop(root: Path) -> None:
    Repo.open(root).stash_apply(pop=True)


VERBS = [
    _stash,
    _pop,
    _merge,
    _merge_with_method,
    _recipe,
    _conflict,
    _conflict_in_shards,
    _decide,
    _decide_shards,
    _abort,
    _pick,
    _revert,
]
# The steps of one and the next differ little: some of them will do, and of each verb others.
LONG = (_conflict_in_shards, _decide, _decide_shards, _pick, _revert)


def _pending(pending) -> tuple:
    return (pending.kind, pending.heads, pending.rest)


def _state(root: Path) -> tuple:
    repo = Repo.open(root)
    status = repo.status()
    under_way = None if status.pending is None else _pending(status.pending)
    stashes = tuple(entry.commit for entry in repo.stashes())
    files = tuple(digests(root).items())
    return (repo.head, status.files, under_way, status.conflicts, files, stashes)


@pytest.mark.parametrize("verb", rest_slow(VERBS), ids=lambda verb: verb.__name__.strip("_"))
def test_every_step(verb, tmp_path, monkeypatch):
    monkeypatch.setattr("mvc.history.values.time.time", lambda: 1_700_000_000)
    origin = tmp_path / "origin"
    origin.mkdir()
    (_prepare_shards if verb in (_conflict_in_shards, _decide_shards) else _prepare)(origin)
    if verb in (_decide, _decide_shards, _abort):
        _conflict(origin)
    if verb in (_stash, _pop):
        (origin / "notes.txt").write_text("edited\n")
        (origin / "own").write_text("mine\n")
    if verb is _pop:
        _stash(origin)
    before = _state(origin)
    done = tmp_path / "done"
    shutil.copytree(origin, done)
    with ForgetfulDisk(done) as disk:
        verb(done)
    total_steps = disk.steps
    disk.close()
    allowed = [before, _state(done)]
    assert allowed[0] != allowed[1]
    if verb in (_decide, _decide_shards):  # two transitions: decided, then committed
        half = tmp_path / "half"
        shutil.copytree(origin, half)
        from mvc.merging.strategies import make_choices
        from mvc.operations.conclude import decide

        strategy = "theirs" if verb is _decide else "linear"
        decide(Repo.open(half)._context, "merge", make_choices(strategy, (), {}, 0))
        allowed.append(_state(half))
    if verb is _pop:  # two steps: the files, then the stack
        allowed.append((*allowed[1][:5], before[5]))
    if verb is _stash:  # the stack first, so that nothing is ever nowhere
        allowed.append((*before[:5], allowed[1][5]))
    if verb is _pick:  # after the first of two commits the second waits
        half = tmp_path / "half"
        shutil.copytree(origin, half)
        Repo.open(half).cherry_pick("apart")
        first = _state(half)
        rest = (Repo.open(half).resolve("side"),)
        allowed += [(*first[:2], ("cherry-pick", (), rest), *first[3:])]
    stride = bounded(8 if verb in LONG else 3, 1)
    for step in range(VERBS.index(verb) % stride, total_steps, stride):
        work, pessimist = tmp_path / "work", tmp_path / "pessimist"
        shutil.copytree(origin, work)
        disk = ForgetfulDisk(work, stop_at=step)
        with disk, pytest.raises(PowerLoss):
            verb(work)
        disk.survivors(pessimist)
        disk.close()
        for survivor in (pessimist, work):
            state = _state(survivor)  # finishes an interrupted transition first
            assert state in allowed, f"{verb.__name__}, step {step}, {survivor.name}"
            assert Repo.open(survivor).upkeep.fsck(data=True).ok
            _check_goes_on(survivor, state, allowed[-1])
            shutil.rmtree(survivor)


def _check_goes_on(root: Path, state: tuple, after: tuple) -> None:
    """A merge that is under way can be given up, whatever step it was stopped at."""
    if state[2] is not None:
        Repo.open(root).abort(state[2][0])
        assert Repo.open(root).status().is_clean
        assert "<<<<<<<" not in (root / "notes.txt").read_text()
