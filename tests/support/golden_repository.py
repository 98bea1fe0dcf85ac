"""A small repository with one of everything, to be read by every later version.

    PYTHONPATH=tests python -m support.golden_repository tests/golden/repository/2

writes ``2.tar`` (the ``.mvc`` folder, as a tar because Git would not store another repository) and
``2.json`` (what is in it: every file of every commit, every tensor, every state). Only ever add a
pair of files, with the version that first writes something new; never make an old one again: the
point of them is that they are old. This needs torch; reading does not.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import struct
import sys
import tarfile
import tempfile
from pathlib import Path

import numpy as np

from mvc import Repo
from mvc.history.values import Identity

WHO = Identity("Ann Example", "ann@example.org")
START_S = 1_700_000_000


def _safetensors(seed, extra_rows=0):
    from ml_dtypes import bfloat16, float8_e4m3fn
    from safetensors.numpy import save

    rng = np.random.default_rng(seed)
    weights = rng.standard_normal((32 + extra_rows, 24))
    weights[:32] = np.random.default_rng(1).standard_normal((32, 24))
    specials = [0.0, -0.0, np.inf, -np.inf, 1e-45]
    head = np.array(specials, np.float32).tobytes() + struct.pack("<I", 0x7FC00001 + seed)
    return save(
        {
            "embed": weights.astype(bfloat16),
            "layer.0.weight": rng.standard_normal((48, 24)).astype(np.float32),
            "layer.0.scale": rng.standard_normal(40).astype(float8_e4m3fn),
            "norm": np.ones(24, np.float16),
            "specials": np.frombuffer(head, np.float32),
            "step": np.array(seed, np.int64),
            "none": np.zeros((0, 3), np.float64),
        },
        {"made by": "the tests of mvc"},
    )


def _torch():
    import torch

    generator = torch.Generator().manual_seed(5)
    shared = torch.randn(20, 16, generator=generator)
    buffer = io.BytesIO()
    model = {"tied.a": shared, "tied.b": shared, "view": shared[2:5].T, "scalar": torch.tensor(7)}
    torch.save({"model": model, "lr": 0.1, "betas": (0.9, 0.95)}, buffer)
    return buffer.getvalue()


def _npz():
    buffer = io.BytesIO()
    np.savez(buffer, a=np.arange(60.0).reshape(5, 12), c=np.arange(5) * 1j)
    return buffer.getvalue()


def _gguf():
    def text(value):
        return struct.pack("<Q", len(value)) + value

    values = np.random.default_rng(6).standard_normal(64).astype(np.float32).tobytes()
    head = b"GGUF" + struct.pack("<IQQ", 3, 1, 1)
    head += text(b"general.architecture") + struct.pack("<I", 8) + text(b"llama")
    head += text(b"blk.0.weight") + struct.pack("<IQIQ", 1, 64, 0, 0)
    return head + bytes(-len(head) % 32) + values


def _fill(repo):
    """Make the history; every commit at a time of its own, all by the same person."""
    root = repo.worktree
    repo.identity = WHO
    repo.set_config("mvc.chunkbytes", "1024")
    (root / "model.safetensors").write_bytes(_safetensors(1))
    (root / "config.json").write_text('{"width": 24}\n')
    (root / "train.py").write_text("#!/usr/bin/env python3\n")
    (root / "train.py").chmod(0o755)
    (root / "latest").symlink_to("model.safetensors")
    (root / "dangling").symlink_to("/nowhere/ at all")
    (root / "Größe — 大きさ.txt").write_text("a name that is not ASCII\n")
    (root / "empty").write_bytes(b"")
    (root / "folder" / "deeper").mkdir(parents=True)
    (root / "folder" / "deeper" / "optimizer.pt").write_bytes(_torch())
    (root / "folder" / "arrays.npz").write_bytes(_npz())
    (root / "folder" / "model.gguf").write_bytes(_gguf())
    repo.commit("base model\n\nwith a body", paths=["."], step=0, meta={"host": "golden"},
                time_s=START_S)  # fmt: skip
    repo.tags.create("v1", message="the first one")
    (root / "model.safetensors").write_bytes(_safetensors(2, extra_rows=8))
    (root / "broken.safetensors").write_bytes(_safetensors(3)[:-50] + b"torn")
    (root / "big.bin").write_bytes(b"0123456789abcdef" * 80_000)
    (root / "claims.json").write_bytes(b'{"mvc-manifest":1, but it is no manifest')
    (root / "config.json").unlink()
    repo.commit("fine-tuned", paths=["."], step=100, metrics={"loss": 0.5, "acc": 1e-7},
                time_s=START_S + 60)  # fmt: skip
    repo.commit_state(make_state(), message="state", step=12000, metrics={"loss": 0.25},
                      time_s=START_S + 120)  # fmt: skip
    repo.switch("side/branch", create=True, start="v1")
    repo.move("config.json", "settings.json")
    repo.commit("renamed", time_s=START_S + 180)
    _fill_deep(repo)
    repo.switch("main")
    (root / "staged.txt").write_text("staged, not committed\n")
    repo.add("staged.txt")


def _fill_deep(repo):
    """Make a branch of states that are differences and roundings, most of them in one large pack."""
    from ml_dtypes import bfloat16

    repo.set_config("mvc.chunkbytes", "32768")
    rng = np.random.default_rng(7)
    words = rng.standard_normal(20_000).astype(np.float32)
    for number in range(4):
        words = words + (rng.standard_normal(words.size) * 1e-6).astype(np.float32)
        state = {"master": {"w": words, "d": words.astype(np.float64)},
                 "model": {"w": words.astype(bfloat16), "h": words.astype(np.float16)}}  # fmt: skip
        repo.commit_state(state, message=f"deep {number}", branch="deep", delta=number != 2,
                          time_s=START_S + 240 + number)  # fmt: skip
    repo.upkeep.repack()
    repo.set_config("mvc.chunkbytes", "1024")


def make_state():
    """Return the state that was committed."""
    shared = np.arange(300, dtype=np.float32)
    return {
        "weights": {"w": shared, "tied": shared, "half": np.ones((3, 5), np.float16)},
        "optimizer": {"state": {0: {"step": 7, "exp_avg": np.full(9, -0.0)}}, "groups": [(1, 2.5)]},
        "rng": b"\x00\xff bytes",
        "name": "größe",
        "nothing": None,
        "nested": [{"flag": True, "nan": float("nan")}, [], {}],
    }


def describe(repo):
    """Return everything a reader must find again."""
    found = {}
    for entry in repo.log(everything=True):
        files = {}
        for file in repo.ls(entry.info.id):
            tensors = {
                tensor.name: [
                    tensor.dtype,
                    list(tensor.shape),
                    digest(repo.tensor(entry.info.id, file.path, tensor.name).tobytes()),
                ]
                for tensor in file.tensors
            }
            files[file.path] = {
                "mode": f"{file.mode:o}",
                "format": file.format,
                "size": file.size_bytes,
                "tensors": tensors,
            }
        found[entry.info.id] = {
            "subject": entry.info.subject,
            "step": entry.annotations.step,
            "metrics": dict(entry.annotations.metrics or {}),
            "parents": list(entry.info.parents),
            "files": files,
        }
    return found


def digest(data):
    return hashlib.sha256(data).hexdigest()


def read_worktree(root):
    """Return path → digest of the bytes, or the text of a link."""
    found = {}
    for path in sorted(root.rglob("*")):
        name = path.relative_to(root).as_posix()
        if name.split("/")[0] == ".mvc" or (path.is_dir() and not path.is_symlink()):
            continue
        found[name] = os.readlink(path) if path.is_symlink() else digest(path.read_bytes())
    return found


def main(target):
    with tempfile.TemporaryDirectory() as folder:
        repo = Repo.init(folder)
        _fill(repo)
        commits = describe(repo)
        for commit, description in commits.items():
            repo.checkout(commit)
            worktree = read_worktree(Path(folder))
            worktree.pop("staged.txt")
            for path, content in worktree.items():
                description["files"][path]["content"] = content
        repo.switch("main")
        refs = {ref.name: ref.commit for ref in [*repo.branches.list(), *repo.tags.list()]}
        told = {"head": repo.head.branch, "refs": refs, "commits": commits}
        Path(f"{target}.json").write_text(json.dumps(told, indent=1, ensure_ascii=False) + "\n")
        with tarfile.open(f"{target}.tar", "w") as archive:
            archive.add(Path(folder, ".mvc"), ".mvc", filter=_forget_owner)


def _forget_owner(member):
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    member.mtime = START_S
    return None if member.name.endswith("/tmp") else member


if __name__ == "__main__":
    main(sys.argv[1])
