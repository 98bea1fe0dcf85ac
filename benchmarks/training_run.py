"""Full training states of a real run: ``python -m benchmarks.training_run FOLDER full|quick``.

A byte-level Llama-shaped network (``donor``) learns the source text of Python's standard library
with AdamW in fp32, on torch's processor kernels, without warm states or shortcuts; its weights and
both moments are kept every few steps. Two runs:

* ``near``: from the random start, 50 steps between commits, rate 1e-3 falling to 1e-4: the hardest
  part of a training, where everything moves.
* ``far``: goes on from there as a fine-tune of 1000 steps between commits at 1e-5 would. A
  thousand real steps for each of twenty commits would take an hour, so one step stands for
  twenty: the rate is 1e-5 times the root of 20, which moves weights as far if steps are a random
  walk, and the memory of the second moment is shortened to 0.999^20. The first moment forgets in
  ten steps anyway, so commits share as little of it as they would.

States are safetensors files (``model.*``, ``exp_avg.*``, ``exp_avg_sq.*``), which is the raw size
that everything is compared with. They are kept, since they take minutes to make.

A separate process, so that torch's memory and threads do not affect other measurements.
"""

from __future__ import annotations

import shutil
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks import donor

if TYPE_CHECKING:
    import torch

    Tensors = dict[str, torch.Tensor]

MOMENTS = ("exp_avg", "exp_avg_sq")
NOTE = "note.txt"
_STEPS_IN_ONE = 20


@dataclass(frozen=True, slots=True)
class Run:
    """One run whose states are kept.

    Attributes:
        name: folder of its states.
        title: as the tables show it.
        steps: optimizer steps between commits.
        rate: learning rate at the start.
        last_rate: learning rate at the end, reached along a cosine.
        memory: AdamW's second beta.
    """

    name: str
    title: str
    steps: int
    rate: float
    last_rate: float
    memory: float


@dataclass(frozen=True, slots=True)
class Training:
    """The network and how many states of each run are kept."""

    network: donor.DonorSettings
    commits: int
    runs: tuple[Run, ...]

    def folder(self, parent: Path) -> Path:
        """Return where the states are kept; the name holds what decides them."""
        steps = "-".join(str(run.steps) for run in self.runs)
        name = Path(self.network.file_name).stem.replace("donor", "states")
        return parent / f"{name}-{self.commits}x{steps}"


_FAR_RATE = 1e-5 * _STEPS_IN_ONE**0.5
TRAININGS = {
    "full": Training(
        donor.DonorSettings(384, 1024, 4, 1000, 2),
        20,
        (
            Run("near", "50 steps apart", 50, 1e-3, 1e-4, 0.999),
            Run("far", "as if 1000 steps apart", 50, _FAR_RATE, _FAR_RATE, 0.999**_STEPS_IN_ONE),
        ),
    ),
    "quick": Training(
        donor.DonorSettings(32, 64, 1, 6, 2),
        3,
        (Run("near", "2 steps apart", 2, 1e-3, 1e-4, 0.999),),
    ),
}


def state_path(folder: Path, run: Run, number: int) -> Path:
    """Return the file of a run's state, counted from 0."""
    return folder / run.name / f"{number:02}.safetensors"


def make_states(folder: Path, training: Training) -> str:
    """Train and keep the states where they are not kept yet; return where they come from."""
    import torch  # noqa: PLC0415  only where there are no states yet

    note = folder / NOTE
    if note.exists():
        return note.read_text()
    torch.manual_seed(0)
    text = torch.from_numpy(donor.read_text().copy()).long()
    weights = donor.initial_weights(training.network)
    began = time.perf_counter()
    losses = [_train(folder, training, run, weights, text) for run in training.runs]
    count = sum(weight.numel() for weight in weights.values())
    ends = ", ".join(f"{before:.2f} → {after:.2f}" for before, after in losses)
    line = (
        f"trained here: {count / 1e6:.1f} M parameters, {training.commits} commits of each run, "
        f"AdamW on {len(text) / 1e6:.1f} MB of Python source, {training.network.batch} pieces of 128 "
        f"bytes a step, loss {ends} nats per byte, {time.perf_counter() - began:.0f} s"
    )
    note.write_text(line)
    return line


def _train(
    folder: Path, training: Training, run: Run, weights: Tensors, text: torch.Tensor
) -> tuple[float, float]:
    """Train one run from where the weights are; return the loss of its first and last steps."""
    import torch  # noqa: PLC0415

    parameters = list(weights.values())
    optimizer = torch.optim.AdamW(parameters, lr=run.rate, betas=(0.9, run.memory))
    total = run.steps * training.commits
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, total, run.last_rate)
    fresh = folder / run.name
    if fresh.exists():  # a run that was interrupted
        shutil.rmtree(fresh)
    fresh.mkdir(parents=True)
    losses: list[float] = []
    for step in range(1, total + 1):
        loss = donor.find_loss(
            weights, training.network, donor.draw_rows(text, training.network.batch)
        )
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
        if step % run.steps == 0:
            write_state(state_path(folder, run, step // run.steps - 1), weights, optimizer)
    edge = max(1, min(20, total // 4))
    return sum(losses[:edge]) / edge, sum(losses[-edge:]) / edge


def write_state(path: Path, weights: Tensors, optimizer: torch.optim.Optimizer) -> None:
    """Write weights and moments as one safetensors file."""
    from safetensors.torch import save_file  # noqa: PLC0415

    tensors = {f"model.{name}": weight.detach() for name, weight in weights.items()}
    for moment in MOMENTS:
        tensors |= {
            f"{moment}.{name}": optimizer.state[weight][moment] for name, weight in weights.items()
        }
    save_file(tensors, path)


def read_state(path: Path, run: Run, number: int) -> dict[str, object]:
    """Return a kept state as a training script would hand it over: model, optimizer, step."""
    import torch  # noqa: PLC0415
    from safetensors.torch import load_file  # noqa: PLC0415

    tensors = {name: tensor.clone() for name, tensor in load_file(path).items()}
    names = [name.removeprefix("model.") for name in tensors if name.startswith("model.")]
    step = (number + 1) * run.steps
    state = {
        count: {"step": torch.tensor(float(step))}
        | {moment: tensors[f"{moment}.{name}"] for moment in MOMENTS}
        for count, name in enumerate(names)
    }
    group = {"lr": run.rate, "betas": (0.9, run.memory), "params": list(range(len(names)))}
    return {
        "model": {name: tensors[f"model.{name}"] for name in names},
        "optimizer": {"state": state, "param_groups": [group]},
        "step": step,
    }


def main() -> None:
    training = TRAININGS[sys.argv[2]]
    print(make_states(training.folder(Path(sys.argv[1])), training))


if __name__ == "__main__":
    main()
