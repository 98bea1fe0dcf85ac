"""Gradients of DistributedDataParallel (DDP), compressed on their way; the state is part of the run.

compression = PowerSgd(rank=4)
compression.attach(ddp)
ckpt = Checkpointer("runs/gpt", model=ddp, optimizer=optimizer, compression=compression)
"""

from mvc_lab.compression.hook import Compression
from mvc_lab.compression.kinds import Bf16, Fp16, PowerSgd, SignSgd

__all__ = ["Bf16", "Compression", "Fp16", "PowerSgd", "SignSgd"]
