"""What checkpoint files are called, and the bytes that they begin with."""

from __future__ import annotations

import re

GGUF_MAGIC = b"GGUF"
ZIP_MAGIC = b"PK\x03\x04"
NPY_MAGIC = b"\x93NUMPY"
SUFFIXES = (".safetensors", ".pt", ".pth", ".bin", ".ckpt", ".npz", ".npy", ".gguf", ".distcp")
METADATA_NAME = ".metadata"
"""What names the tensors of a DCP folder."""
SHARD = re.compile(r"-\d+-of-(\d+)(?=\.[^./]*$)")
"""The number of a shard, and how many there are: ``-00001-of-00003`` before ``.safetensors``."""


def is_checkpoint_name(name: str) -> bool:
    """Return whether a file name ends like a checkpoint's."""
    return name.lower().endswith(SUFFIXES)


_MODEL = ("model", "ema", "weight", "adapter", "lora")
_STATE = (
    *("optimizer", "optim", "scheduler", "sched", "rng"),
    *("scaler", "trainer", "dataloader", "sampler"),
)
_WORD = re.compile("[a-z]+")


def is_model_name(name: str) -> bool | None:
    """Return whether one file or folder name means model (True) or state (False), or None."""
    words = _WORD.findall(name.lower())
    if any(word.startswith(_MODEL) for word in words):
        return True
    if any(word.startswith(_STATE) for word in words):
        return False
    if {"state", "states"}.intersection(words) and "dict" not in words:
        return False
    return None


def is_model_path(path: str) -> bool | None:
    """Return the same for a path: its file name decides, or else its nearest folder."""
    for name in reversed(path.split("/")):
        answer = is_model_name(name)
        if answer is not None:
            return answer
    return None
