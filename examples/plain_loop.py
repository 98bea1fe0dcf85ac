"""A plain training loop that survives bad data: it diverges, rolls back automatically, and continues.

A small character model learns from the source text of Python's standard library. One stretch of
the data is damaged, as by a broken shard: its characters are noise. The loss jumps, the run goes
back to its last healthy commit, leaves the batches around the damage out, and ends as if they had
never been there. Run it from the root of the project:

    python examples/plain_loop.py --folder loop-run
"""

from __future__ import annotations

import argparse
import logging
import random
import sysconfig
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

from mvc_hooks import Checkpointer, StepRun, Training, rollback, stop

CONTEXT, BATCH, STEPS = 64, 16, 400
DAMAGE = range(230, 236)
"""Batches whose text is noise."""


class Windows(Dataset[Tensor]):
    """Windows of the text in random order; some of them damaged."""

    def __init__(self, text: Tensor, count: int, damage: range) -> None:
        order = torch.Generator().manual_seed(7)
        self.starts = torch.randint(len(text) - CONTEXT - 1, (count,), generator=order)
        self.text, self.damage = text, damage

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, index: int) -> Tensor:
        """Return characters, one more than the context."""
        if index // BATCH in self.damage:
            noise = torch.Generator().manual_seed(index)
            return torch.randint(128, (CONTEXT + 1,), generator=noise)
        start = int(self.starts[index])
        return self.text[start : start + CONTEXT + 1]


class CharModel(nn.Module):
    """A recurrent model over ASCII characters with dropout."""

    def __init__(self, width: int = 96) -> None:
        super().__init__()
        self.embed = nn.Embedding(128, width)
        self.cell = nn.GRU(width, width, batch_first=True)
        self.drop = nn.Dropout(0.1)
        self.head = nn.Linear(width, 128)

    def forward(self, text: Tensor) -> Tensor:
        """Return the logits of the next character."""
        hidden, _ = self.cell(self.embed(text))
        logits: Tensor = self.head(self.drop(hidden))
        return logits


def read_text() -> Tensor:
    """Return the ASCII text of the standard library's sources."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    text = "".join(path.read_text(errors="ignore") for path in sorted(folder.glob("*.py"))[:60])
    return torch.frombuffer(bytearray(text.encode("ascii", "ignore")), dtype=torch.uint8).long()


def seed() -> None:
    """Seed every generator, whether this run draws from it or not: all of them are committed."""
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002  the global generator is what is committed
    torch.manual_seed(0)


def build(damage: range = DAMAGE) -> Training:
    """Make everything from scratch, as at the start of a run; a replay calls this as well."""
    torch.set_num_threads(1)  # the matrices are small, and threads would only wait for each other
    seed()
    model = CharModel()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    loader = DataLoader(Windows(read_text(), STEPS * BATCH * 2, damage), batch_size=BATCH)

    def train_step(run: StepRun) -> dict[str, object]:
        batch = run.next_batch()
        logits = model(batch[:, :-1])
        loss = functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]  # torch has no types here
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        return {"loss": loss, "grad_norm": norm}

    parts = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "dataloader": loader}
    return Training(parts, train_step)


def train(folder: Path) -> Checkpointer:
    """Train with a repository: these few lines are all that mvc needs."""
    training = build()
    checkpointer = Checkpointer(
        folder,
        every=50,
        healthy_after=30,
        ladder=[rollback(min_steps_back=20, skip_batches=40), stop(after=3)],
        parts=training.parts,
    )
    with checkpointer as ckpt:
        for _ in ckpt.steps(STEPS):
            ckpt.step(**(training.train_step(ckpt) or {}))
    return checkpointer


def main() -> None:
    """Train, and print what happened."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path("loop-run"))
    folder: Path = parser.parse_args().folder
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    done = train(folder)
    for report in done.rollbacks:
        print(f"diverged at step {report.onset_step}, rolled back to step {report.to_step}")
    print(f"look at it:  cd {folder} && mvc log --graph --all --oneline")
    here = Path(__file__).resolve()
    print(f"prove it:    cd {folder} && mvc verify --replay 50 --entry {here}:build main@250")


if __name__ == "__main__":
    main()
