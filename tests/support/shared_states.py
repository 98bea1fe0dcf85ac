"""A state that is on several ranks in various ways, and repositories to commit it to."""

import torch
from torch.distributed.tensor import Replicate, Shard

from mvc import Identity, Repo

ME = Identity("Ada", "ada@example.org")
CHUNK = 4096
TOPOLOGIES = {
    "replicas": ((4,), ("dp",), {}),
    "sharded": ((3,), ("dp",), {n: ("dp", [Shard(0)]) for n in ("wide", "odd", "tiny", "m", "half")}),
    "columns": ((4,), ("tp",), {n: ("tp", [Shard(1)]) for n in ("wide", "odd", "m", "half")}),
    "both": (
        (2, 2), ("dp", "tp"),
        {"wide": (("dp", "tp"), [Shard(0), Shard(0)]), "odd": (("dp", "tp"), [Shard(0), Shard(1)]),
         "m": (("dp", "tp"), [Shard(1), Shard(0)]), "half": ("tp", [Shard(0)]), "tiny": ("dp", [Shard(0)])},
    ),
    "crossed": ((2, 2), ("rep", "tp"), {n: (("rep", "tp"), [Replicate(), Shard(1)]) for n in ("wide", "odd")}),
    "hybrid": (
        (2, 4), ("rep", "dp"),
        {n: (("rep", "dp"), [Replicate(), Shard(0)]) for n in ("wide", "odd", "tiny", "m", "half")},
    ),
}  # fmt: skip


def make_state(seed=0):
    draw = torch.Generator().manual_seed(seed)
    model = {
        "wide": torch.randn(500, 33, generator=draw),
        "odd": torch.randn(101, 67, generator=draw),
        "tiny": torch.randn(2, generator=draw),
        "half": torch.randn(64, 128, generator=draw).bfloat16(),
        "complex": torch.randn(9, 40, generator=draw, dtype=torch.complex64),
        "channels": torch.randn(2, 8, 9, 7, generator=draw).to(memory_format=torch.channels_last),
        "none": torch.empty(0, 5),
        "scalar": torch.tensor(3.0),
    }
    model["tied"] = model["tiny"]
    state = {0: {"step": torch.tensor(5.0), "m": torch.randn(500, 33, generator=draw)}}
    return {"model": model, "optimizer": {"state": state, "lr": 0.1}, "step": 4}


def new_repo(folder, chunk_bytes=CHUNK):
    Repo.init(folder)
    with open(folder / ".mvc" / "config", "a") as file:
        file.write(f"[mvc]\n\tchunkbytes = {chunk_bytes}\n")
    return Repo.open(folder, identity=ME)


def open_all(folder, ranks):
    return [Repo.open(folder, identity=ME) for _ in range(ranks)]


def blobs_of(repo):
    tree = repo._context.history.read_tree(repo.resolve("HEAD"))
    return {path: entry.blob for path, entry in tree.items() if path.endswith(".safetensors")}
