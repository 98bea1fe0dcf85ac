"""Merging two fine-tunes: mvc beside torch on state dicts that are loaded whole, as merge scripts do.

Three models of the workload: the base, one whose layers all moved a little, one with a merged LoRA. Each
way reads and writes files; the page cache is warm for both.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from benchmarks.children import Cost, middle

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.children import Runner

METHODS = {
    "linear": ("merge_method: linear", "{weight: 0.5}"),
    "task_arithmetic": ("merge_method: task_arithmetic\nbase_model: {base}", "{weight: 0.5}"),
    "ties": ("merge_method: ties\nbase_model: {base}", "{weight: 0.5, density: 0.5}"),
}

# All three models in memory, bf16 as they are; every step in fp32.
_TORCH = """
import sys
import torch
from safetensors.torch import load_file, save_file
method, base, *others, output = sys.argv[1:]
models = [load_file(one) for one in others]
start = None if method == "linear" else load_file(base)
result = {}
for name, first in models[0].items():
    sides = [one[name].float() for one in models]
    if start is None:
        result[name] = (sum(sides) / 2).to(first.dtype)
        continue
    old = start[name].float()
    deltas = [side - old for side in sides]
    if method == "ties":
        for number, delta in enumerate(deltas):
            mask = torch.zeros(delta.numel())
            mask[torch.argsort(delta.abs().view(-1), descending=True)[: delta.numel() // 2]] = 1
            deltas[number] = delta * mask.view(delta.shape)
        parts = torch.stack([0.5 * delta for delta in deltas])
        sign = torch.where(parts.sum(0) >= 0, 1.0, -1.0)
        agrees = parts.sign() == sign
        weights = (0.5 * agrees).sum(0)
        mixed = (parts * agrees).sum(0) / torch.where(weights == 0, 1.0, weights)
    else:
        mixed = sum(0.5 * delta for delta in deltas)
    result[name] = (old + mixed).to(first.dtype)
save_file(result, output)
"""


def measure_merge(
    runner: Runner, folder: Path, mvc: str, models: dict[str, Path], rounds: int
) -> dict[str, Any]:
    """Merge two models by some methods, in both ways in turn."""
    base, *others = models.values()
    script = folder / "merge.py"
    script.write_text(_TORCH)
    output = folder / "merged.safetensors"
    found: dict[str, Any] = {"model_bytes": base.stat().st_size, "ways": {}}
    for method, (head, parameters) in METHODS.items():
        listed = "\n".join(f"  - {{model: {one}, parameters: {parameters}}}" for one in others)
        recipe = folder / f"{method}.yml"
        recipe.write_text(f"{head.replace('{base}', str(base))}\nmodels:\n{listed}\n")
        ways: dict[str, list[str | Path]] = {
            "mvc": [mvc, "merge", "--recipe", recipe, "-o", output, "--force"],
            "torch": [sys.executable, script, method, base, *others, output],
        }
        costs: dict[str, list[Cost]] = {way: [] for way in ways}
        for _ in range(rounds):
            for way, command in ways.items():
                costs[way].append(runner.measure(folder, command))
        output.unlink()
        found["ways"][method] = {
            way: {"seconds": cost.seconds, "cpu_seconds": cost.cpu_seconds, "peak_bytes": cost.peak_bytes}
            for way, cost in ((way, middle(some)) for way, some in costs.items())
        }  # fmt: skip
    return found
