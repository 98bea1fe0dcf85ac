"""One rank of a run of a library, whose data comes in a computed order; it notes what it trained on.

torchrun --nproc-per-node 2 elastic_ranks.py LIBRARY FOLDER TOTAL
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch

from mvc import Identity
from mvc_data import ConsistentDataLoader

ROWS, BATCH, SEED = 26, 6, 4
"""Batches that 2 and 3 ranks can share; what is left of an epoch fills none."""


class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return ROWS

    def __getitem__(self, index):
        return {"x": torch.tensor([index / ROWS]), "index": index}


class Model(torch.nn.Module):
    def __init__(self, folder):
        super().__init__()
        torch.manual_seed(0)
        self.net, self._folder, self.step = torch.nn.Linear(1, 1), folder, 0

    def forward(self, x, index):
        self._folder.mkdir(exist_ok=True)
        path = self._folder / f"{self.step}.{os.environ.get('RANK', '0')}"
        path.write_text(" ".join(map(str, index.tolist())))
        return {"loss": self.net(x).square().mean()}


def make_loader():
    return ConsistentDataLoader(Rows(), BATCH, seed=SEED, drop_last=True)


OPTIONS = {"every": 1, "identity": Identity("Ada", "ada@example.org"), "allow": ["ranks"]}


def train_lightning(folder, model, total):
    import lightning

    from mvc_hooks.adapters.lightning import MvcCallback

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = model

        def training_step(self, batch, _):
            self.model.step = self.global_step
            return self.model(**batch)["loss"]

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 0.1)

    size = int(os.environ["WORLD_SIZE"])
    trainer = lightning.Trainer(
        accelerator="cpu", devices=size, strategy="ddp" if size > 1 else "auto", max_steps=total,
        callbacks=[MvcCallback(folder, **OPTIONS)], logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(Module(), make_loader())


def train_transformers(folder, model, total):
    import transformers

    from mvc_hooks.adapters.transformers import MvcCallback

    class Trainer(transformers.Trainer):
        def get_train_dataloader(self):
            return make_loader()

        def training_step(self, *values, **named):
            model.step = self.state.global_step
            return super().training_step(*values, **named)

    arguments = transformers.TrainingArguments(
        output_dir=str(folder / "out"), max_steps=total, save_strategy="no", report_to=[],
        use_cpu=True, disable_tqdm=True, remove_unused_columns=False,
    )  # fmt: skip
    callback = MvcCallback(folder, **OPTIONS)
    callback.train(Trainer(model, arguments, callbacks=[callback]))


if __name__ == "__main__":
    library, place, steps = sys.argv[1:]
    torch.set_num_threads(1)
    train = {"lightning": train_lightning, "transformers": train_transformers}[library]
    train(Path(place), Model(Path(f"{place}.trace")), int(steps))
