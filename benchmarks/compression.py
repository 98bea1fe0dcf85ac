"""What compressed gradients cost in loss: a small transformer on real text, at equal steps and at 10 % more.

    python -m benchmarks.compression --seeds 3 --json results.json

Two processes over gloo train on bytes of Python's own library; every hook begins with the same weights,
sees the same batches and has the same schedule, stretched if it takes more steps. The loss is of files
that were left out.
"""

from __future__ import annotations

import argparse
import json
import sysconfig
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import mean, stdev
from typing import TYPE_CHECKING, Any

import torch
from torch import distributed, multiprocessing, nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks.tables import Table
from mvc_lab.compression import Bf16, Fp16, PowerSgd, SignSgd
from mvc_lab.compression.run import extend

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from mvc_lab.compression import Compression

RANKS, STEPS, BATCH, CONTEXT, WIDTH, LAYERS = 2, 100, 8, 32, 64, 1
_STRONG = ("PowerSgd(1)", "SignSgd")  # of these also with 10 % more steps
_EVALUATED, _TEXT_BYTES, _RATE = 24, 4 << 20, 3e-3


@dataclass(frozen=True, slots=True)
class Way:
    """A hook, with or without error feedback; ``make`` is None for plain sums."""

    name: str
    has_feedback: bool | None
    make: Callable[[], Compression] | None


def list_ways(steps: int) -> Iterator[Way]:
    """Yield all ways to send gradients; PowerSGD begins after a tenth of the steps."""
    yield Way("plain", None, None)
    for has_feedback in (False, True):
        yield Way("Fp16", has_feedback, lambda on=has_feedback: Fp16(error_feedback=on))
        yield Way("Bf16", has_feedback, lambda on=has_feedback: Bf16(error_feedback=on))
        for rank in (4, 1):
            yield Way(
                f"PowerSgd({rank})", has_feedback,
                lambda on=has_feedback, rank=rank: PowerSgd(
                    rank, start_step=max(2, steps // 10), error_feedback=on
                ),
            )  # fmt: skip
        yield Way("SignSgd", has_feedback, lambda on=has_feedback: SignSgd(error_feedback=on))


class Block(nn.Module):
    """One layer of the transformer, without biases."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.RMSNorm(WIDTH) for _ in range(2))
        self.mix = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.join = nn.Linear(WIDTH, WIDTH, bias=False)
        self.widen = nn.Linear(WIDTH, 4 * WIDTH, bias=False)
        self.narrow = nn.Linear(4 * WIDTH, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the next layer's input."""
        heads = self.mix(self.norms[0](x)).view(*x.shape[:2], 3, 4, -1).permute(2, 0, 3, 1, 4)
        seen = nn.functional.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.join(seen.transpose(1, 2).reshape(x.shape))
        return x + self.narrow(nn.functional.gelu(self.widen(self.norms[1](x))))


class Transformer(nn.Module):
    """Predicts the next byte."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(256, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm, self.out = nn.RMSNorm(WIDTH), nn.Linear(WIDTH, 256, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the logits of each next byte."""
        x = self.embed(tokens) + self.place.weight[: tokens.shape[1]]
        return self.out(self.norm(self.blocks(x)))


@cache
def read_text() -> tuple[torch.Tensor, torch.Tensor]:
    """Return bytes to train on, and bytes of other files to measure the loss on."""
    folder = Path(sysconfig.get_path("stdlib"))
    files = [path.read_bytes() for path in sorted(folder.glob("*.py"))]
    parts = b"".join(files[at] for at in range(len(files)) if at % 10), b"".join(files[::10])
    first, second = (
        torch.frombuffer(bytearray(one[:_TEXT_BYTES]), dtype=torch.uint8) for one in parts
    )
    return first, second


def _pick(text: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    begins = torch.randint(len(text) - CONTEXT - 1, (BATCH,), generator=generator)
    return torch.stack([text[at : at + CONTEXT + 1] for at in begins.tolist()]).long()


def _measure(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    logits = model(batch[:, :-1])
    return nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())


def train(way: Way, seed: int, steps: int, rank: int) -> dict[str, Any]:
    """Return the loss of a trained model, and how much was sent."""
    torch.manual_seed(seed)
    text, unseen = read_text()
    ddp = DistributedDataParallel(Transformer())
    hook = None if way.make is None else way.make()
    if hook is not None:
        hook.attach(ddp)
    optimizer = torch.optim.AdamW(ddp.parameters(), lr=_RATE)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, _RATE, total_steps=steps + 1)
    generator = torch.Generator().manual_seed(1000 * seed + rank)
    for _ in range(steps):
        optimizer.zero_grad()
        _measure(ddp, _pick(text, generator)).backward()  # type: ignore[no-untyped-call]  # so in torch
        optimizer.step()
        schedule.step()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        losses = [float(_measure(ddp.module, _pick(unseen, generator))) for _ in range(_EVALUATED)]
    ratio = 1.0 if hook is None else hook.ratio
    return {"loss": mean(losses), "ratio": ratio}


def _run_rank(rank: int, folder: str, seeds: int, steps: int) -> None:
    torch.set_num_threads(1)
    store = distributed.FileStore(f"{folder}/store", RANKS)
    distributed.init_process_group("gloo", store=store, rank=rank, world_size=RANKS)
    results = []
    for seed in range(seeds):
        for way in list_ways(steps):
            is_strong = way.make is None or way.name in _STRONG
            for count in (steps, extend(steps)) if is_strong else (steps,):
                found = train(way, seed, count, rank)
                key = {"way": way.name, "feedback": way.has_feedback, "more": count > steps}
                results.append({**key, "seed": seed, **found})
                if not rank:
                    Path(folder, "results.json").write_text(json.dumps(results))
    distributed.destroy_process_group()


def measure_compression(seeds: int, steps: int, folder: Path) -> list[dict[str, Any]]:
    """Return a result per way, number of steps and seed."""
    multiprocessing.spawn(_run_rank, (str(folder), seeds, steps), nprocs=RANKS)  # type: ignore[no-untyped-call]  # so in torch
    results: list[dict[str, Any]] = json.loads((folder / "results.json").read_text())
    return results


def as_table(results: list[dict[str, Any]], steps: int) -> Table:
    """Return the losses, mean and standard deviation over the seeds."""
    rows = [["hook", "error feedback", "ratio", f"loss at {steps}", f"loss at {extend(steps)}"]]
    kinds = dict.fromkeys((one["way"], one["feedback"]) for one in results)
    for name, feedback in kinds:
        mine = [one for one in results if (one["way"], one["feedback"]) == (name, feedback)]
        cells = []
        for more in (False, True):
            losses = [one["loss"] for one in mine if one["more"] is more]
            spread = stdev(losses) if len(losses) > 1 else 0.0
            cells.append(f"{mean(losses):.3f} ± {spread:.3f}" if losses else "-")
        told = "-" if feedback is None else "yes" if feedback else "no"
        rows.append([name, told, f"{mine[-1]['ratio']:.1f}", *cells])
    return Table("loss with compressed gradients", rows)


def main() -> None:
    """Run the experiment and print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.compression", description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--json", type=Path, help="also write everything as JSON")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        results = measure_compression(options.seeds, options.steps, Path(folder))
    if options.json:
        options.json.write_text(json.dumps(results))
    for row in as_table(results, options.steps).rows:
        print("| " + " | ".join(row) + " |")


if __name__ == "__main__":
    main()
