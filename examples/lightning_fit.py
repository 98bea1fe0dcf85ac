"""A Lightning fit that is stopped, resumes in a new trainer, and ends with the same bits.

A small recurrent network learns the source text of Python's standard library, byte by byte. All
that versioning and resuming add to a usual Lightning script is one callback.

    python examples/lightning_fit.py
"""

from __future__ import annotations

import argparse
import hashlib
import logging
import shutil
import sysconfig
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

import lightning.pytorch as pl
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

from mvc_hooks.adapters.lightning import MvcCallback

if TYPE_CHECKING:
    from lightning.pytorch.utilities.types import OptimizerLRSchedulerConfig

CONTEXT = 24


class Text(Dataset[Tensor]):
    """Windows of the text of some standard-library modules, as byte values."""

    def __init__(self) -> None:
        folder = Path(sysconfig.get_paths()["stdlib"])
        text = b"".join(path.read_bytes() for path in sorted(folder.glob("json/*.py")))
        self.codes = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()

    def __len__(self) -> int:
        return (len(self.codes) - 1) // CONTEXT

    def __getitem__(self, index: int) -> Tensor:
        return self.codes[index * CONTEXT : index * CONTEXT + CONTEXT + 1]


class CharModel(pl.LightningModule):
    """Predicts the next byte."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(256, 48)
        self.memory = nn.GRU(48, 96, batch_first=True)
        self.drop = nn.Dropout(0.1)
        self.out = nn.Linear(96, 256)

    def training_step(self, batch: Tensor, _index: int) -> Tensor:
        """Return the loss of a batch, (batch, time + 1)."""
        hidden, _ = self.memory(self.embed(batch[:, :-1]))
        logits = self.out(self.drop(hidden))
        loss = functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        self.log("loss", loss)
        return loss

    def configure_optimizers(self) -> OptimizerLRSchedulerConfig:
        """Return AdamW and a cosine schedule that steps with every batch."""
        optimizer = torch.optim.AdamW(self.parameters(), lr=3e-3)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 400)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": scheduler, "interval": "step"},
        }


def fit(steps: int, *callbacks: pl.Callback) -> tuple[CharModel, float]:
    """Make everything from scratch, as a new process would, and train for ``steps`` steps."""
    pl.seed_everything(0, verbose=False)
    model = CharModel()
    trainer = pl.Trainer(
        max_steps=steps,
        accelerator="cpu",
        callbacks=list(callbacks),
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, DataLoader(Text(), batch_size=16, shuffle=True))
    return model, float(trainer.callback_metrics.get("loss", float("nan")))


def digest(model: nn.Module) -> str:
    """Return the SHA-256 of all weights."""
    weights = [value.detach().numpy().tobytes() for value in model.state_dict().values()]
    return hashlib.sha256(b"".join(weights)).hexdigest()


def main() -> None:
    """Train twice: in one go without mvc, and stopped and resumed with it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path("lightning-run"))
    parser.add_argument("--steps", type=int, default=120)
    options = parser.parse_args()
    shutil.rmtree(options.folder, ignore_errors=True)
    torch.set_num_threads(1)  # the matrices are small, and threads would only wait for each other
    warnings.simplefilter("ignore")  # Lightning's advice on workers and logging
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    steps, middle = options.steps, options.steps * 5 // 9

    through, loss = fit(steps)
    print(f"in one go, without mvc:      step {steps}  loss {loss:.4f}  {digest(through)[:16]}")

    first = MvcCallback(options.folder, every=40)
    stopped, loss = fit(middle, first)
    print(f"with mvc, stopped:           step {middle}  loss {loss:.4f}  {digest(stopped)[:16]}")

    second = MvcCallback(options.folder, every=40)
    resumed, loss = fit(steps, second)
    print(f"new trainer, continued to:   step {steps}  loss {loss:.4f}  {digest(resumed)[:16]}")

    assert second.checkpointer is not None
    print(f"it resumed from commit {str(second.checkpointer.resumed_from)[:10]}; the branch has:")
    for entry in second.checkpointer.repo.log("main"):
        print(f"  {entry.id[:10]}  step {entry.step}")
    assert digest(resumed) == digest(through), "the resumed run is another one"
    print(f"bit-exact: {digest(resumed)}")


if __name__ == "__main__":
    main()
