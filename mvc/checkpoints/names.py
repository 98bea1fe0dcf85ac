"""What checkpoint files are called."""

import re

SUFFIXES = (".safetensors", ".pt", ".pth", ".bin", ".ckpt", ".npz", ".npy", ".gguf", ".distcp")
METADATA_NAME = ".metadata"
"""What names the tensors of a DCP folder."""
SHARD = re.compile(r"-\d+-of-(\d+)(?=\.[^./]*$)")
"""The number of a shard, and how many there are: ``-00001-of-00003`` before ``.safetensors``."""


def is_checkpoint_name(name: str) -> bool:
    """Return whether a file name ends like a checkpoint's."""
    return name.lower().endswith(SUFFIXES)
