"""Extend a run: every commit records the learning rate, and a counter goes on where the last commit left it.

What takes part in a run besides its parts is an `Extension`. This one counts the steps whose loss was the lowest so
far. The count is in each commit, so a resume and a rollback take it along. Run it twice from the root of the
project, and the second run goes on with the first one's count:

    python examples/extension.py --folder extended-run
    mvc -C extended-run show
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from mvc_hooks import Checkpointer, Extension
from mvc_hooks.extension import Contribution

if TYPE_CHECKING:
    from mvc_hooks.extension import Host, Origin


class Records(Extension):
    """Counts new lowest losses, and tells each commit the count and the learning rate."""

    entry = "records"

    def __init__(self) -> None:
        """Begin with nothing seen."""
        self.count, self.lowest = 0, float("inf")

    def open(self, host: Host) -> None:
        """Keep what the run lends: its objects, ranks, log, repository."""
        self._host = host

    def check_step(self, step: int) -> None:
        """Look at the loss of a step, as far as it has arrived."""
        reading = self._host.reading
        if reading is not None and reading.loss is not None and reading.loss < self.lowest:
            self.count, self.lowest = self.count + 1, reading.loss

    def describe(self, step: int) -> Contribution:
        """Tell the commit of a step: facts are texts, metrics are numbers."""
        optimizer: Any = self._host.objects["optimizer"]
        rate = optimizer.param_groups[0]["lr"]
        return Contribution(facts={"records": str(self.count)}, metrics={"lr": rate})

    def capture(self) -> dict[str, object]:
        """Return what commits hold under the name `records`."""
        return {"count": self.count, "lowest": self.lowest}

    def restore(self, state: Any, origin: Origin) -> None:
        """Take what a commit holds; one from before this extension was added holds nothing."""
        if state is not None:
            self.count, self.lowest = state["count"], state["lowest"]


def main() -> None:
    """Train a line, twenty steps more each time."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, required=True)
    folder = parser.parse_args().folder
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.95)
    records = Records()
    with Checkpointer(
        folder,
        model=model,
        optimizer=optimizer,
        scheduler=scheduler,
        every=5,
        extensions=[records],
    ) as ckpt:
        print(f"step {ckpt.step_count}: {records.count} records so far")
        for _ in ckpt.steps(ckpt.step_count + 20):
            inputs = torch.randn(16, 4)
            loss = (model(inputs) - inputs.sum(1, keepdim=True)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
            ckpt.step(loss=loss)
        print(f"step {ckpt.step_count}: {records.count} records so far")


if __name__ == "__main__":
    main()
