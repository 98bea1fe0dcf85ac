"""A small language model that is really trained, whose weights lend their statistics.

What a lossless coder can gain on weights lies in how their exponents are spread, and that is not
the spread of a Gaussian: rows have scales of their own, training adds tails. No model can be
downloaded where this benchmark has to run, so it trains one: a byte-level Llama-shaped network
(RMSNorm, rotary positions, SwiGLU) on the source text of Python's standard library,
with AdamW, in about a minute on two cores. The result is kept on disk under a name that holds
everything that decides it.
"""

from __future__ import annotations

import sysconfig
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from safetensors.numpy import load_file
from safetensors.torch import save_file

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

_TEXT_BYTES = 4 << 20
_CONTEXT = 128
_HEADS = 4


@dataclass(frozen=True, slots=True)
class DonorSettings:
    """How the donor is made; part of its file name."""

    hidden: int = 192
    intermediate: int = 512
    layers: int = 3
    steps: int = 400
    batch: int = 8

    @property
    def file_name(self) -> str:
        """Name under which the trained model is kept."""
        sizes = (self.hidden, self.intermediate, self.layers, self.steps, self.batch)
        return f"donor-{'-'.join(map(str, sizes))}.safetensors"


QUICK = DonorSettings(hidden=64, intermediate=160, layers=1, steps=10, batch=4)


def load_donor(folder: Path, settings: DonorSettings) -> tuple[dict[str, NDArray[np.float32]], str]:
    """Return role and number → trained fp32 matrix, and a line that says where it comes from."""
    path = folder / settings.file_name
    note = folder / f"{settings.file_name}.txt"
    if not note.exists():
        note.write_text(_train(path, settings))
    return load_file(path), note.read_text()


def read_text() -> NDArray[np.uint8]:
    """Return real text: the standard library's modules, in the order of their names."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    parts: list[bytes] = []
    size_bytes = 0
    for path in sorted(folder.glob("*.py")):
        parts.append(path.read_bytes())
        size_bytes += len(parts[-1])
        if size_bytes > _TEXT_BYTES:
            break
    return np.frombuffer(b"".join(parts), np.uint8)


def _train(path: Path, settings: DonorSettings) -> str:
    import torch  # noqa: PLC0415  only if there is no donor yet

    torch.manual_seed(0)
    text = torch.from_numpy(read_text().copy()).long()
    weights = initial_weights(settings)
    parameters = list(weights.values())
    optimizer = torch.optim.AdamW(parameters, lr=3e-3, betas=(0.9, 0.95), weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=settings.steps)
    began, losses = time.perf_counter(), []
    for _ in range(settings.steps):
        rows = draw_rows(text, settings.batch)
        loss = find_loss(weights, settings, rows)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
    save_file({name: weight.detach() for name, weight in weights.items()}, path)
    last = losses[-20:]
    return (
        f"trained here: {sum(p.numel() for p in parameters) / 1e6:.1f} M parameters, "
        f"{settings.steps} steps of AdamW on {len(text) / 1e6:.1f} MB of Python source, "
        f"loss {losses[0]:.2f} → {sum(last) / len(last):.2f} nats per byte, "
        f"{time.perf_counter() - began:.0f} s"
    )


def draw_rows(text: torch.Tensor, batch: int) -> torch.Tensor:
    """Return so many pieces of the text, drawn by torch's global generator."""
    import torch  # noqa: PLC0415

    at = torch.randint(len(text) - _CONTEXT - 1, (batch,))
    return torch.stack([text[start : start + _CONTEXT + 1] for start in at])


def initial_weights(settings: DonorSettings) -> dict[str, torch.Tensor]:
    """Return role and number → matrix of a network that learned nothing yet."""
    import torch  # noqa: PLC0415

    wide, inner = settings.hidden, settings.intermediate
    shapes = {"embed": (256, wide), "lm_head": (256, wide), "norm.last": (wide,)}
    for layer in range(settings.layers):
        shapes |= {f"{role}.{layer}": (wide, wide) for role in "qkvo"}
        shapes |= {f"{role}.{layer}": (inner, wide) for role in ("gate", "up")}
        shapes |= {f"down.{layer}": (wide, inner)}
        shapes |= {f"norm.{part}{layer}": (wide,) for part in "ab"}
    return {
        name: (
            torch.ones(shape) if len(shape) == 1 else torch.randn(shape) * shape[1] ** -0.5
        ).requires_grad_()
        for name, shape in shapes.items()
    }


def find_loss(
    weights: dict[str, torch.Tensor], settings: DonorSettings, rows: torch.Tensor
) -> torch.Tensor:
    """Return the mean loss over the rows, in nats per byte."""
    import torch.nn.functional as F  # noqa: N812, PLC0415  torch's own abbreviation

    x = F.embedding(rows[:, :-1], weights["embed"])
    turn = _rotary(x.shape[1], settings.hidden // _HEADS, x.device)
    for layer in range(settings.layers):
        normed = F.rms_norm(x, x.shape[-1:], weights[f"norm.a{layer}"])
        q, k, v = (
            F.linear(normed, weights[f"{role}.{layer}"]).unflatten(-1, (_HEADS, -1)).transpose(1, 2)
            for role in "qkv"
        )
        mixed = F.scaled_dot_product_attention(
            _rotate(q, turn), _rotate(k, turn), v, is_causal=True
        )
        x = x + F.linear(mixed.transpose(1, 2).flatten(2), weights[f"o.{layer}"])
        normed = F.rms_norm(x, x.shape[-1:], weights[f"norm.b{layer}"])
        gate, up = (F.linear(normed, weights[f"{role}.{layer}"]) for role in ("gate", "up"))
        x = x + F.linear(F.silu(gate) * up, weights[f"down.{layer}"])
    logits = F.linear(F.rms_norm(x, x.shape[-1:], weights["norm.last"]), weights["lm_head"])
    return F.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())


def _rotary(positions: int, width: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Return cosine and sine of every position's angles, each (positions, width / 2)."""
    import torch  # noqa: PLC0415

    speeds = 10_000.0 ** -torch.arange(0, 1, 2 / width, device=device)
    angles = torch.outer(torch.arange(positions, dtype=torch.float32, device=device), speeds)
    return angles.cos(), angles.sin()


def _rotate(x: torch.Tensor, turn: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    import torch  # noqa: PLC0415

    cos, sin = turn
    left, right = x.chunk(2, -1)
    return torch.cat((left * cos - right * sin, left * sin + right * cos), -1)
