"""Small checkpoints with a will of their own, made by the real writers."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file


def write_model(path: Path, *, seed: int = 0, layers: int = 2, width: int = 32, **changes) -> Path:
    """Write a tiny transformer-shaped safetensors file; ``changes`` replace tensors by name."""
    rng = np.random.default_rng(seed)
    tensors = {"embed": rng.standard_normal((64, width)).astype(np.float32)}
    for layer in range(layers):
        for name in ("q", "v", "mlp"):
            values = rng.standard_normal((width, width)).astype(np.float32)
            tensors[f"layers.{layer}.{name}"] = values
    tensors["norm"] = np.ones(width, np.float32)
    tensors.update({name.replace("__", "."): value for name, value in changes.items()})
    save_file(tensors, path)
    return path


def write_config(path: Path, **values) -> Path:
    path.write_text(json.dumps({"width": 32, **values}, indent=1))
    return path


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def digests(folder: Path) -> dict[str, str]:
    """Return path → SHA-256 of every file below a folder, the repository left out."""
    return {
        path.relative_to(folder).as_posix(): digest(path)
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.is_symlink() and ".mvc" not in path.parts
    }


def contents(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Return path → (mode as in Git, bytes or text of the link) below a folder, the repository left out."""
    found = {}
    for path in folder.rglob("*"):
        name = path.relative_to(folder).as_posix()
        if name.split("/")[0] == ".mvc":
            continue
        if path.is_symlink():
            found[name] = (0o120000, os.readlink(os.fsencode(path)))
        elif path.is_file():
            found[name] = (0o100755 if path.stat().st_mode & 0o100 else 0o100644, path.read_bytes())
    return found
