"""One rank of trainings over several processes, for ``test_sharded``.

``prove_all`` gets names of ``support.scenarios.sharded``, and returns what it found of each. Each is trained without mvc; then with it, left after five steps and gone on with, rolled back to a commit; then
once more, rolled back to a snapshot of the ring. Every step must be the same bit by bit.

Or it is one of these, whose run is in FOLDER/run:
    {"resume": NAME}                            it is gone on with, and rolled back to a commit, and no more
    {"back": NAME}                              it goes back to its start
    {"kill": NAME, "ranks": [...], "step": N}   ranks are killed after a step, whose commit may be under way
    {"go on": NAME}                             it goes on, and must end as one that nobody killed
    {"move": NAME}                              another training takes its state over, and nothing else
"""

from __future__ import annotations

import os
import signal

import torch
from torch import distributed, nn

import mvc_hooks
from mvc import Identity, Repo
from mvc_hooks.parts.module import ModulePart
from mvc_hooks.parts.tree import list_items, map_tensors
from support.scenarios.sharded import BUILDERS
from support.training_runs import (
    Trace,
    _draw_endlessly,
    digest,
    find_deviation,
    read_trace,
    seed_all,
)

TOTAL, EVERY, LEFT_AT, BAD_STEP = 11, 3, 5, 8
ME = Identity("A Tester", "tester@example.org")


def build(name, rank, size, seed):
    seed_all(seed)
    run = BUILDERS[name].build(rank, size)
    # Ranks of tensor parallelism draw the same numbers, as they see the same data.
    seed_all(100 * seed + (0 if name.startswith("tp-") else rank))
    return run


def train_plain(name, rank, size, trace):
    run = build(name, rank, size, 0)
    batches = None if run.loader is None else _draw_endlessly(run.loader)
    for index in range(TOTAL):
        batch = run.data(index) if batches is None else next(batches)
        trace.add(index + 1, batch, run.step(batch, lambda: None), run)


def train_kept(
    name,
    rank,
    size,
    folder,
    trace,
    *,
    seed=0,
    total=TOTAL,
    bad_step=0,
    ring=None,
    dies_at=0,
    **options,
):
    """Train with a checkpointer; return the run, the first step, and where it went back to."""
    run = build(name, rank, size, seed)
    back = mvc_hooks.rollback(to="last", min_steps_back=1, skip_batches=0)
    bad = {bad_step}
    with mvc_hooks.Checkpointer(
        folder, parts=run.parts, every=EVERY, ladder=[back, mvc_hooks.stop(after=3)], ring=ring,
        signals=False, identity=ME, warm_up=run.warm_up,
        **options,
    ) as ckpt:  # fmt: skip
        first = ckpt.step_count
        for index in ckpt.steps(total):
            batch = run.data(ckpt.batch_index) if run.loader is None else ckpt.next_batch()
            loss = run.step(batch, lambda: None)
            trace.add(index + 1, batch, loss, run)
            ckpt.step(loss=float("nan") if index + 1 in bad else loss)
            bad.discard(index + 1)
            if index + 1 == dies_at:
                os.kill(os.getpid(), signal.SIGKILL)
    return run, first, [one.to_step for one in ckpt.rollbacks]


def find_other_blobs(run, folder, rank):
    """Return the files of the tip that are not those of one process with that state, on rank 0."""
    whole = {
        name: map_tensors(_capture(one), _gather)
        for name, one in run.parts.items()
        if name.startswith(("model", "optimizer", "average"))
    }
    if rank:
        return []
    repo, alone = Repo.open(folder), Repo.init(folder / "alone")
    alone.identity = ME
    alone.commit_state(whole, message="alone")
    ours, theirs = (
        {path: entry.blob for path, entry in one._context.history.read_tree(tip).items()}
        for one in (repo, alone)
        for tip in [one.resolve("HEAD")]
    )
    loaded = repo.load_state("main")
    found = [
        path
        for path, blob in theirs.items()
        if path.endswith(".safetensors") and ours.get(path) != blob
    ]
    found += [name for name in whole if digest(loaded[name]) != digest(whole[name])]
    return [*found, *map(str, repo.upkeep.fsck(data=True).problems)]


def _capture(live):
    if isinstance(live, (dict, list)):
        items = {key: _capture(one) for key, one in (list_items(live) or ())}
        return items if isinstance(live, dict) else list(items.values())
    if isinstance(live, torch.Tensor):
        return live.detach()
    return ModulePart("", live).capture() if isinstance(live, nn.Module) else live.state_dict()


def _gather(tensor):
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor.detach()


def resume(wanted, rank, size, folder):
    """Leave a training and go on with it, and roll back to a commit; return what is not as it has to be."""
    name, paths = wanted["resume"], _name_traces(folder, rank)
    train_plain(name, rank, size, Trace(paths["plain"]))
    train_kept(name, rank, size, folder / "in-two", Trace(paths["left"]), total=LEFT_AT)
    run, first, back = train_kept(
        name, rank, size, folder / "in-two", Trace(paths["on"]), seed=9, bad_step=BAD_STEP
    )
    found = {} if (first, back) == (LEFT_AT, [6]) else {"resumed": [first, back]}
    found |= _find_deviations(paths, "left", "on")
    others = find_other_blobs(run, folder / "in-two", rank)
    return found | ({"not as one process": others} if others else {})


def prove(name, rank, size, folder):
    """Resume, and roll back to a snapshot of the ring, too; return what is not as it has to be."""
    found, paths = resume({"resume": name}, rank, size, folder), _name_traces(folder, rank)
    _, _, back = train_kept(
        name, rank, size, folder / "ring", Trace(paths["ring"]), bad_step=BAD_STEP,
        ring=mvc_hooks.Ring(every=1, keep=3),
    )  # fmt: skip
    found |= {} if back == [BAD_STEP - 1] else {"back from the ring": back}
    return found | _find_deviations(paths, "ring")


def _name_traces(folder, rank):
    folder.mkdir(exist_ok=True)
    return {one: folder / f"{one}-{rank}" for one in ("plain", "left", "on", "ring")}


def _find_deviations(paths, *names):
    plain = read_trace(paths["plain"])
    found = {one: find_deviation(read_trace(paths[one]), plain) for one in names}
    return {one: deviation for one, deviation in found.items() if deviation is not None}


def go_back(wanted, rank, size, folder):
    """Roll back to the start, after two steps; return how it differs from a training that did not."""
    name, paths = wanted["back"], [folder / f"{one}-{rank}" for one in ("plain", "back")]
    train_plain(name, rank, size, Trace(paths[0]))
    _, _, back = train_kept(name, rank, size, folder / "run", Trace(paths[1]), bad_step=2)
    found = {} if back == [0] else {"back": back}
    deviation = find_deviation(read_trace(paths[1]), read_trace(paths[0]))
    return found | ({} if deviation is None else {"deviates": deviation})


def kill(wanted, rank, size, folder):
    """Train, and die if this rank is one of those that do; else end by the test's hand."""
    dies_at = wanted["step"] if rank in wanted["ranks"] else 0
    trace = Trace(folder / f"killed-{rank}")
    train_kept(wanted["kill"], rank, size, folder / "run", trace, dies_at=dies_at)
    return {"alive": "though another rank is not"}


def go_on(wanted, rank, size, folder):
    """Go on with what was killed; return how it differs from a training that nobody killed."""
    name, paths = wanted["go on"], [folder / f"{one}-{rank}" for one in ("plain", "gone-on")]
    train_plain(name, rank, size, Trace(paths[0]))
    run, first, _ = train_kept(name, rank, size, folder / "run", Trace(paths[1]), seed=9)
    found = {} if first in wanted["from"] else {"resumed": first}
    deviation = find_deviation(read_trace(paths[1]), read_trace(paths[0]))
    found |= {} if deviation is None else {"gone on": deviation}
    others = find_other_blobs(run, folder / "run", rank)
    return found | ({"not as one process": others} if others else {})


def move(wanted, rank, size, folder):
    """Take the state over in another layout; return what of it is not what was committed."""
    trace = Trace(folder / f"moved-{rank}")
    run, first, _ = train_kept(
        wanted["move"],
        rank,
        size,
        folder / "run",
        trace,
        seed=5,
        total=TOTAL,
        allow=["ranks", "rng"],
    )
    others = find_other_blobs(run, folder / "run", rank)
    return ({} if first == TOTAL else {"resumed": first}) | ({"differs": others} if others else {})


VERBS = {"back": go_back, "kill": kill, "go on": go_on, "move": move}


def carry_out(wanted, rank, size, folder):
    """Return the name of what is wanted, and what was found."""
    if isinstance(wanted, str):
        return wanted, prove(wanted, rank, size, folder / wanted)
    verb, name = next(iter(wanted.items()))
    if verb == "resume":
        return name, resume(wanted, rank, size, folder / name)
    return verb, VERBS[verb](wanted, rank, size, folder)


def prove_all(path, rank, size, names):
    found = dict(carry_out(wanted, rank, size, path.parent) for wanted in names)
    distributed.barrier()
    return found
