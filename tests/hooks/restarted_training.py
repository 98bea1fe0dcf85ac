"""A program for ``torchrun``: the last rank is killed once, while the others hang in C, as NCCL does.

restarted_training.py FOLDER
"""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import sys
from pathlib import Path

import torch
from torch import distributed, nn

from mvc_hooks import Checkpointer

_STEPS, _FATAL = 6, 4


def hang():
    """Wait for ever in C, where no handler of Python runs and no signal ends the wait."""
    libc, mutex = ctypes.CDLL(None), ctypes.create_string_buffer(64)
    while True:
        libc.pthread_mutex_lock(mutex)


def main():
    folder = Path(sys.argv[1])
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    torch.set_num_threads(1)
    distributed.init_process_group("gloo")
    rank, size = distributed.get_rank(), distributed.get_world_size()
    torch.manual_seed(0)
    model = nn.Linear(4, 4)
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    with Checkpointer(folder / "run", model=model, optimizer=optimizer, every=2) as ckpt:
        for step in ckpt.steps(_STEPS):
            if step == _FATAL and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
                ckpt.wait()
                distributed.barrier()
                if rank == size - 1:
                    os.kill(os.getpid(), signal.SIGKILL)
                hang()
            model(torch.full((2, 4), float(step))).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            ckpt.step()
    if rank == 0:
        torch.save(model.state_dict(), folder / "end.pt")
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
