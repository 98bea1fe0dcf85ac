"""A program for ``torchrun``: ranks that train, and go back to a snapshot and to a commit.

seen_by_ranks.py FOLDER STEPS plan|drawn
"""

from __future__ import annotations

import os
import sys

import torch
from torch import distributed

from mvc.sampling import SamplePlan, Source
from mvc_hooks import Checkpointer, Ring
from support.seen_samples import SAMPLES, PlanLoader, make_loader, make_parts, train_step

_PLAN = SamplePlan((Source("dataloader", SAMPLES),), seed=3, batch=6)


def main():
    folder, total, kind = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    torch.set_num_threads(1)
    rank, ranks = 0, int(os.environ.get("WORLD_SIZE", "1"))
    if ranks > 1:
        distributed.init_process_group("gloo")
        rank = distributed.get_rank()
    torch.manual_seed(rank)
    loader = PlanLoader(_PLAN, None, rank, ranks) if kind == "plan" else make_loader()
    torch.manual_seed(0)
    parts = make_parts(loader)
    with Checkpointer(folder, every=3, ring=Ring(every=2), allow=["ranks"], parts=parts) as ckpt:
        if (
            ranks > 1 and kind == "plan"
        ):  # a rank that the commit does not know begins where all are
            cursor = [loader.cursor]
            distributed.broadcast_object_list(cursor)
            loader.cursor = cursor[0]
        gone_back = False
        for step in ckpt.steps(total):
            train_step(ckpt, parts)
            if step == 4 and not gone_back:
                gone_back = True
                ckpt.roll_back("last")
                ckpt.wait()
                ckpt.roll_back("main~1")
    if ranks > 1:
        distributed.destroy_process_group()


if __name__ == "__main__":
    main()
