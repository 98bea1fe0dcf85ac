"""How tests/golden/traces was made: ``torchrun --nproc-per-node 2 golden_traces.py FOLDER``, then gzip -9."""

import sys

import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile, record_function, schedule

STEPS = 2
BUCKETS = 2


def main(folder: str) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    distributed.init_process_group("gloo")
    rank = distributed.get_rank()
    layers = [torch.nn.Linear(96, 96) for _ in range(3)]
    model = DistributedDataParallel(torch.nn.Sequential(*layers), bucket_cap_mb=0.04)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def export(profiler: profile) -> None:
        profiler.export_chrome_trace(f"{folder}/rank{rank}.json")

    with profile(
        activities=[ProfilerActivity.CPU],
        schedule=schedule(wait=0, warmup=3, active=STEPS, repeat=1),
        record_shapes=True,
        on_trace_ready=export,
    ) as profiler:
        for _ in range(3 + STEPS):
            with record_function("mvc.capture"):
                torch.zeros(10)
            model(torch.randn(64, 96)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            profiler.step()
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
