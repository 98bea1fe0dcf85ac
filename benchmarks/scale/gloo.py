"""One process of a run that times all_reduce: ``torchrun -m benchmarks.scale.gloo ROUNDS SIZE...``.

Rank 0 prints one line of JSON: bytes → seconds of the slowest rank in the fastest round.
"""

from __future__ import annotations

import json
import sys
import time

import torch
from torch import distributed


def main() -> None:
    """Time each size."""
    rounds, *sizes = map(int, sys.argv[1:])
    torch.set_num_threads(1)
    distributed.init_process_group("gloo")
    found = {}
    for size_bytes in sizes:
        data, times = torch.ones(size_bytes // 4), []
        for _ in range(rounds + 2):
            distributed.barrier()
            began_s = time.perf_counter()
            distributed.all_reduce(data)
            taken = torch.tensor(time.perf_counter() - began_s, dtype=torch.float64)
            distributed.all_reduce(taken, distributed.ReduceOp.MAX)
            times.append(float(taken))
            data.fill_(1.0)
        found[size_bytes] = min(times[2:])
    if distributed.get_rank() == 0:
        print(json.dumps(found), flush=True)
    distributed.barrier()
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
