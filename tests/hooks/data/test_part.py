"""The loader in a run: what commits hold of it, and what a rollback leaves out."""

from __future__ import annotations

import pytest
import torch

from mvc import ConflictError, Repo
from mvc_data import ConsistentDataLoader
from mvc_hooks import Checkpointer, rollback
from support.bounds import rest_nightly

pytestmark = pytest.mark.torch


class Run:
    """A run of one process on the numbers 0 to 39; ``seen`` has the positions of each batch."""

    def __init__(self, folder, *, seed=1, every=1, **options):
        if not (folder / ".mvc").exists():
            Repo.init(folder)
        self.model = torch.nn.Linear(1, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-4)
        self.loader = ConsistentDataLoader(torch.arange(80.0).reshape(80, 1), 4, seed=seed)
        self.seen = []
        self.loader.watch(lambda positions, _: self.seen.append(positions.tolist()))
        self.ckpt = Checkpointer(
            folder, model=self.model, optimizer=self.optimizer, dataloader=self.loader,
            every=every, detectors=options.pop("detectors", ()), **options,
        )  # fmt: skip
        self.mine = None

    def step(self, *, loss=None):
        return self.learn(self.ckpt.next_batch(), loss)

    def own_step(self, *, loss=None):
        """Take a step in a loop of its own."""
        self.mine = iter(self.loader) if self.mine is None else self.mine
        return self.learn(next(self.mine), loss)

    def learn(self, batch, loss):
        true = self.model(batch).square().mean()
        true.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return self.ckpt.step(loss=true if loss is None else loss)


@pytest.mark.parametrize("step", [Run.step, Run.own_step])
def test_a_resume_takes_the_next_batch(tmp_path, step):
    first = Run(tmp_path / "run")
    for _ in range(7):
        step(first)
    first.ckpt.close()
    second = Run(tmp_path / "run")
    assert second.ckpt.step_count == 7
    step(second)
    second.ckpt.close()
    assert second.seen == [list(range(28, 32))]
    stored = second.ckpt.repo.load_state("HEAD")["dataloader"]
    assert (stored["cursor"], stored["batches_drawn"]) == (32, 8)


@pytest.mark.parametrize(
    ("step", "skipped"),
    rest_nightly([(Run.step, 2), (Run.own_step, 5), (Run.step, 5), (Run.own_step, 2)], kept=2),
)
def test_a_rollback_leaves_out_batches_and_says_why(tmp_path, step, skipped):
    answer = rollback("last", min_steps_back=3, skip_batches=skipped)
    run = Run(tmp_path / "run", detectors=None, ladder=[answer])
    for _ in range(6):
        step(run)
    report = step(run, loss=float("nan"))
    if report is None or not run.ckpt.rollbacks:
        step(run)
    report = run.ckpt.rollbacks[0]
    before, first, last = report.to_step, report.skipped_first, report.skipped_last
    del run.seen[:]
    for _ in range(last - before + 2):
        step(run)
    run.ckpt.close()
    numbers = [number for number in range(before, last + last) if not first - 1 <= number < last]
    expected = [list(range(4 * number, 4 * number + 4)) for number in numbers]
    assert run.seen == expected[: len(run.seen)]
    (window,) = run.loader.skips.windows
    assert (window.start, window.stop) == (4 * (first - 1), 4 * last)
    assert window.reason == report.reason
    stored = run.ckpt.repo.load_state("HEAD")["dataloader"]
    assert stored["skips"]["windows"] == [[window.start, window.stop, window.reason]]


def test_another_order_is_refused_unless_allowed(tmp_path):
    first = Run(tmp_path / "run")
    first.step()
    first.ckpt.close()
    with pytest.raises(ConflictError, match=r"dataloader\.plan\.seed") as caught:
        Run(tmp_path / "run", seed=2)
    assert "\n" not in caught.value.message
    allowed = Run(tmp_path / "run", seed=2, allow=["dataloader.*"])
    allowed.step()
    allowed.ckpt.close()
    assert allowed.seen == [[4, 5, 6, 7]]
    assert allowed.loader.plan.seed == 2


def test_a_rollback_goes_back_behind_a_change_that_was_allowed(tmp_path):
    first = Run(tmp_path / "run")
    for _ in range(4):
        first.step()
    first.ckpt.close()
    second = Run(tmp_path / "run", seed=2, allow=["dataloader.*"])
    second.step()
    second.ckpt.wait()
    second.ckpt.roll_back("main~2")
    assert second.ckpt.step_count == 3
    second.step()
    second.ckpt.close()
    assert second.seen == [[16, 17, 18, 19], [12, 13, 14, 15]]
