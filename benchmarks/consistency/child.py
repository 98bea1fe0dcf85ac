"""One process of a run whose ranks are compared: ``torchrun -m benchmarks.consistency.child LAYERS WIDTH TOKENS STEPS``.

A decoder of that size is trained by AdamW in DistributedDataParallel. Rank 0 prints one line of JSON.
"""

from __future__ import annotations

import json
import sys
import time

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from mvc_lab import Consistency

_WORDS = 4096
_LENGTH = 64


class _Decoder(nn.Module):
    def __init__(self, layers: int, width: int) -> None:
        super().__init__()
        self.table = nn.Embedding(_WORDS, width)
        layer = nn.TransformerEncoderLayer(width, width // 64, 4 * width, batch_first=True)
        self.blocks = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, _WORDS, bias=False)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.head(self.blocks(self.table(words)))
        return found


def measure(layers: int, width: int, tokens: int, steps: int) -> dict[str, object]:
    """Return the seconds of steps, and of the checks in them, at the default setting."""
    torch.manual_seed(0)
    model = DistributedDataParallel(_Decoder(layers, width))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    torch.manual_seed(distributed.get_rank())
    clock: list[float] = []
    optimizer.register_step_pre_hook(lambda *_: clock.append(-time.thread_time()))
    check = Consistency().watch(model=model, optimizer=optimizer)
    optimizer.register_step_pre_hook(lambda *_: clock.append(time.thread_time()))
    took: list[float] = []
    checked: list[float] = []
    cpu_took: list[float] = []
    cpu_checked: list[float] = []
    for _ in range(steps + 2):
        words = torch.randint(0, _WORDS, (max(tokens // _LENGTH, 1), _LENGTH + 1))
        began_s, before_s, cpu_s = time.perf_counter(), check.seconds, time.thread_time()
        clock.clear()
        found = model(words[:, :-1])
        nn.functional.cross_entropy(found.flatten(0, 1), words[:, 1:].flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()
        clock.append(-time.thread_time())
        check.step()
        clock.append(time.thread_time())
        cpu_took.append(time.thread_time() - cpu_s)
        cpu_checked.append(sum(clock))
        took.append(time.perf_counter() - began_s)
        checked.append(check.seconds - before_s)
    return {
        "parameters": sum(one.numel() for one in model.parameters()),
        "start_s": checked[:2],
        "step_s": took[2:],
        "check_s": checked[2:],
        "step_cpu_s": cpu_took[2:],
        "check_cpu_s": cpu_checked[2:],
        "checks": check.checks,
        "mismatches": check.mismatches,
        "digested_bytes": check.digested_bytes,
    }


def main() -> None:
    """Measure, and print on rank 0."""
    torch.set_num_threads(1)
    distributed.init_process_group("gloo")
    layers, width, tokens, steps = map(int, sys.argv[1:])
    found = measure(layers, width, tokens, steps)
    if distributed.get_rank() == 0:
        print(json.dumps(found), flush=True)
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
