"""The training run that is saved: a Llama-shaped network, AdamW in fp32, real steps on real text.

Its weights are a bootstrap of a network that was trained (``workload``), and it goes on learning from
there: a few steps before the first save give the moments of AdamW real values, and one step
between two saves changes every word of the state. Time until bytes are durable depends on that, since
what mvc writes is compressed; the stall does not.

One network serves all ways of saving: it is a plain ``nn.Module`` that returns what Hugging Face's
``Trainer`` and Lightning want to see, a mapping with a ``loss``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from benchmarks import donor, workload

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class Size:
    """How large a run is.

    Attributes:
        network: sizes of the network.
        context: bytes of text a step learns from.
        donor: the trained network that lends its values.
        rate: learning rate.
    """

    network: donor.DonorSettings
    context: int
    donor: donor.DonorSettings
    rate: float = 1e-4


_DONOR = donor.DonorSettings()
SIZES = {
    "large": Size(donor.DonorSettings(768, 2048, 12, 0, 1), 32, _DONOR),
    "middle": Size(donor.DonorSettings(512, 1408, 8, 0, 1), 32, _DONOR),
    "small": Size(donor.DonorSettings(192, 512, 4, 0, 1), 32, _DONOR),
    "quick": Size(donor.DonorSettings(32, 64, 1, 0, 1), 16, donor.QUICK),
}


class Network(nn.Module):
    """The donor's network with parameters that have names.

    Args:
        settings: its sizes.
        weights: role and number → values.
    """

    def __init__(self, settings: donor.DonorSettings, weights: dict[str, torch.Tensor]) -> None:
        super().__init__()
        self._settings = settings
        self._names = {name: name.replace(".", "_") for name in weights}
        for name, value in weights.items():
            self.register_parameter(self._names[name], nn.Parameter(value))

    def forward(self, rows: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the mean loss over pieces of text, in nats per byte."""
        weights = {name: getattr(self, own) for name, own in self._names.items()}
        return {"loss": donor.find_loss(weights, self._settings, rows)}


class Run:
    """A network in training.

    Attributes:
        model: the network.
        optimizer: AdamW, as it comes.
        size: of the run.
        device: where it lives.
        state_bytes: weights and both moments.
    """

    def __init__(self, size: Size, weights: dict[str, torch.Tensor], device: str = "cpu") -> None:
        """Take the weights, role and number → values, and put them on the device."""
        self.size = size
        self.device = device
        self._weights = weights
        self.model = Network(size.network, weights).to(device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=size.rate)
        self.state_bytes = 12 * sum(weight.numel() for weight in self.model.parameters())
        self._text = torch.from_numpy(donor.read_text().copy()).long()

    def draw(self) -> torch.Tensor:
        """Return a piece of text."""
        rows = donor.draw_rows(self._text, 1)
        return rows[:, : self.size.context + 1].to(self.device)

    def step(self) -> torch.Tensor:
        """Take an optimizer step; return its loss."""
        self.optimizer.zero_grad()
        loss = self.model(self.draw())["loss"]
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        return loss.detach()

    def twin(self) -> Run:
        """Return a run of the same sizes that knows nothing, to be restored into."""
        blank = {name: torch.full_like(value, 0.5) for name, value in self._weights.items()}
        return Run(self.size, blank, self.device)

    def tensors(self) -> list[torch.Tensor]:
        """Return weights and moments, always in the same order."""
        moments = [
            self.optimizer.state[weight][name]
            for weight in self.model.parameters()
            for name in ("exp_avg", "exp_avg_sq")
        ]
        return [*(weight.detach() for weight in self.model.parameters()), *moments]

    def state(self) -> dict[str, Any]:
        """Return what a training script would give to ``torch.save``."""
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}


def make_run(folder: Path, name: str, device: str = "cpu") -> Run:
    """Draw the weights of a run.

    Args:
        folder: where the trained donor is kept.
        name: of the size.
        device: where the run lives.
    """
    torch.manual_seed(0)
    size = SIZES[name]
    bootstrap = workload.Bootstrap(donor.load_donor(folder, size.donor)[0])
    drawn: dict[str, torch.Tensor] = {}
    for key, empty in donor.initial_weights(size.network).items():
        role = key.partition(".")[0]
        values = bootstrap.draw(role, tuple(empty.shape), workload.generator(key))
        drawn[key] = torch.from_numpy(values)
    return Run(size, drawn, device)


def is_same(run: Run, copies: list[torch.Tensor]) -> bool:
    """Tell whether weights and moments are those of some copies, bit by bit."""
    pairs = zip(run.tensors(), copies, strict=True)
    return all(torch.equal(a.view(torch.int32), b.view(torch.int32)) for a, b in pairs)
