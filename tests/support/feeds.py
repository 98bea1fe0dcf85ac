"""A feed of a run as the training hooks would write it, its clock, and its records."""

from __future__ import annotations

import json
import math
import time

from mvc.training import RunStore


class Clock:
    """Time that passes when it is told to."""

    def __init__(self):
        self.now_s = 0.0

    def __call__(self):
        return self.now_s


def records(path):
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def tell(repo, branch="main", *, steps=500):
    """Write a feed with everything in it."""
    with RunStore(repo).open_feed(branch) as feed:
        feed._interval_s = 0.0
        feed.append("start", step=0, every=100, total=10_000)
        for step in range(1, steps + 1):
            loss = math.nan if step == 450 else 2 + 300 / step**1.5
            feed.append("step", step=step, loss=loss, grad_norm=0.5, lr=3e-4)
            if step % 100 == 0:
                feed.append(
                    "commit", step=step, commit=f"{step:040x}", stall_s=0.0123, write_s=2.5,
                    written_bytes=300 * 2**20, plain_bytes=3 * 2**30, queue_depth=1,
                    subject=f"step {step} with a subject that is longer than the line can be",
                )  # fmt: skip
            if step == 450:
                feed.append("alarm", step=450, cause="nan", reason="the loss is NaN")
                feed.append(
                    "rollback", step=450, to_step=300, to_commit=f"{300:040x}", seconds=1.5,
                    diverged_branch="diverged/main/450", skipped_batches=200, reason="nan",
                )  # fmt: skip
        feed.append("healthy", step=200, commit=f"{200:040x}")
        time.sleep(0.002)  # times are in milliseconds, and what comes later is shown first
        feed.append("error", step=460, text="the writer died\x1b[2J and came back")
