"""Small fits of training libraries, each as a function (folder, where it ends, ...) → run."""

from __future__ import annotations

import importlib.util
import logging
import os
import random
import signal
import tempfile
from types import SimpleNamespace

import pytest

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, Dataset, IterableDataset, _utils

for _library in ("lightning", "transformers", "accelerate", "torchdata"):
    if importlib.util.find_spec(_library) is None:  # each takes seconds to import: not before a fit
        pytest.skip(f"{_library} is not installed", allow_module_level=True)

# An iterator that is freed with a cycle of references cannot reach its workers, and waits so long for each.
_utils.MP_STATUS_CHECK_INTERVAL = 0.2

QUIET = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]
"""Marks of tests of fits: the libraries advise on workers, intervals, and their own deprecated names."""

BATCH = 4
ROWS = 44
NET_OPTIONS = ("spike", "kill_at", "fail_at", "signal_at")


class Noisy(Dataset):
    """Rows to which every look adds noise of the global generator, as an augmentation does."""

    def __init__(self):
        generator = torch.Generator().manual_seed(1)
        self.x = torch.randn(ROWS, 8, generator=generator)
        self.y = torch.randint(0, 2, (ROWS,), generator=generator)

    def __len__(self):
        return ROWS

    def __getitem__(self, index):
        return {"x": self.x[index] + 0.01 * torch.randn(8), "labels": self.y[index]}


class Rows(IterableDataset):
    """The same rows in another order at every pass, and no length."""

    def __iter__(self):
        rows = Noisy()
        order = random.sample(range(ROWS), ROWS)
        worker = torch.utils.data.get_worker_info()
        return (rows[at] for at in (order[worker.id :: worker.num_workers] if worker else order))


class Draws:
    """A sampler with a generator of its own, which it draws from as long as it goes on."""

    def __init__(self):
        self.rng = random.Random(7)

    def __len__(self):
        return ROWS

    def __iter__(self):
        return (self.rng.randrange(ROWS) for _ in range(ROWS))


def _combine(mode):
    from lightning.pytorch.utilities import CombinedLoader

    return CombinedLoader(_make_two(), mode)


def _make_two():
    short = torch.utils.data.Subset(Noisy(), range(14))
    return {
        "long": DataLoader(Noisy(), BATCH, shuffle=True),
        "short": DataLoader(short, BATCH, shuffle=True, num_workers=1, persistent_workers=True),
    }


def _make_stateful(**options):
    from torchdata.stateful_dataloader import StatefulDataLoader

    return StatefulDataLoader(Noisy(), BATCH, shuffle=True, **options)


WORKERS = {"num_workers": 2}
PERSISTENT = {"num_workers": 2, "persistent_workers": True}
DATA = {
    "in order": lambda: DataLoader(Noisy(), BATCH),
    "shuffled": lambda: DataLoader(Noisy(), BATCH, shuffle=True),
    "sampler": lambda: DataLoader(Noisy(), BATCH, sampler=Draws()),
    "workers": lambda: DataLoader(Noisy(), BATCH, shuffle=True, **WORKERS),
    "persistent": lambda: DataLoader(Noisy(), BATCH, shuffle=True, **PERSISTENT),
    "stateful": lambda: _make_stateful(**WORKERS),
    "iterable": lambda: DataLoader(Rows(), BATCH),
    "iterable-persistent": lambda: DataLoader(Rows(), BATCH, **PERSISTENT),
    "two": _make_two,
    "two-min": lambda: _combine("min_size"),
    "two-max": lambda: _combine("max_size"),
}
"""Name → makes what a library iterates."""


class Net(nn.Module):
    """A model with everything that draws or remembers; it writes down every loss."""

    def __init__(self, spike=(), kill_at=None, fail_at=None, signal_at=None):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Dropout(0.2), nn.Linear(16, 2)
        )
        self.losses, self.count = [], 0
        self.spike, self.kill_at, self.fail_at = spike, kill_at, fail_at
        self.signal_at = signal_at

    def forward(self, x, labels):
        out = self.layers(x)
        loss = nn.functional.cross_entropy(out, labels)
        if self.training:
            self.count += 1
            self.losses.append(loss.item())
            if self.count == self.kill_at:
                os.kill(os.getpid(), signal.SIGKILL)
            if self.signal_at and self.count == self.signal_at[0]:
                os.kill(os.getpid(), self.signal_at[1])
            if self.count == self.fail_at:
                raise RuntimeError("the machine is on fire")
            if self.count in self.spike:
                loss = loss * float("nan")
        return {"loss": loss, "logits": out}


def count_rows(model):
    """Have a model count, in its state, the rows that it trains with; they are known by their numbers."""
    rows = Noisy().x

    def count(module, args, kwargs):
        if module.training:
            x = kwargs["x"] if "x" in kwargs else args[0]
            found = torch.cdist(x, rows).argmin(dim=1)
            module.seen += torch.bincount(found, minlength=ROWS)

    model.register_buffer("seen", torch.zeros(ROWS, dtype=torch.int64))
    model.register_forward_pre_hook(count, with_kwargs=True)


def make_tools(model):
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    return optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.9)


def make_average(model):
    return AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.8))


def state_of(model):
    return {name: value.clone() for name, value in model.state_dict().items()}


def same(one, other):
    return one.state.keys() == other.state.keys() and all(
        torch.equal(value, other.state[name]) for name, value in one.state.items()
    )


def fit_lightning(
    folder, *, until=None, total=26, accumulate=1, every=20, epochs=None, adapt=None, steps_itself=False,
    settings=(), ckpt_path=None, plateau=False, mixins=(), **options,
):  # fmt: skip
    import lightning.pytorch as pl

    from mvc_hooks.adapters.lightning import MvcCallback

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

    class Module(pl.LightningModule):
        def __init__(self, net):
            super().__init__()
            self.net, self.seen, self.batches = net, [], 0
            self.automatic_optimization = not steps_itself

        def training_step(self, batch, index):
            self.batches += 1
            self.seen.append((self.current_epoch, index, self.global_step))
            batches = [batch] if "x" in batch else [one for one in batch.values() if one]
            loss = sum(self.net(**one)["loss"] for one in batches)
            self.log("loss", loss, on_step=True, on_epoch=True)
            if steps_itself:
                self.optimizers().zero_grad()
                self.manual_backward(loss)
                self.optimizers().step()
                self.lr_schedulers().step()
            return loss

        def validation_step(self, batch, index):
            self.log("held_out", self.net(**batch)["loss"])
            self.log("step_count", float(self.global_step))

        def configure_optimizers(self):
            optimizer, scheduler = make_tools(self)
            if plateau:
                scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
            config = {"scheduler": scheduler, "interval": "step", "monitor": "held_out"}
            frequency = {"frequency": 3, "strict": False} if plateau else {}
            return {"optimizer": optimizer, "lr_scheduler": {**config, **frequency}}

        def on_save_checkpoint(self, checkpoint):
            checkpoint["batches"] = self.batches

        def on_load_checkpoint(self, checkpoint):
            self.batches = checkpoint["batches"]

    pl.seed_everything(0, verbose=False)
    extra = options.pop("callbacks", [])
    data = DATA[options.pop("data", "shuffled")]()
    held_out = DATA[options.pop("held_out", "in order")]()
    net = {name: options.pop(name) for name in NET_OPTIONS if name in options}
    module = type("Mixed", (*mixins, Module), {})(Net(**net))
    if adapt is not None:
        adapt(module.net)
    callback = None if folder is None else MvcCallback(folder, every=every, **options)
    trainer = pl.Trainer(
        max_steps=-1 if epochs else (until or total),
        max_epochs=epochs,
        accelerator="cpu",
        accumulate_grad_batches=accumulate,
        logger=False,
        **{"val_check_interval": 4, "enable_checkpointing": False, **dict(settings)},
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[*extra, *([callback] if callback else [])],
    )
    trainer.fit(module, data, held_out, ckpt_path=ckpt_path)
    return SimpleNamespace(
        losses=module.net.losses,
        seen=module.seen,
        state=state_of(module.net),
        steps=trainer.global_step,
        checkpointer=None if callback is None else callback.checkpointer,
        trainer=trainer,
        module=module,
        log=None,
    )


def fit_transformers(
    folder, *, until=None, total=26, accumulate=1, every=20, adapt=None, settings=(), train=(),
    makes_own=False, **options,
):  # fmt: skip
    import transformers

    from mvc_hooks.adapters.transformers import MvcCallback

    class StopAt(transformers.TrainerCallback):
        def on_step_end(self, args, state, control, **_):
            if state.global_step == until:
                control.should_training_stop = True

    class MakesOwn(transformers.Trainer):
        def create_optimizer(self, *_):
            self.optimizer = torch.optim.AdamW(self.model.parameters(), 1e-2)
            return self.optimizer

    def make_model():
        model = Net(**net)
        if adapt is not None:
            adapt(model)
        return model

    transformers.set_seed(0)
    data = options.pop("data", "shuffled")
    loading = {"workers": WORKERS, "persistent": PERSISTENT}.get(data.rpartition("-")[2], {})
    net = {name: options.pop(name) for name in NET_OPTIONS if name in options}
    with tempfile.TemporaryDirectory() as output:
        trainer = (MakesOwn if makes_own else transformers.Trainer)(
            **({"model_init": make_model} if makes_own else {"model": make_model()}),
            args=transformers.TrainingArguments(
                **{
                    "output_dir": output,
                    "max_steps": total,
                    "per_device_train_batch_size": BATCH,
                    "gradient_accumulation_steps": accumulate,
                    "save_strategy": "no",
                    "report_to": [],
                    "disable_tqdm": True,
                    "use_cpu": True,
                    "logging_steps": 3,
                    "eval_strategy": "steps",
                    "eval_steps": 5,
                    "learning_rate": 1e-2,
                    "dataloader_pin_memory": False,
                    **{f"dataloader_{name}": value for name, value in loading.items()},
                    **dict(settings),
                }
            ),
            train_dataset=Rows() if data.startswith("iterable") else Noisy(),
            eval_dataset=Noisy(),
            callbacks=[StopAt(), *options.pop("callbacks", [])],
        )
        trainer.remove_callback(transformers.PrinterCallback)
        callback = None if folder is None else MvcCallback(folder, every=every, **options)
        done = trainer.train() if callback is None else callback.train(trainer, **dict(train))
    return SimpleNamespace(
        losses=trainer.model.losses,
        state=state_of(trainer.model),
        steps=trainer.state.global_step,
        checkpointer=None if callback is None else callback.checkpointer,
        trainer=trainer,
        train_loss=done.training_loss,
        # Every stop writes a summary, which says how long it took.
        log=[_without_times(e) for e in trainer.state.log_history if "train_runtime" not in e],
    )


def _without_times(entry):
    return {
        name: value
        for name, value in entry.items()
        if "runtime" not in name and "per_second" not in name
    }


def fit_accelerate(
    folder, *, until=None, total=26, accumulate=1, every=20, adapt=None, average=False, files=None,
    saves_itself=False, begins_with=None, **options,
):  # fmt: skip
    from accelerate import Accelerator
    from accelerate.utils import ProjectConfiguration, set_seed

    from mvc_hooks.adapters.accelerate import make_checkpointer

    set_seed(0)
    project = ProjectConfiguration(files, automatic_checkpoint_naming=saves_itself, total_limit=2)
    accelerator = Accelerator(
        gradient_accumulation_steps=accumulate, cpu=True, project_config=project
    )
    net = {name: options.pop(name) for name in NET_OPTIONS if name in options}
    model = Net(**net)
    if adapt is not None:
        adapt(model)
    optimizer, scheduler = make_tools(model)
    data = DATA[options.pop("data", "shuffled")]()
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, data, scheduler)
    ema = make_average(model) if average else None
    if begins_with is not None:
        accelerator.load_state(begins_with)

    def finish_step(step):
        if average:
            ema.update_parameters(model)
        if saves_itself and step % 5 == 0:
            accelerator.save_state()

    def train(batch):
        with accelerator.accumulate(model):
            loss = model(**batch)["loss"]
            accelerator.backward(loss)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        return loss.detach()

    def train_plainly():
        steps = 0
        while True:
            for batch in loader:
                train(batch)
                steps += accelerator.sync_gradients
                if accelerator.sync_gradients:
                    finish_step(steps)
                if steps == (until or total):
                    return

    checkpointer = None
    if folder is None:
        train_plainly()
    else:
        parts = {"ema": ema} if average else {}
        with make_checkpointer(
            accelerator, folder, every=every, **parts, **options
        ) as checkpointer:
            for _ in checkpointer.steps(until or total):
                loss = train(checkpointer.next_batch())
                while not accelerator.sync_gradients:
                    loss = loss + train(checkpointer.next_batch())
                finish_step(checkpointer.step_count + 1)
                checkpointer.step(loss=loss)
    return SimpleNamespace(
        losses=model.losses,
        state=state_of(model),
        steps=None if checkpointer is None else checkpointer.step_count,
        checkpointer=checkpointer,
        ema=ema,
        accelerator=accelerator,
        log=None,
    )


def fit_fabric(folder, *, until=None, total=26, every=20, **options):
    from lightning.fabric import Fabric

    from mvc_hooks import Checkpointer

    logging.getLogger("lightning.fabric").setLevel(logging.ERROR)
    fabric = Fabric(accelerator="cpu", precision="bf16-mixed")
    fabric.seed_everything(0, verbose=False)
    net = Net(**{name: options.pop(name) for name in NET_OPTIONS if name in options})
    model, optimizer = fabric.setup(net, torch.optim.AdamW(net.parameters(), 1e-2))
    loader = fabric.setup_dataloaders(DATA["shuffled"]())

    def train(batch):
        optimizer.zero_grad()
        loss = model(**batch)["loss"]
        fabric.backward(loss)
        optimizer.step()
        return loss

    checkpointer = None
    if folder is None:
        while len(net.losses) < total:
            for batch in loader:
                train(batch)
                if len(net.losses) == total:
                    break
    else:
        parts = {"model": model, "optimizer": optimizer, "dataloader": loader}
        with Checkpointer(folder, every=every, **parts, **options) as checkpointer:
            for batch in checkpointer.batches(until or total):
                checkpointer.step(loss=train(batch))
    return SimpleNamespace(losses=net.losses, state=state_of(net), checkpointer=checkpointer)


FITS = {
    "lightning": fit_lightning,
    "transformers": fit_transformers,
    "accelerate": fit_accelerate,
}
