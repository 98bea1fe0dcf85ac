"""How often detectors are wrong: healthy runs of many kinds, and failures, over many seeds.

    python -m benchmarks.hooks.alarms --seeds 20

Every run is real training of a small network; its sizes, rates and noise are drawn from its seed.
All detectors see the same losses and gradient norms.
"""

from __future__ import annotations

import argparse
import itertools
import math
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from benchmarks.tables import Table
from mvc_hooks import NotFinite, Reading, Spike, Trend
from mvc_hooks.divergence.watch import Watch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Batch = tuple[torch.Tensor, torch.Tensor]

BEFORE = (NotFinite(), Spike(record=0), Trend(2048, 128, 512, beyond=-1))
NOW = (NotFinite(), Spike(), Trend())
STEPS, FAILS_AT = 1500, 700


@dataclass
class Run:
    """A run in training: ``measure`` gives the loss of a step, ``spoil`` what became of its batch."""

    params: list[nn.Parameter]
    optimizer: torch.optim.Optimizer
    measure: Callable[[int], torch.Tensor]
    after: Callable[[int], object] = lambda _: None
    spoil: Callable[[torch.Tensor, torch.Tensor], Batch] = lambda x, y: (x, y)

    def train(self, steps: int, fail: Callable[[Run], None] | None = None) -> Iterator[Reading]:
        """Yield a reading per step; ``fail`` is called once, before step ``FAILS_AT`` + 1."""
        for step in range(steps):
            if step == FAILS_AT and fail is not None:
                fail(self)
            loss = self.measure(step)
            self.optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]  # so in torch
            grads = [p.grad for p in self.params if p.grad is not None]
            norm = nn.utils.get_total_norm(grads).item()
            lr = float(self.optimizer.param_groups[0]["lr"])
            self.optimizer.step()
            self.after(step)
            yield Reading(step + 1, loss.item(), norm, lr)


def _net(*sizes: int, act: Callable[[], nn.Module] = nn.ReLU) -> nn.Sequential:
    pairs = itertools.pairwise(sizes)
    return nn.Sequential(*[m for a, b in pairs for m in (nn.Linear(a, b), act())][:-1])


def _optimizer(rng: np.random.Generator, net: nn.Module, lr: float = 1.0) -> torch.optim.Optimizer:
    if rng.random() < 0.5:
        return torch.optim.SGD(net.parameters(), lr * 10 ** rng.uniform(-2, -1.3))
    return torch.optim.Adam(net.parameters(), lr * 10 ** rng.uniform(-3.2, -2.3))


def _classes(rng: np.random.Generator, batch: int, lr: float = 1.0) -> Run:
    """Tell noisy clouds apart."""
    count = int(rng.integers(3, 9))
    centres, noise = 1.5 * torch.randn(count, 16), rng.uniform(0.8, 1.8)
    net = _net(16, 64, count)

    def measure(_: int) -> torch.Tensor:
        y = torch.randint(count, (batch,))
        x, y = run.spoil(centres[y] + noise * torch.randn(batch, 16), y)
        return functional.cross_entropy(net(x), y)

    run = Run(list(net.parameters()), _optimizer(rng, net, lr), measure)
    return run


def _curve(rng: np.random.Generator, batch: int, lr: float = 1.0) -> Run:
    """Fit another network, and noise with heavy tails in every third run."""
    with torch.no_grad():
        x = torch.randn(4096, 16)
        y = 3 * _net(16, 32, 1, act=nn.Tanh)(x)
        noise = torch.randn_like(y)
        if rng.random() < 1 / 3:
            noise /= torch.rand_like(y).clamp_min(1e-3).sqrt()
        y = (y - y.mean()) / y.std() + 10 ** rng.uniform(-1.5, 0) * noise
    net = _net(16, 64, 1)

    def measure(_: int) -> torch.Tensor:
        at = torch.randint(len(x), (batch,))
        inputs, targets = run.spoil(x[at], y[at])
        return functional.mse_loss(net(inputs), targets)

    run = Run(list(net.parameters()), _optimizer(rng, net, lr), measure)
    return run


def _any(rng: np.random.Generator, batch: int, lr: float = 1.0) -> Run:
    return (_classes if rng.random() < 0.5 else _curve)(rng, batch, lr)


def _q_learning(rng: np.random.Generator) -> Run:
    """DQN on a plane with a goal: rare rewards, and a target network that jumps."""
    net, target = _net(4, 64, 4), _net(4, 64, 4)
    every, gamma = int(rng.choice([100, 250, 500])), float(rng.choice([0.9, 0.97]))
    moves = torch.tensor([[0.1, 0.0], [-0.1, 0.0], [0.0, 0.1], [0.0, -0.1]])
    state = 2 * torch.rand(2000, 4) - 1
    action = torch.randint(4, (2000,))
    after = torch.cat([(state[:, :2] + moves[action]).clamp(-1, 1), state[:, 2:]], 1)
    is_there = ((after[:, :2] - after[:, 2:]).abs().amax(1) < 0.15).float()
    reward = is_there * float(rng.choice([1.0, 10.0])) - 0.01

    def measure(step: int) -> torch.Tensor:
        at = torch.randint(min(2000, 200 + step), (32,))  # the memory fills
        with torch.no_grad():
            wanted = reward[at] + gamma * (1 - is_there[at]) * target(after[at]).amax(1)
        value = net(state[at]).gather(1, action[at, None])[:, 0]
        return functional.mse_loss(value, wanted)

    def update(step: int) -> object:
        return (step + 1) % every or target.load_state_dict(net.state_dict())

    return Run(list(net.parameters()), torch.optim.Adam(net.parameters(), 1e-3), measure, update)


def _vae(rng: np.random.Generator) -> Run:
    """The weight of the KL term rises, once or again and again."""
    data = torch.tanh(torch.randn(4096, 6) @ torch.randn(6, 32))
    encoder, decoder = _net(32, 64, 8), _net(4, 64, 32)
    params = [*encoder.parameters(), *decoder.parameters()]
    period, is_cyclic = int(rng.choice([400, 800, 1600])), rng.random() < 0.3

    def measure(step: int) -> torch.Tensor:
        x = data[torch.randint(4096, (32,))]
        mean, log_var = encoder(x).chunk(2, 1)
        out = decoder(mean + torch.randn_like(mean) * (log_var / 2).exp())
        beta = min(1.0, (step % period if is_cyclic else step) / period * (1 + is_cyclic))
        kl = 0.5 * (mean**2 + log_var.exp() - 1 - log_var).sum(1).mean()
        return 5 * ((out - x) ** 2).sum(1).mean() + beta * kl

    return Run(params, torch.optim.Adam(params, 10 ** rng.uniform(-3.2, -2.5)), measure)


def _curriculum(rng: np.random.Generator) -> Run:
    """Say longer and longer sequences backwards."""
    words, every, first = 10, int(rng.choice([250, 400])), int(rng.integers(1, 4))
    embed, core, head = (
        nn.Embedding(words + 1, 24),
        nn.GRU(24, 24, batch_first=True),
        nn.Linear(24, words),
    )
    params = [*embed.parameters(), *core.parameters(), *head.parameters()]

    def measure(step: int) -> torch.Tensor:
        length = min(first + step // every, 6)
        x = torch.randint(words, (32, length))
        seen = torch.cat([x, torch.full_like(x, words)], 1)
        said = head(core(embed(seen))[0][:, length:])
        return functional.cross_entropy(said.flatten(0, 1), x.flip(1).flatten())

    return Run(params, torch.optim.Adam(params, 10 ** rng.uniform(-3, -2.3)), measure)


def _restarts(rng: np.random.Generator) -> Run:
    run = _any(rng, 32, lr=float(rng.choice([1.0, 4.0])))
    period = int(rng.choice([100, 200, 500]))
    schedule = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(run.optimizer, period)
    run.after = lambda _: schedule.step()
    return run


def _gan(rng: np.random.Generator) -> Run:
    """The loss of the generator; the discriminator learns beside it."""
    maker, critic = _net(8, 64, 2), _net(2, 64, 1)
    lr, angles = 10 ** rng.uniform(-3.5, -2.7), torch.arange(8) * math.pi / 4
    modes = 2 * torch.stack([angles.cos(), angles.sin()], 1)
    other = torch.optim.Adam(critic.parameters(), lr, (0.5, 0.99))

    def measure(_: int) -> torch.Tensor:
        real = modes[torch.randint(8, (64,))] + 0.1 * torch.randn(64, 2)
        fake = maker(torch.randn(64, 8))
        other.zero_grad()
        loss = functional.softplus(-critic(real)) + functional.softplus(critic(fake.detach()))
        loss.mean().backward()
        other.step()
        return functional.softplus(-critic(fake)).mean()

    params = list(maker.parameters())
    return Run(params, torch.optim.Adam(params, lr, (0.5, 0.99)), measure)


HEALTHY: dict[str, Callable[[np.random.Generator], Run]] = {
    "plain, batch 32": partial(_any, batch=32),
    "batch 2": partial(_any, batch=2),
    "DQN, target network": _q_learning,
    "VAE, KL annealing": _vae,
    "length curriculum": _curriculum,
    "warm restarts": _restarts,
    "GAN, generator": _gan,
}


def _tenfold(run: Run) -> None:
    for group in run.optimizer.param_groups:
        group["lr"] *= 10


def _scale(run: Run) -> None:
    run.spoil = lambda x, y: (30 * x, y.roll(1, 0))


def _shuffle(run: Run) -> None:
    run.spoil = lambda x, y: (x, y.roll(1, 0))


def _nan(run: Run) -> None:
    run.spoil = lambda x, y: (x * math.nan, y)


FAILURES = {
    "rate times ten": _tenfold,
    "bad batches, inputs times 30": _scale,
    "bad batches, shuffled targets": _shuffle,
    "NaN": _nan,
}


def study(name: str, seed: int, steps: int = STEPS) -> list[int | None]:
    """Return the step of the first alarm, before and now; of a failure, counted from it."""
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    is_failure = name in FAILURES
    run = _any(rng, 32, lr=4.0) if is_failure else HEALTHY[name](rng)
    watches, since = [Watch(BEFORE), Watch(NOW)], FAILS_AT if is_failure else 0
    found: list[int | None] = [None, None]
    for reading in run.train(steps, FAILURES.get(name)):
        for at, watch in enumerate(watches):
            if found[at] is None and watch.take(reading) is not None and reading.step > since:
                found[at] = reading.step - since
        if None not in found or not math.isfinite(reading.loss or 0.0):
            break
    return found


def study_all(seeds: int, workers: int) -> dict[str, list[list[int | None]]]:
    """Return the answers of every kind of run, for so many seeds."""
    names = [*HEALTHY, *FAILURES]
    jobs = [(name, seed) for seed in range(seeds) for name in names]
    with ProcessPoolExecutor(workers) as pool:
        answers = list(pool.map(study, *zip(*jobs, strict=True)))
    return {
        name: [answer for job, answer in zip(jobs, answers, strict=True) if job[0] == name]
        for name in names
    }


def alarm_tables(results: dict[str, Any]) -> Iterator[Table]:
    """Yield false alarms of healthy runs, and how soon failures were found."""
    rows = [["healthy run", "runs", "with alarm, score alone", "with alarm, default"]]
    for name in HEALTHY:
        hits = [
            sum(one is not None for one in column) for column in zip(*results[name], strict=True)
        ]
        rows.append([name, str(len(results[name])), *map(str, hits)])
    yield Table("false alarms", rows)
    rows = [["failure", "runs", "found, score alone", "steps", "found, default", "steps"]]
    for name in FAILURES:
        cells = []
        for column in zip(*results[name], strict=True):
            delays = [one for one in column if one is not None]
            cells += [str(len(delays)), f"{median(delays):g}" if delays else ""]
        rows.append([name, str(len(results[name])), *cells])
    yield Table("failures found, and median steps until then", rows)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    for table in alarm_tables(study_all(options.seeds, options.workers)):
        head, *rows = ["| " + " | ".join(row) + " |" for row in table.rows]
        print(table.title, "", head, "|" + " --- |" * len(table.rows[0]), *rows, "", sep="\n")


if __name__ == "__main__":
    main()
