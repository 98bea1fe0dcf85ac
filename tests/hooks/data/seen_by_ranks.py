"""A program for ``torchrun``: ranks that train, and go back to a snapshot and to a commit.

seen_by_ranks.py FOLDER STEPS plan|drawn|order

``FOLDER/seen/STEP-RANK`` says what a rank saw in a step.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch
from torch import distributed

from mvc.sampling import SamplePlan, Source
from mvc_data import ConsistentDataLoader
from mvc_hooks import Checkpointer, Ring
from support.seeing_runs import note_seen
from support.seen_samples import SAMPLES, Numbers, PlanLoader, make_loader, make_parts, train_step

_BATCH = 6
_PLAN = SamplePlan((Source("dataloader", SAMPLES),), seed=3, batch=_BATCH)
_ROLLBACKS = {5, 13}
"""After these steps the run goes back, to a snapshot and then to a commit."""


def choose_loader(kind, rank, ranks):
    """Return the loader of a kind."""
    if kind == "order":
        return ConsistentDataLoader(Numbers(), _BATCH, seed=3)
    return PlanLoader(_PLAN, None, rank, ranks) if kind == "plan" else make_loader()


def main():
    folder, total, kind = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    torch.set_num_threads(1)
    rank, ranks = 0, int(os.environ.get("WORLD_SIZE", "1"))
    if ranks > 1:
        distributed.init_process_group("gloo")
        rank = distributed.get_rank()
    torch.manual_seed(rank)
    loader = choose_loader(kind, rank, ranks)
    torch.manual_seed(0)
    parts = make_parts(loader)
    with Checkpointer(folder, every=3, ring=Ring(every=2), allow=["ranks"], parts=parts) as ckpt:
        if (
            ranks > 1 and kind == "plan"
        ):  # a rank that the commit does not know begins where all are
            cursor = [loader.cursor]
            distributed.broadcast_object_list(cursor)
            loader.cursor = cursor[0]
        (folder / "seen").mkdir(exist_ok=True)
        to_come = set(_ROLLBACKS)
        for step in ckpt.steps(total):
            batch = train_step(ckpt, parts)
            if step in to_come:
                to_come.remove(step)
                ckpt.roll_back("last")
                ckpt.wait()
                ckpt.roll_back("main~1")
            elif step - 2 in _ROLLBACKS:
                ckpt.wait()
            note_seen(folder, step, rank, batch.tolist())
    if ranks > 1:
        distributed.destroy_process_group()


if __name__ == "__main__":
    main()
