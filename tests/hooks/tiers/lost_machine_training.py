"""One rank of a run on two machines, for ``test_lost_machine``: a program of its own.

lost_machine_training.py RANK MACHINE FOLDER STORE TOTAL DIES: trains up to a step with a folder and a
name of its own for each machine; if it DIES, then by a kill there, and rank 0 with its writer.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
from pathlib import Path

import torch
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import mvc_hooks
from mvc import Repo
from mvc_hooks.writer import place


def be_on(machine, folder):
    runtime, boot = folder / f"runtime-{machine}", folder / f"boot-{machine}"
    runtime.mkdir(exist_ok=True)
    os.environ["XDG_RUNTIME_DIR"] = str(runtime)
    boot.write_text(machine)
    place._BOOT_ID = boot


def main():
    rank, machine, folder, store, total, dies = sys.argv[1:]
    rank, folder = int(rank), Path(folder)
    be_on(machine, folder)
    torch.set_num_threads(1)
    logging.basicConfig(level=logging.INFO, filename=folder / f"log{rank}.txt")
    distributed.init_process_group(
        "gloo", store=distributed.FileStore(store, 2), rank=rank, world_size=2
    )
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(300, 300), nn.Linear(300, 300))
    fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
    optimizer = torch.optim.AdamW(model.parameters())
    if rank == 0 and not (folder / "store").exists():
        Repo.init(folder / machine, store=folder / "store")
    ckpt = mvc_hooks.Checkpointer(
        folder / machine, model=model, optimizer=optimizer, every=3, replicate=1
    )
    for _ in ckpt.steps(int(total)):
        loss = model(torch.randn(8, 300)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        ckpt.step(loss=loss)
    if dies == "dies":
        ckpt.wait()
        distributed.barrier()
        if rank == 0:
            os.kill(ckpt._commits.queue.start_writer()._process.pid, signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)
    ckpt.close()


if __name__ == "__main__":
    main()
