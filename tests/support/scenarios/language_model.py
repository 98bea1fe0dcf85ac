"""Everything at once: a small language model."""

from __future__ import annotations

import functools

import torch
from torch import nn
from torch.nn import functional
from torch.optim import lr_scheduler
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import Dataset
from torchdata.stateful_dataloader import StatefulDataLoader

from support.scenarios.basics import read_text, scenario
from support.training_runs import Run


class Gpt(nn.Module):
    """A small transformer language model over bytes, its head tied to its embedding."""

    def __init__(self, width=16, context=24):
        super().__init__()
        self.table = nn.Embedding(128, width)
        self.places = nn.Embedding(context, width)
        layer = functools.partial(
            nn.TransformerEncoderLayer, width, 2, 32, dropout=0.1, batch_first=True
        )
        self.layers = nn.ModuleList([layer(), layer()])
        self.head = nn.Linear(width, 128, bias=False)
        self.head.weight = self.table.weight
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(context))

    def forward(self, tokens):
        hidden = self.table(tokens) + self.places.weight[: tokens.shape[1]]
        for layer in self.layers:
            hidden = layer(hidden, src_mask=self.mask, is_causal=True)
        return self.head(hidden)


class Lines(Dataset):
    """Stretches of the text."""

    def __len__(self):
        return 30

    def __getitem__(self, index):
        text = read_text().long() % 128
        return text[index * 300 : index * 300 + 25]


@scenario("language-model")
def language_model():
    model = Gpt()
    decayed = [p for p in model.parameters() if p.ndim > 1]
    plain = [p for p in model.parameters() if p.ndim < 2]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": plain, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, 3e-3, betas=(0.9, 0.95))
    scheduler = lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=40)
    scaler = torch.amp.GradScaler("cpu", growth_interval=4)
    ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.95))
    loader = StatefulDataLoader(Lines(), batch_size=4, shuffle=True)
    micro = {"count": 0}

    def step(tokens, between):
        with torch.autocast("cpu", torch.bfloat16):
            logits = model(tokens[:, :-1])
        loss = functional.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())
        scaler.scale(loss / 2).backward()
        between()
        micro["count"] += 1
        if micro["count"] % 2 == 0:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            scheduler.step()
            optimizer.zero_grad()
            ema.update_parameters(model)
        return loss.item()

    parts = {
        "model": model, "optimizer": optimizer, "scheduler": scheduler, "scaler": scaler,
        "ema": ema, "dataloader": loader, "micro": micro,
    }  # fmt: skip
    return Run(parts, step, loader=loader, with_gradients=True)
