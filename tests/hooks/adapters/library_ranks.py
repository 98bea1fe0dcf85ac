"""One rank of runs of a library: plain; left in the middle and resumed; gone back after a bad loss.

    torchrun --nproc-per-node 2 library_ranks.py LIBRARY FOLDER
    torchrun --nproc-per-node 2 library_ranks.py LIBRARY FOLDER TOTAL

Each run writes a trace, FOLDER/RUN.RANK: for every batch its sum and its loss. With a TOTAL, one run trains up
to it on data that comes in a computed order, and notes in FOLDER.trace/STEP.RANK what it trained on.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch
from torch import nn

from mvc import Identity
from mvc_data import ConsistentDataLoader
from mvc_hooks import rollback

TOTAL, LEFT_AT, BAD_BATCH = 8, 5, 7
ROWS, BATCH, SEED = 26, 6, 4
"""Batches that 2 and 3 ranks can share; what is left of an epoch fills none."""
ME = Identity("Ada", "ada@example.org")
ELASTIC = {"every": 1, "identity": ME, "allow": ["ranks"]}
OPTIONS = {
    "every": 2,
    "identity": ME,
    "signals": False,
    "ladder": rollback("last", min_steps_back=1, skip_batches=0),
}


class Model(nn.Module):
    """A model that draws random numbers, and writes a trace."""

    def __init__(self, trace, bad_batch=None):
        super().__init__()
        torch.manual_seed(3)
        self.net = nn.Sequential(nn.Linear(10, 20), nn.Dropout(0.1), nn.Linear(20, 1))
        self._trace, self._bad_batch, self._seen = trace, bad_batch, 0

    def forward(self, x, labels):
        loss = nn.functional.mse_loss(self.net(x), labels)
        with self._trace.open("a") as file:
            file.write(json.dumps([x.sum().item(), loss.item()]) + "\n")
        self._seen += 1
        if self._seen == self._bad_batch:
            loss = loss * float("nan")
        return {"loss": loss}


class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return ROWS

    def __getitem__(self, index):
        return {"x": torch.tensor([index / ROWS]), "index": index}


class NotingModel(nn.Module):
    """Notes what it is trained on; ``step`` is set by who trains it."""

    def __init__(self, folder):
        super().__init__()
        torch.manual_seed(0)
        self.net, self._folder, self.step = nn.Linear(1, 1), folder, 0

    def forward(self, x, index):
        self._folder.mkdir(exist_ok=True)
        path = self._folder / f"{self.step}.{os.environ.get('RANK', '0')}"
        path.write_text(" ".join(map(str, index.tolist())))
        return {"loss": self.net(x).square().mean()}


def make_ordered():
    return ConsistentDataLoader(Rows(), BATCH, seed=SEED, drop_last=True)


def make_shuffled():
    return torch.utils.data.DataLoader(make_data(), batch_size=4, shuffle=True)


def make_data():
    draw = torch.Generator().manual_seed(0)
    return [
        {"x": torch.randn(10, generator=draw), "labels": torch.randn(1, generator=draw)}
        for _ in range(64)
    ]


def shard(state):
    """Have Accelerate shard by FSDP2, which it offers on accelerators alone, on this CPU."""
    from accelerate import DistributedType, FullyShardedDataParallelPlugin, PartialState

    PartialState().distributed_type = state.distributed_type = DistributedType.FSDP
    state.fsdp_plugin = FullyShardedDataParallelPlugin(fsdp_version=2)


def train_accelerate_fsdp2(path, model, seed, total):
    return train_accelerate(path, model, seed, total, is_sharded=True)


def train_accelerate(path, model, seed, total, is_sharded=False):
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState
    from accelerate.utils import set_seed

    from mvc_hooks.adapters.accelerate import make_checkpointer

    AcceleratorState._reset_state(reset_partial_state=True)
    set_seed(seed)
    accelerator = Accelerator(cpu=True)
    if is_sharded:
        shard(accelerator.state)
    optimizer = torch.optim.AdamW(model.parameters())
    loader = make_shuffled()
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    assert accelerator.is_fsdp2 == is_sharded
    with make_checkpointer(accelerator, path, **OPTIONS) as ckpt:
        for _ in ckpt.steps(total):
            loss = model(**ckpt.next_batch())["loss"]
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            ckpt.step(loss=loss)
        return ckpt.rollbacks


def train_lightning_fsdp2(path, model, seed, total):
    from lightning.pytorch.strategies import ModelParallelStrategy

    return train_lightning(path, model, seed, total, ModelParallelStrategy())


def train_lightning(
    path, model, seed, total, strategy="ddp", make_loader=make_shuffled, options=OPTIONS
):  # fmt: skip
    import lightning
    from torch.distributed.fsdp import fully_shard

    from mvc_hooks.adapters.lightning import MvcCallback

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = model

        def configure_model(self):
            if strategy != "ddp":
                fully_shard(self.model, mesh=self.device_mesh["data_parallel"])

        def training_step(self, batch, _):
            self.model.step = self.global_step
            return self.model(**batch)["loss"]

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters())

    lightning.seed_everything(seed, verbose=False)
    callback, size = MvcCallback(path, **options), int(os.environ["WORLD_SIZE"])
    trainer = lightning.Trainer(
        accelerator="cpu", devices=size, strategy=strategy if size > 1 else "auto", max_steps=total, callbacks=[callback], logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(Module(), make_loader())
    return callback.checkpointer.rollbacks


def train_fabric(path, model, seed, total):
    """Without an adapter, over more than one pass."""
    from lightning.fabric import Fabric

    from mvc_hooks import Checkpointer

    fabric = Fabric(accelerator="cpu", devices=int(os.environ["WORLD_SIZE"]), strategy="ddp")
    fabric.launch()
    fabric.seed_everything(seed, verbose=False)
    model, optimizer = fabric.setup(model, torch.optim.AdamW(model.parameters()))
    loader = torch.utils.data.DataLoader(make_data()[:24], batch_size=4, shuffle=True)
    loader = fabric.setup_dataloaders(loader)
    with Checkpointer(path, model=model, optimizer=optimizer, dataloader=loader, **OPTIONS) as ckpt:
        for _ in ckpt.steps(total):
            optimizer.zero_grad()
            loss = model(**ckpt.next_batch())["loss"]
            fabric.backward(loss)
            optimizer.step()
            ckpt.step(loss=loss)
        return ckpt.rollbacks


def train_transformers_fsdp2(path, model, seed, total):
    return train_transformers(path, model, seed, total, is_sharded=True)


def train_transformers(
    path, model, seed, total, is_sharded=False, make_loader=None, options=OPTIONS
):  # fmt: skip
    import transformers
    from accelerate.state import AcceleratorState

    from mvc_hooks.adapters.transformers import MvcCallback

    AcceleratorState._reset_state(reset_partial_state=True)

    class Trainer(transformers.Trainer):
        def create_accelerator_and_postprocess(self):
            super().create_accelerator_and_postprocess()
            if is_sharded:
                shard(self.accelerator.state)
                self.is_fsdp_enabled = True

        def get_train_dataloader(self):
            return super().get_train_dataloader() if make_loader is None else make_loader()

        def training_step(self, *values, **named):
            model.step = self.state.global_step
            return super().training_step(*values, **named)

    arguments = transformers.TrainingArguments(
        f"{path}.out", max_steps=total, per_device_train_batch_size=4, use_cpu=True, report_to=[],
        save_strategy="no", disable_tqdm=True, seed=seed, lr_scheduler_type="constant",
        remove_unused_columns=False,
    )  # fmt: skip
    trainer = Trainer(model, arguments, train_dataset=make_data())
    callback = MvcCallback(path, **options)
    callback.train(trainer)
    return callback.checkpointer.rollbacks


def main(library, folder, elastic_total=None):
    rank = os.environ["RANK"]
    train = globals()[f"train_{library}"]
    if elastic_total is not None:
        torch.set_num_threads(1)
        model = NotingModel(Path(f"{folder}.trace"))
        elastic = {"make_loader": make_ordered, "options": ELASTIC}
        train(Path(folder), model, 0, int(elastic_total), **elastic)
        return

    def run(name, total, *, seed=7, bad_batch=None):
        path = Path(folder) / name
        model = Model(Path(f"{path}.{rank}"), bad_batch if rank == "1" else None)
        return train(path, model, seed, total)

    assert not run("plain", TOTAL)
    run("kept", LEFT_AT)
    run("kept", TOTAL)
    assert len(run("back", TOTAL, bad_batch=BAD_BATCH)) == 1


if __name__ == "__main__":
    main(*sys.argv[1:])
