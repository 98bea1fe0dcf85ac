"""What the loops of ``support.loops`` train with: adapters, averages, callbacks."""

from __future__ import annotations

import torch
from torch import nn

from support.fits import make_average, make_tools


class Lora(nn.Module):
    """A frozen layer and a trained difference of rank 2 beside it."""

    def __init__(self, base):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Linear(base.in_features, 2, bias=False)
        self.up = nn.Linear(2, base.out_features, bias=False)

    def forward(self, x):
        return self.base(x) + self.up(self.down(x))


def add_lora(net):
    net.layers[0], net.layers[3] = Lora(net.layers[0]), Lora(net.layers[3])


def add_peft(net):
    import peft

    config = peft.LoraConfig(r=2, lora_dropout=0.1, target_modules=["layers.0", "layers.3"])
    peft.inject_adapter_in_model(config, net)


def add_embeddings(net):
    """Give a net what noise can be added to: (rows, positions, width)."""
    embeddings = nn.Identity()
    net.layers[1] = nn.Sequential(nn.Unflatten(1, (4, 4)), embeddings, nn.Flatten(1))
    net.get_input_embeddings = lambda: embeddings


# Lightning: folder for files → callbacks.


def save_best(files, monitor="held_out", **options):
    from lightning.pytorch.callbacks import ModelCheckpoint

    return [ModelCheckpoint(files, monitor=monitor, save_top_k=2, save_last=True, **options)]


def watch_epochs(files):
    from lightning.pytorch.callbacks import EarlyStopping

    stopping = EarlyStopping(
        "loss_epoch", patience=50, min_delta=1e9, check_on_train_epoch_end=True
    )
    return [stopping, *save_best(files, "loss_epoch", save_on_train_epoch_end=True)]


def stop_at_nan(files):
    from lightning.pytorch.callbacks import EarlyStopping

    return [EarlyStopping("held_out", patience=30, check_on_train_epoch_end=False)]


def average(files):
    from lightning.pytorch.callbacks import EMAWeightAveraging

    return [EMAWeightAveraging(decay=0.8)]


def average_late(files):
    from lightning.pytorch.callbacks import WeightAveraging

    class Late(WeightAveraging):
        def should_update(self, step_idx=None, epoch_idx=None):
            return step_idx is not None and step_idx >= 15

    return [Late()]


def average_by_hand(files):
    import lightning.pytorch as pl

    class Average(pl.Callback):
        def on_train_start(self, trainer, module):
            self.ema = make_average(module.net)

        def on_train_batch_end(self, trainer, module, *_):
            self.ema.update_parameters(module.net)

    return [Average()]


class Adversaries:
    """Two optimizers in turn, of which the second accumulates and steps every other time."""

    automatic_optimization = property(lambda self: False, lambda self, value: None)

    def configure_optimizers(self):
        first, scheduler = make_tools(self.net.layers)
        second = torch.optim.Adam(self.net.critic.parameters(), 1e-2)
        return [first, second], [scheduler, torch.optim.lr_scheduler.ExponentialLR(second, 0.9)]

    def training_step(self, batch, index):
        (first, second), schedulers = self.optimizers(), self.lr_schedulers()
        self.toggle_optimizer(first)
        loss = self.net(**batch)["loss"] + self.net.critic(torch.randn(4, 8)).mean()
        self.log("loss", loss, on_step=True, on_epoch=True)
        self._take(first, loss)
        self.untoggle_optimizer(first)
        self._take(second, self.net.critic(batch["x"]).square().mean(), steps=index % 2)
        schedulers[0].step()
        if self.trainer.is_last_batch:
            schedulers[1].step()

    def _take(self, optimizer, loss, steps=True):
        self.manual_backward(loss)
        if steps:
            self.clip_gradients(optimizer, gradient_clip_val=0.5)
            optimizer.step()
            optimizer.zero_grad()


class Measured:
    """Metrics over an epoch and over the run, a scheduler stepped by hand, what epochs and validation change."""

    def __init__(self, net):
        from torchmetrics import MeanMetric, MetricCollection
        from torchmetrics.classification import BinaryAUROC, BinaryPrecision, BinaryRecall

        super().__init__(net)
        self.mean = MeanMetric()
        self.scores = MetricCollection([BinaryAUROC(), BinaryPrecision(), BinaryRecall()])

    def configure_optimizers(self):
        found = super().configure_optimizers()
        self.warm_up = torch.optim.lr_scheduler.LinearLR(found["optimizer"], 0.1, total_iters=30)
        return found

    def on_train_batch_end(self, *_):
        self.warm_up.step()

    def on_validation_batch_end(self, *_):
        self.batches += 1

    def on_train_epoch_start(self):
        self.scores.reset()
        self.optimizers().param_groups[0]["weight_decay"] *= 2

    def training_step(self, batch, index):
        loss = super().training_step(batch, index)
        self.mean.update(loss.detach())
        self.scores.update(batch["x"][:, 0].sigmoid(), batch["labels"])
        return loss

    def on_train_epoch_end(self):
        self.log_dict({"mean": self.mean.compute(), "batches": float(self.batches)})
        self.log_dict(self.scores.compute())


def add_critic(net):
    net.critic = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))


def average_stochastically(files):
    from lightning.pytorch.callbacks import StochasticWeightAveraging

    return [StochasticWeightAveraging(1e-2, swa_epoch_start=1)]


def prune(files):
    from lightning.pytorch.callbacks import ModelPruning

    return [ModelPruning("l1_unstructured", amount=0.1)]


# Hugging Face Trainer.


def average_in_trainer():
    import transformers

    class Average(transformers.TrainerCallback):
        def on_train_begin(self, args, state, control, model=None, **_):
            self.ema = make_average(model)

        def on_step_end(self, args, state, control, model=None, **_):
            self.ema.update_parameters(model)

    return [Average()]


def decay_more():
    import transformers

    class Decay(transformers.TrainerCallback):
        def on_epoch_begin(self, args, state, control, optimizer=None, **_):
            optimizer.param_groups[0]["weight_decay"] += 0.1

    return [Decay()]


def stop_early():
    import transformers

    return [transformers.EarlyStoppingCallback(early_stopping_patience=9)]
